"""The bounds in weight space require methods of a model, not a class."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Zero
from gpx.models import QSGP, SGPR, QSGPInducing
from gpx.objectives import InducingELBO, QuadruplyStochasticELBO, SiteBoundELBO, WeightSpaceELBO

N = 12
ON_A_BASIS = ("basis", "family", "likelihood", "num_data", "noise_variance", "anchor_blocks")
ASKED = {
    WeightSpaceELBO: (*ON_A_BASIS, "log_scales"),
    QuadruplyStochasticELBO: (*ON_A_BASIS, "log_scales"),
    SiteBoundELBO: (*ON_A_BASIS, "log_scales", "report", "site_group", "condition"),
    InducingELBO: ("basis", "kernel", "likelihood", "weight_mean", "noise_variance", "scales"),
}
"""Everything that a stand-in for a model has; no base class, no parameters, no modules."""


def trained(kind):
    """Data, and a model that the objective is made for."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(x.sum(1))
    if kind is InducingELBO:
        model = QSGPInducing(
            kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.1), num_data=N, num_inputs=2
        )
    else:
        sites = kind is SiteBoundELBO
        model = QSGP(
            kernel=RBF(ard_num_dims=2),
            mean=Zero(),
            likelihood=Bernoulli() if sites else Gaussian(0.1),
            num_basis=8,
            covariance="mean_field",
            warm_start=False,
            basis=partial(RandomFourier, block_frequencies=2),
        )
        y = y.sign() if sites else y
    model.double().initialise(x, y, generator=generator)
    return model, x, y


def made(kind):
    return kind() if kind is WeightSpaceELBO else kind(num_data=N)


@pytest.mark.parametrize("kind", ASKED)
def test_any_object_with_the_protocol_has_the_same_evidence(kind):
    model, x, y = trained(kind)
    stand_in = SimpleNamespace(**{name: getattr(model, name) for name in ASKED[kind]})
    values = []
    for asked in (model, stand_in):
        objective = made(kind).double()
        objective.check(asked)
        objective.prepare(asked, x, y, generator=torch.Generator().manual_seed(1))
        found = objective.evidence(asked, x, y, generator=torch.Generator().manual_seed(2))
        objective.after_step(asked)
        last = objective.full_evidence(
            asked, x, y, batch_size=N, generator=torch.Generator().manual_seed(3)
        )
        values.append((float(found.value.detach()), float(last.value.detach())))
    assert values[0] == values[1]


@pytest.mark.parametrize("kind", ASKED)
def test_missing_methods_are_named(kind):
    other = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=2, num_inducing=3)
    wanted = rf"{kind.__name__} needs QSGP\w*, or a model with \w+ and \w+ and .*, got SGPR"
    with pytest.raises(ConfigError, match=wanted):
        made(kind).check(other)
    with pytest.raises(ConfigError, match=wanted):
        made(kind).evidence(other, torch.zeros(N, 2), torch.zeros(N))


@pytest.mark.parametrize("kind", ASKED)
def test_every_method_of_the_protocol_is_required(kind):
    model, *_ = trained(kind)
    for name in ASKED[kind]:
        partial_model = SimpleNamespace(
            **{other: getattr(model, other) for other in ASKED[kind] if other != name}
        )
        with pytest.raises(ConfigError, match=rf"needs .*{name}"):
            made(kind).check(partial_model)
