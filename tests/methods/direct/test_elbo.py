"""The record of a trained mean field: how large errors are beside the noise."""

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import Direct, DirectMixture
from gpx.objectives import DirectELBO


@pytest.mark.parametrize("extra", [0, 3])
def test_misfit_is_the_expected_squared_error_in_noise_variances(extra):
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(9 + extra, 1, generator=draws, dtype=torch.float64)
    y = (6.0 * x[:, 0]).sin()
    made = Direct(
        kernel=RBF(1), mean=Zero(), likelihood=Gaussian(0.01), basis=RandomFourier, num_basis=6
    ).double()
    made.initialise(x[:9], y[:9], generator=draws)
    if extra:  # rows that came later count as well
        made.add_rows(x[9:], y[9:])
    q, values = made.logits.detach().softmax(-1), made.values()
    mean = q @ values
    variance = q @ values.square() - mean.square()
    features = (made.basis(x) * made.scale).detach()
    error = ((y - features @ mean).square() + features.square() @ variance).mean()
    facts = DirectELBO().full_evidence(made, x[:9], y[:9], batch_size=1).facts
    assert facts["misfit"] == pytest.approx(float(error) / 0.01, rel=1e-9)


def test_removed_rows_change_neither_bound_nor_gradient():
    """The sums are all that is kept, so rows of no numbers, or none at all, are as good."""
    x = torch.linspace(-1.0, 1.0, 9, dtype=torch.float64).unsqueeze(1)
    y = x.squeeze(1).sin()
    model = Direct(
        kernel=RBF(1), mean=Zero(), likelihood=Gaussian(0.1), basis=RandomFourier, num_basis=4
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    found = []
    for rows, targets in ((x, y), (x * torch.nan, y * torch.nan), (x[:0], y[:0])):
        value = DirectELBO().evidence(model, rows, targets).value
        found.append((value.detach(), *torch.autograd.grad(value, [model.logits])))
    for value, gradient in found[1:]:
        assert torch.equal(value, found[0][0])
        assert torch.equal(gradient, found[0][1])


def test_a_mixture_is_referred_to_its_own_bound():
    parts = {"kernel": RBF(1), "mean": Zero(), "likelihood": Gaussian(0.1), "num_basis": 4}
    model = DirectMixture(basis=RandomFourier, **parts).double()
    x = torch.zeros(3, 1, dtype=torch.float64)
    with pytest.raises(ConfigError, match="DirectELBO needs Direct, or a model with bound_value"):
        DirectELBO().evidence(model, x, x[:, 0])
