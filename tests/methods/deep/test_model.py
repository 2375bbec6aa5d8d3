"""Networks of a user's own layers as models: how they start."""

import pytest
import torch
from torch import nn

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.methods.deep import InducingLayer, Network, NetworkModel
from gpx.objectives import SampledELBO


def layers_behind_a_backbone():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), InducingLayer(RBF(), 4, 2, num_inducing=5))
    head = InducingLayer(RBF(), 2, num_inducing=6)
    return NetworkModel(Network(body, head), Gaussian(), num_inputs=3), body[2], head


def rows(n=20):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1)


def test_layers_are_placed_among_their_inputs():
    made, hidden, head = layers_behind_a_backbone()
    x, y = rows()
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    features = made.network.body[:2](x)
    low, high = features.amin(0), features.amax(0)
    assert ((hidden.inducing >= low) & (hidden.inducing <= high)).all()
    for layer in (hidden, head):
        assert torch.pdist(layer.inducing).min() > 0.0
    assert SampledELBO(len(x)).evidence(made, x, y).value.isfinite()


def test_layers_that_have_been_placed_stay_as_they_are():
    made, hidden, _ = layers_behind_a_backbone()
    points = torch.randn(5, 4)
    with torch.no_grad():
        hidden.inducing.copy_(points)
    made.initialise(*rows(), generator=torch.Generator().manual_seed(0))
    assert torch.equal(hidden.inducing, points)


def test_training_without_placed_points_is_refused():
    """Points at the same place move together for ever, and count as one."""
    made, _, _ = layers_behind_a_backbone()
    x, y = rows()
    with pytest.raises(ConfigError, match="5 inducing points that have not been placed"):
        SampledELBO(len(x)).evidence(made, x, y)
