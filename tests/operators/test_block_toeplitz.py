"""Stationary kernels on regular grids: BTTB in two and three dimensions against dense matrices."""

import pytest
import torch
from draws import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import Matern32
from gpx.linalg import logdet_quadrature, probe_vectors, whittle
from gpx.operators import (
    BlockCirculant,
    BlockToeplitz,
    Toeplitz,
    convolution,
    dense_factorisations,
    grid_lags,
)


def points(spacing, grid):
    axes = [h * torch.arange(n, dtype=torch.float64) for h, n in zip(spacing, grid, strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, len(grid))


def tilted(tau):
    """Jointly even, not even in each coordinate, not separable."""
    a, b = tau[..., 0], tau[..., 1]
    return torch.exp(-(a**2 + b**2 + a * b / 2).sqrt())


@pytest.fixture(params=["fft", "dense"])
def path(request, monkeypatch):
    if request.param == "fft":
        monkeypatch.setattr(convolution, "DENSE_ENTRIES", 0)
    return request.param


def test_a_kernel_that_does_not_factorise(path):
    spacing, grid = torch.tensor([0.3, 0.4], dtype=torch.float64), (7, 9)
    x = points(spacing, grid)
    matrix = tilted(x[:, None] - x)
    operator = BlockToeplitz(tilted(grid_lags(spacing, grid)), grid=grid)
    right = draw(63, 3)
    torch.testing.assert_close(operator @ right, matrix @ right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator.mT @ right, matrix.mT @ right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator.to_dense(), matrix, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator[5], matrix[5], rtol=1e-12, atol=1e-12)


def test_three_dimensions_from_a_kernel_of_gpx(path):
    grid, spacing = (3, 4, 5), torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64)
    kernel = Matern32(3, [0.5, 0.7, 0.9], 1.3).double()
    zero = torch.zeros(1, 3, dtype=torch.float64)

    def covariance(tau):
        return kernel.evaluate(tau.reshape(-1, 3), zero).reshape(tau.shape[:-1])

    matrix = kernel.evaluate(points(spacing, grid), points(spacing, grid))
    right = draw(60, 2)
    for even in (True, False):
        operator = BlockToeplitz(covariance(grid_lags(spacing, grid, even=even)), grid=grid)
        assert operator.even is even
        torch.testing.assert_close(operator @ right, matrix @ right, rtol=1e-9, atol=1e-9)
    (operator @ right).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in kernel.parameters())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_any_grid(grid, even, by_fft):
    with pytest.MonkeyPatch.context() as patch:
        if by_fft:
            patch.setattr(convolution, "DENSE_ENTRIES", 0)
        shape = grid if even else [2 * n - 1 for n in grid]
        lags = draw(*shape)
        place = torch.cartesian_prod(*[torch.arange(n) for n in grid]).reshape(-1, len(grid))
        lag = place[:, None] - place
        lag = lag.abs() if even else lag % torch.tensor(shape)
        matrix = lags[tuple(lag.unbind(-1))]
        operator = BlockToeplitz(lags, grid=grid)
        right = draw(len(place), 2, seed=1)
        torch.testing.assert_close(operator @ right, matrix @ right, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(operator.mT @ right, matrix.mT @ right, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", [(2, 3), (3, 5), (2, 3, 5)])
def test_gradients(path, shape):
    """(2, 3) even corners, (3, 5) all lags of a (2, 3) grid, and a batch of the latter."""
    lags, right = draw(*shape).requires_grad_(), draw(6, 2, seed=1).requires_grad_()
    check = torch.autograd.gradcheck
    assert check(lambda a, v: BlockToeplitz(a, grid=(2, 3)) @ v, (lags, right))
    assert check(lambda a, v: BlockToeplitz(a, grid=(2, 3)).mT @ v, (lags, right))
    assert check(lambda a: BlockToeplitz(a, grid=(2, 3)).diagonal(), (lags,))


def test_a_separable_kernel_is_a_kronecker_product_of_toeplitz_matrices():
    ones = [torch.exp(-0.4 * torch.arange(n, dtype=torch.float64)) for n in (5, 6)]
    expected = torch.kron(*(Toeplitz(k).to_dense() for k in ones))
    torch.testing.assert_close(BlockToeplitz(torch.outer(*ones), grid=(5, 6)).to_dense(), expected)


def test_its_whittle_approximation_has_a_close_determinant():
    """Per axis n = 24 points, lengthscale 2: the relative error falls with the size."""
    errors = []
    for n in (8, 24):
        spacing = torch.tensor([1.0, 1.0], dtype=torch.float64)

        def covariance(tau):
            noise = 0.1 * (tau == 0).all(-1)
            return torch.exp(-0.5 * (tau**2).sum(-1) / 4.0) + noise

        matrix = BlockToeplitz(
            covariance(grid_lags(spacing, (n, n), even=True)), grid=(n, n)
        ).to_dense()
        true = torch.logdet(matrix)
        found = BlockCirculant(whittle(covariance, spacing, (n, n)), levels=2).logdet()
        errors.append(float((found - true).abs() / true.abs()))
    assert errors[1] < errors[0]
    assert errors[1] < 0.05


def test_errors_name_the_shapes():
    with pytest.raises(ShapeError, match="7, 9"):
        BlockToeplitz(draw(4, 4), grid=(4, 5))
    with pytest.raises(ShapeError, match="one spacing per axis"):
        grid_lags(torch.ones(3), (4, 5))


def test_log_determinants_beyond_dense_sizes_come_with_an_error_bar(monkeypatch):
    lags = grid_lags(torch.full((2,), 0.4, dtype=torch.float64), (12, 12), even=True)
    leaf = torch.exp(-lags.norm(dim=-1))
    leaf[0, 0] += 0.1
    leaf = leaf.requires_grad_()
    operator = BlockToeplitz(leaf, grid=(12, 12))
    dense = operator.to_dense()
    expected = torch.logdet(dense).detach()
    monkeypatch.setattr(dense_factorisations, "DENSE_ROWS", 100)
    with pytest.raises(ConfigError, match=r"logdet_quadrature\(.*operator\.preconditioner\(\)"):
        operator.logdet()
    probes = probe_vectors(144, 200, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = logdet_quadrature(
            operator.matmul, probes, steps=60, preconditioner=operator.preconditioner()
        )
    error = float(found.standard_error)
    assert 0.0 < error < 2.0
    assert abs(float(found.value - expected)) <= 4.0 * error + 1e-6


def test_only_even_lags_have_a_preconditioner():
    with pytest.raises(ShapeError, match="even lags"):
        BlockToeplitz(draw(3, 5), grid=(2, 3)).preconditioner()
