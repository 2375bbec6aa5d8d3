"""Features that stay while their kernel moves: proposals, weights, and what is refused."""

import math

import pytest
import torch

from gpx.bases import ImportanceWeightedFourier, Proposal
from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32, RationalQuadratic, SpectralMixture


def kernel(kind=RBF, lengthscale=(0.8, 1.4), outputscale=1.7):
    return kind(2, lengthscale=lengthscale, outputscale=outputscale).double()


def inputs():
    return torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("family", ["same", "rbf", "matern12", "matern32", "matern52"])
def test_a_proposal_has_shorter_lengthscales_and_the_same_variance(family):
    own = kernel()
    drawn = Proposal(family, lengthscale=0.5).of(own)
    with torch.no_grad():
        torch.testing.assert_close(drawn.lengthscale, 0.5 * own.lengthscale)
        torch.testing.assert_close(drawn.outputscale, own.outputscale)
    assert not any(p.requires_grad for p in drawn.parameters())
    assert type(drawn).__name__.lower().endswith("rbf" if family == "same" else family)


@torch.no_grad()
def test_the_kernel_moves_and_the_features_do_not():
    x, basis = inputs(), ImportanceWeightedFourier(kernel(), 12_000, 2, seed=3).double()
    before = basis(x)
    for stretch in (1.0, 1.3):
        basis.kernel.lengthscale = stretch * kernel().lengthscale
        basis.kernel.outputscale = torch.tensor(2.1, dtype=torch.float64)
        assert torch.equal(basis(x), before)
        weighted = (before * basis.weights().log_variances.exp()) @ before.mT
        exact = basis.kernel.evaluate(x, x)
        torch.testing.assert_close(weighted, exact, rtol=0, atol=0.15)
        chosen = torch.tensor([5, 2, 11_999])
        some = basis.precision_diagonal(chosen)
        torch.testing.assert_close(some, basis.precision_diagonal()[chosen])
    basis.draw()  # for the kernel as it is now: other features of the same random numbers
    assert not torch.equal(basis(x), before)


def test_heavier_tails_let_lengthscales_shrink():
    """A squared exponential at a third of its lengthscales loses its frequencies, not Matern's."""
    found = {}
    for family in ("same", "matern32"):
        basis = ImportanceWeightedFourier(kernel(), 4000, 2, proposal=Proposal(family)).double()
        with torch.no_grad():
            basis.kernel.lengthscale = kernel().lengthscale / 3.0
            found[family] = float(basis.weights().effective)
    assert found["same"] < 400 < found["matern32"]


@pytest.mark.parametrize("normalise", [False, True])
def test_prior_precisions_of_a_kernel_far_away_fit_float32(normalise):
    basis = ImportanceWeightedFourier(kernel(), 2000, 2, proposal=Proposal(normalise=normalise))
    with torch.no_grad():
        basis.kernel.lengthscale = 5.0 * kernel().lengthscale
        precision = basis.precision_diagonal()
        assert float(basis.log_variances().min()) < -100.0  # 1 / g would be infinite in float32
        assert bool(precision.float().isfinite().all())
        torch.testing.assert_close(basis.precision_diagonal(torch.arange(2000)), precision)


def test_normalised_weights_make_the_diagonal_exact():
    basis = ImportanceWeightedFourier(kernel(), 200, 2, proposal=Proposal(normalise=True)).double()
    with torch.no_grad():
        features = basis(inputs())
        diagonal = features.square() @ basis.weights().log_variances.exp()
    torch.testing.assert_close(diagonal, torch.full_like(diagonal, 1.7), rtol=1e-6, atol=0)


def test_gradient_of_the_weights():
    """d log g / d log l_k = 1 - w_k^2 l_k^2, with w the angular frequency."""
    basis = ImportanceWeightedFourier(kernel(), 20, 2).double()
    weights = basis.weights().log_variances
    one = torch.zeros_like(weights)
    one[3] = 1.0  # the fourth cosine
    scales = basis.kernel.lengthscale
    (slope,) = torch.autograd.grad(
        weights, [basis.kernel.parametrizations.lengthscale.original], one, retain_graph=True
    )
    (inner,) = torch.autograd.grad(
        scales.log().sum(), [basis.kernel.parametrizations.lengthscale.original]
    )
    with torch.no_grad():
        omega = basis.features.frequencies(torch.tensor([3]), 2, torch.float64)[0]
        want = 1.0 - (omega * scales).square()
    torch.testing.assert_close(slope / inner, want, rtol=1e-8, atol=1e-8)


def test_mistakes_are_explained():
    with pytest.raises(ConfigError, match=r"^family=cauchy: expected one of same, rbf"):
        Proposal("cauchy")
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match=r"proposal\.lengthscale=.* must be positive"):
            Proposal(lengthscale=value)
    with pytest.raises(ConfigError, match="other lengthscales of the kernel, got SpectralMixture"):
        ImportanceWeightedFourier(SpectralMixture(2, 2), 10, 2)
    with pytest.raises(ConfigError, match="RationalQuadratic"):
        ImportanceWeightedFourier(RationalQuadratic(2), 10, 2)
    with pytest.raises(ConfigError, match="must be even"):
        ImportanceWeightedFourier(Matern32(2), 11, 2)
