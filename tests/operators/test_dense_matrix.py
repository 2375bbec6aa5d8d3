"""Results without structure are dense, exact, and refused where the matrix would be large."""

import gpytorch
import pytest
import torch
from draws import draw

from gpx.errors import ConfigError, DTypeError, NotPositiveDefinite, ShapeError
from gpx.operators import Circulant, DenseMatrix, LowRankPlusDiagonal, Toeplitz


def base(n=12, k=3):
    return LowRankPlusDiagonal(draw(n, k), draw(n, seed=1).square() + 0.5)


class Features(gpytorch.kernels.Kernel):
    """phi(x) . phi(x'), given to GPyTorch as a low-rank operator."""

    def forward(self, x1, x2, diag=False, **options):
        first, second = (torch.cat([x, x.square(), x.sin()], -1) for x in (x1, x2))
        if diag:
            return (first * second).sum(-1)
        if x1.shape == x2.shape and torch.equal(x1, x2):
            return LowRankPlusDiagonal(first, torch.full((1,), 1e-13, dtype=x1.dtype))
        return first @ second.mT


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), Features()

    def forward(self, x):
        covariance = self.covar_module(x).evaluate_kernel()  # the operator itself, not GPyTorch's
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), covariance)


def test_gpytorch_s_fantasies_are_the_model_with_more_data():
    x, y, new, at = draw(15, 1), draw(15, seed=1), draw(3, 1, seed=2), draw(5, 1, seed=3)
    y_new = draw(3, seed=4)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.3
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        model = Model(x, y, likelihood).double().eval()
        likelihood.eval()
        model(at)  # fantasies start from the caches of a prediction
        fantasy = model.get_fantasy_model(new, y_new)(at)
        inputs, targets = torch.cat([x, new]), torch.cat([y, y_new])
        k = lambda a, b: Features().double()(a, b).to_dense()  # noqa: E731
        noisy = k(inputs, inputs) + likelihood.noise * torch.eye(18).double()
        cross = torch.linalg.solve(noisy, k(inputs, at)).mT
        torch.testing.assert_close(fantasy.mean, cross @ targets, rtol=0, atol=1e-9)
        variance = (k(at, at) - cross @ k(inputs, at)).diagonal()
        torch.testing.assert_close(fantasy.variance, variance, rtol=0, atol=1e-9)


def test_rows_that_do_not_fit_or_leave_no_covariance_are_refused():
    cross, corner = draw(2, 12), 100.0 * torch.eye(2).double()
    for wrong in ((cross[:, :11], corner), (cross, corner[:1])):
        with pytest.raises(ShapeError, match="cannot be appended to LowRankPlusDiagonal"):
            base().cat_rows(*wrong)
    with pytest.raises(DTypeError, match="convert one of them"):
        base().cat_rows(cross.float(), corner)
    with pytest.raises(NotPositiveDefinite, match="cat_rows needs a symmetric matrix"):
        base().cat_rows(cross, corner + torch.tensor([[0.0, 5.0], [0.0, 0.0]]).double())
    with pytest.raises(NotPositiveDefinite, match="cat_rows needs a symmetric matrix"):
        Toeplitz(draw(12), draw(12, seed=1)).cat_rows(cross, corner)
    with pytest.raises(NotPositiveDefinite, match="DenseMatrix"):
        base().cat_rows(cross, 1e-3 * corner)


def test_elementwise_products_of_one_kind_keep_their_structure():
    toeplitz, general = Toeplitz(draw(7)), Toeplitz(draw(7, seed=1), draw(5, seed=2))
    assert isinstance(toeplitz * toeplitz, Toeplitz)
    assert isinstance(general * general, Toeplitz)
    torch.testing.assert_close((general * general).to_dense(), general.to_dense().square())
    circulant = Circulant(draw(6))
    assert isinstance(circulant * circulant, Circulant)
    assert isinstance(base() * base(), DenseMatrix)


def test_large_results_without_structure_are_refused(monkeypatch):
    monkeypatch.setattr("gpx.operators.dense_factorisations.DENSE_ROWS", 4)
    large, other = (
        Toeplitz(torch.arange(5, 0, -1).double()),
        LowRankPlusDiagonal(draw(5, 1), draw(5)),
    )
    for refused in (
        large.diagonalization,
        large.root_inv_decomposition,
        large.root_decomposition,
        lambda: large * other,
        lambda: large.cat_rows(draw(1, 5), draw(1, 1)),
        lambda: other.expand(2, 5, 5).sum(0),
        lambda: other.expand(2, 5, 5).prod(0),
    ):
        with pytest.raises(ConfigError, match="at most 4 rows"):
            refused()
