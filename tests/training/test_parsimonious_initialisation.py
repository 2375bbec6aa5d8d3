"""One lengthscale for all inputs unless the data pay for one each."""

import pytest
import torch

from gpx.kernels import RBF, Matern32, Periodic
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.training import ParsimoniousInitialisation, SubsetInitialisation

D = 6


def data(weights, n=60):
    """Sines of the inputs; where their weights are equal, so is every input."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, (0.5 * x).sin() @ torch.tensor(weights, dtype=torch.float64) + noise


def fitted(kind, kernel, x, y, likelihood=None, noise=None, **options):
    model = ExactGP(
        kernel=kernel, mean=Constant(), likelihood=Gaussian() if likelihood is None else likelihood
    ).double()
    if noise is not None:
        model.know_noise(noise)
    lines = []
    start = kind(max_evaluations=60, **options)
    start(model, x, y, generator=torch.Generator().manual_seed(0), say=lines.append)
    return model, lines


@pytest.mark.parametrize("outputscale", [1.0, None])
def test_equal_inputs_share_a_lengthscale_at_its_own_maximum(outputscale):
    x, y = data([1.0] * D)
    kernel = Matern32(D, lengthscale=2.0, outputscale=outputscale)
    model, lines = fitted(ParsimoniousInitialisation, kernel, x, y)
    assert "6 lengthscales gain" in lines[-1]
    assert lines[-1].endswith("one for all inputs is used")
    scales = model.kernel.lengthscale.detach()
    assert scales.shape == (D,)
    assert float(scales.max() - scales.min()) == 0.0
    value = ExactMLL().evidence(model, x, y).value
    slopes = torch.autograd.grad(value, list(model.parameters()))
    along = [s.sum() if s.shape == (D,) else s for s in slopes]
    assert float(torch.stack([s.reshape(()) for s in along]).abs().max()) < 0.05
    plain, _ = fitted(SubsetInitialisation, Matern32(D, 2.0, outputscale), x, y)
    gained = float((ExactMLL().evidence(plain, x, y).value - value).detach())
    assert f"gain {gained:.1f} nats" in lines[-1]


def test_inputs_that_differ_keep_the_fit_of_the_subset():
    x, y = data([3.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    model, lines = fitted(ParsimoniousInitialisation, RBF(D), x, y, num_points=50)
    assert lines[-1].endswith("all are used")
    plain, _ = fitted(SubsetInitialisation, RBF(D), x, y, num_points=50)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_both_fits_know_the_noise_of_rows():
    x, y = data([1.0] * D)
    known = 9.0 * (torch.arange(len(y)) % 2).double()
    y = y + known.sqrt() * torch.randn(len(y), generator=torch.Generator().manual_seed(0))
    model, lines = fitted(ParsimoniousInitialisation, RBF(D, 2.0), x, y, noise=known)
    value = ExactMLL().evidence(model, x, y).value
    (slope,) = torch.autograd.grad(value, list(model.likelihood.parameters()))
    assert abs(float(slope)) < 0.05
    plain, _ = fitted(SubsetInitialisation, RBF(D, 2.0), x, y, noise=known)
    gained = float((ExactMLL().evidence(plain, x, y).value - value).detach())
    assert f"gain {gained:.1f} nats" in lines[-1]


@pytest.mark.parametrize("kernel", [RBF(), Periodic()])
def test_kernels_without_a_choice_are_fitted_as_ever(kernel):
    x, y = data([1.0] * D, n=30)
    model, lines = fitted(ParsimoniousInitialisation, kernel, x, y, num_points=25)
    assert "exact GP on 25 points" in lines[0]
    assert not any("lengthscales gain" in line for line in lines)
    assert model.kernel is kernel


def test_other_likelihoods_stay_where_they_are():
    x, y = data([1.0] * D)
    model, lines = fitted(ParsimoniousInitialisation, RBF(D), x, y, Bernoulli())
    assert model.kernel.lengthscale.tolist() == pytest.approx([1.0] * D, rel=1e-6)
    assert "starting from constants" in lines[-1]
