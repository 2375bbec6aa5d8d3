"""Waves as a low-rank part of a Toeplitz matrix, against dense definitions."""

import pytest
import torch

from gpx.kernels import RBF, Matern12, Matern32
from gpx.methods.ski.covariance import grid_covariance
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.low_rank import PivotedPart
from gpx.methods.ski.pairs import weight_moments
from gpx.methods.ski.waves import WavePart, transformed_diagonals, wave_products

CPU = torch.device("cpu")


def inputs(n=50):
    generator = torch.Generator().manual_seed(0)
    return 4.0 * torch.rand(n, 1, generator=generator, dtype=torch.float64)


def problem(kernel=Matern32, method="cubic", lengthscale=0.4, size=23):
    x = inputs()
    grid = InterpolationGrid.covering(x, [size], method)
    covariance = grid_covariance(grid, kernel(1, lengthscale, 1.3).double(), CPU)
    return x, grid, covariance


def normals(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("method", ["cubic", "linear"])
@pytest.mark.parametrize("waves", [5, 23])
def test_products_and_gram_matrix_are_those_of_the_array(method, waves):
    x, grid, covariance = problem(method=method)
    part = covariance.low_rank(20, 0.0, 1000, waves)
    assert isinstance(part, WavePart)
    assert part.rank == 2 * waves
    c = part.project(torch.eye(grid.size, dtype=torch.float64))
    low = normals(part.rank, 3)
    torch.testing.assert_close(part.expand(low), c.mT @ low)
    weights = grid.weights(x)
    dense = weights.to_dense()
    torch.testing.assert_close(part.at(weights, x, "error"), c @ dense.mT)
    found = part.gram(weight_moments(weights, grid.shape))
    torch.testing.assert_close(found, c @ dense.mT @ dense @ c.mT, rtol=1e-11, atol=1e-11)
    wide = normals(part.rank, 50)
    picked = torch.gather((c.mT @ wide).mT, 1, weights.indices)
    torch.testing.assert_close(part.picked(wide, weights.indices), picked)


def test_products_of_waves_are_looked_up():
    """The same bits whichever waves were asked for before; high ones alone are computed."""
    x = torch.linspace(0.0, 4.0, 3000, dtype=torch.float64).unsqueeze(1)
    grid = InterpolationGrid.covering(x, [200], "cubic")
    low, some, high = torch.arange(5), torch.tensor([3, 0, 20, 7, 12]), torch.tensor([150, 3])
    data, period = Gathered.of(x, grid), 405
    assert data.by_cell is not None
    seen = transformed_diagonals(data.moments, 200, period)
    for waves in (low, low, some, high, torch.arange(40).flip(0), low):
        found = data.products_of_waves(waves, period)
        torch.testing.assert_close(found, wave_products(waves, seen), rtol=1e-11, atol=1e-9)
        assert torch.equal(found, Gathered.of(x, grid).products_of_waves(waves, period))
        found.zero_()  # the caller may overwrite them
    assert [kept for _, kept in data._products] == [16, 32, 64]


@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32])
def test_waves_are_below_the_matrix_with_the_stated_rest(kernel):
    _, grid, covariance = problem(kernel)
    dense = covariance.operator.to_dense().detach()
    for waves in (1, 6, 25):  # 25 are all of the circulant
        part = covariance.low_rank(20, 0.0, 1000, waves)
        c = part.project(torch.eye(grid.size, dtype=torch.float64))
        left = dense - c.mT @ c
        assert float(torch.linalg.eigvalsh(left)[0]) > -1e-12
        want = part.missing.expand(23)
        torch.testing.assert_close(left.diagonal(), want, rtol=0.0, atol=1e-12)
    assert float(part.missing) < 1e-14


def test_as_few_as_the_trace_error_allows():
    _, grid, covariance = problem(RBF)
    part = covariance.low_rank(20, 0.5, 1000, 24)
    fewer = covariance.low_rank(20, 0.0, 1000, part.rank // 2 - 1)
    assert float(part.missing) * grid.size <= 0.05 < float(fewer.missing) * grid.size


def test_a_kernel_that_has_not_decayed_takes_pivots():
    _, _, covariance = problem(RBF, lengthscale=3.0)
    assert isinstance(covariance.low_rank(20, 0.0, 1000, 24), PivotedPart)


@pytest.mark.parametrize("waves", [5, 25])
def test_gradient_by_the_lags(waves):
    """Against autograd through the dense matrices of all the waves in use."""
    x, grid, covariance = problem()
    lags = covariance.tensors[0].detach().requires_grad_()
    part = covariance.low_rank(20, 0.0, 1000, waves)
    period = part.period
    generator = torch.cat([lags, lags[-1:].expand(period - 45), lags[1:].flip(0)])
    strengths = torch.fft.fft(generator).real[part.waves]
    places = torch.arange(23, dtype=torch.float64)
    turn = 2.0 * torch.pi / period * (part.waves[:, None] * places)
    waved = torch.cat([turn.cos(), turn.sin()])
    share = torch.where(part.single, 1.0, 2.0).double() / period
    low_rank = waved.mT @ ((share * strengths).repeat(2)[:, None] * waved)
    w = grid.weights(x).to_dense()
    u, z, noise = normals(50, 3), normals(50, 3).flip(0), 0.1
    matrix = w @ low_rank @ w.mT + noise * torch.eye(50, dtype=torch.float64)
    through = (z * (w @ low_rank @ w.mT @ z)).sum(0).mean()
    whole = covariance.operator._rebuilt(lags).to_dense()
    seen = w.mT @ u
    every = (seen * (whole @ w.mT @ z)).sum(0).mean()
    (torch.logdet(matrix) + every - through).backward()
    c = part.project(torch.eye(23, dtype=torch.float64))
    inner = c @ w.mT @ torch.linalg.solve(matrix.detach(), w @ c.mT)
    both = w.mT @ torch.cat([u, z], 1)
    found = part.carried_gradient(inner.diagonal()) + part.gradient_outside(both)
    torch.testing.assert_close(found, lags.grad, rtol=1e-9, atol=1e-9)
