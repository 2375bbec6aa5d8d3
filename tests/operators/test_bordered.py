"""Appended rows: what GPyTorch's fantasies ask of a covariance, at sizes with and without roots."""

import gpytorch
import pytest
import torch

from gpx.errors import ConfigError, DTypeError, NotPositiveDefinite, ShapeError
from gpx.operators import (
    Bordered,
    Circulant,
    Kronecker,
    KroneckerPlusDiagonal,
    LowRankPlusDiagonal,
    Toeplitz,
)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def base(n=12, k=3):
    return LowRankPlusDiagonal(draw(n, k), draw(n, seed=1).square() + 0.5)


def whole(operator, cross, corner):
    top = torch.cat([operator.to_dense(), cross.mT], -1)
    return torch.cat([top, torch.cat([cross, corner], -1)], -2)


def test_roots_of_rows_of_order_one():
    """Where the package's own roots, which take the two of A for inverses, are off the most."""
    square = draw(3, 3, seed=4)
    factor = square @ square.mT / 3 + torch.eye(3).double()
    circle = torch.tensor([3.0, 0.7, 0.2, 0.1, 0.2, 0.7]).double()
    for operator in (
        base(),
        KroneckerPlusDiagonal(Kronecker(factor, factor), torch.tensor([0.3]).double()),
        Circulant(circle),
    ):
        n = operator.shape[-1]
        cross = draw(2, n, seed=2)
        corner = cross @ torch.linalg.solve(operator.to_dense(), cross.mT) + torch.eye(2).double()
        found = operator.cat_rows(cross, corner)
        dense = whole(operator, cross, corner)
        root = found.root_decomposition().root.to_dense()
        inverse = found.root_inv_decomposition().root.to_dense()
        torch.testing.assert_close(root @ root.mT, dense, rtol=0, atol=1e-11)
        torch.testing.assert_close(inverse @ inverse.mT, dense.inverse(), rtol=0, atol=1e-10)


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


def test_beyond_dense_roots_it_still_solves():
    """2,500 rows: roots are refused, and solves and determinants are those of the structure."""
    column = torch.exp(-torch.arange(2500.0, dtype=torch.float64))
    column[0] += 0.5
    operator, cross, corner = Toeplitz(column), draw(2, 2500), 1e4 * torch.eye(2).double()
    with pytest.raises(ConfigError, match="at most 2000 rows"):
        operator.cat_rows(cross, corner)
    found = operator.cat_rows(cross, corner, generate_roots=False)
    right = draw(2502, 1, seed=5)
    torch.testing.assert_close(found @ found.solve(right), right, rtol=0, atol=1e-10)
    schur = corner - cross @ operator.solve(cross.mT)
    torch.testing.assert_close(found.logdet(), operator.logdet() + torch.logdet(schur))


def test_mistakes():
    cross, corner = draw(2, 12), 100.0 * torch.eye(2).double()
    with pytest.raises(ShapeError, match=r"\(2, 11\) and \(2, 2\) cannot be appended"):
        base().cat_rows(cross[:, :11], corner)
    with pytest.raises(ShapeError, match="cannot be appended"):
        Bordered(base(), cross, corner[:1])
    with pytest.raises(DTypeError, match="convert them to one"):
        base().cat_rows(cross.float(), corner)
    with pytest.raises(NotPositiveDefinite, match="Schur complement of the 2 rows appended to Low"):
        base().cat_rows(cross, 1e-3 * corner)
    with pytest.raises(NotPositiveDefinite, match="cat_rows needs a symmetric matrix"):
        base().cat_rows(cross, corner + torch.tensor([[0.0, 5.0], [0.0, 0.0]]).double())
    with pytest.raises(NotPositiveDefinite, match="cat_rows needs a symmetric matrix"):
        Toeplitz(draw(12), draw(12, seed=1)).cat_rows(cross, corner)
