"""Interpolation axis by axis against the dense matrices of structured kernel interpolation."""

import pytest
import torch

from gpx.bases import GridEigenfunctions, GridInterpolation, GridOptions
from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32, Matern52
from gpx.linalg import LowRankPlusNoise, RegularAxis
from gpx.operators import Interpolated, Interpolation


def draw(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(d=3, interpolant="cubic", jitter=0.0):
    kernel = (
        RBF(ard_num_dims=d, lengthscale=[0.4, 0.3, 0.6][:d], outputscale=1.3)
        if interpolant == "cubic"
        else RBF(ard_num_dims=d, lengthscale=[0.3] * d, outputscale=1.3)
    ).double()
    axes = [RegularAxis.covering(0.0, 1.0, 6 + i) for i in range(d)]
    grid = GridInterpolation(kernel, axes, interpolant, jitter)
    nodes = torch.cartesian_prod(*[axis.points(draw(1)) for axis in axes]).reshape(-1, d)
    return kernel, axes, grid, nodes


@torch.no_grad()
@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_elementwise_form_equals_the_low_dimensional_route(d):
    kernel, axes, grid, nodes = problem(d)
    x, z = draw(20, d, seed=1), draw(9, d, seed=2)
    left, right = Interpolation.of(x, axes), Interpolation.of(z, axes)
    gram = kernel.evaluate(nodes, nodes)
    want = left.to_dense() @ gram @ right.to_dense().mT
    torch.testing.assert_close(grid.operator(x, z).to_dense(), want, rtol=1e-11, atol=1e-11)
    route = Interpolated(left, gram)
    vectors = draw(20, 2, seed=3)
    torch.testing.assert_close(grid.operator(x) @ vectors, route @ vectors, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("interpolant", ["cubic", "kernel"])
def test_data_on_the_grid_have_the_exact_kernel(interpolant):
    kernel, _, grid, nodes = problem(3, interpolant)
    inner = ((nodes >= 0.0) & (nodes <= 1.0)).all(1)
    x = nodes[inner][::5]
    torch.testing.assert_close(
        grid.operator(x).to_dense(), kernel.evaluate(x, x), rtol=1e-9, atol=1e-9
    )


@torch.no_grad()
def test_the_kernel_interpolant_is_the_subset_of_regressors():
    kernel, axes, grid, nodes = problem(2, "kernel")
    x = draw(15, 2, seed=4)
    cross = kernel.evaluate(x, nodes)
    want = cross @ torch.linalg.solve(kernel.evaluate(nodes, nodes), cross.mT)
    torch.testing.assert_close(grid.operator(x).to_dense(), want, rtol=1e-9, atol=1e-9)
    options = GridOptions(axes=[axis.points(x).tolist() for axis in axes])
    basis = GridEigenfunctions(kernel, 2, 10**6, options, 0.0).double()
    basis.place(x)
    features = basis(x)
    torch.testing.assert_close(features @ features.mT, want, rtol=1e-8, atol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize("rank", [1, 20, 336])
def test_the_low_rank_route_is_the_cut_of_the_grid(rank):
    kernel, axes, grid, nodes = problem(3)
    x = draw(12, 3, seed=5)
    values, vectors = torch.linalg.eigh(kernel.evaluate(nodes, nodes))
    kept = vectors[:, -rank:] * values[-rank:].clamp(min=0.0).sqrt()
    want = Interpolation.of(x, axes).to_dense() @ kept
    found = grid.low_rank(x, rank)
    assert found.shape == (12, rank)
    torch.testing.assert_close(found @ found.mT, want @ want.mT, rtol=1e-9, atol=1e-9)
    q = LowRankPlusNoise(found.mT.contiguous(), 0.1)
    dense = want @ want.mT + 0.1 * torch.eye(12)
    torch.testing.assert_close(q.solve(x), torch.linalg.solve(dense, x), rtol=1e-7, atol=1e-8)


def test_many_dimensions_and_gradients():
    d = 40
    parts = [Matern52(active_dims=[i], lengthscale=3.0) for i in range(d)]
    kernel = parts[0]
    for part in parts[1:]:
        kernel = kernel * part
    kernel = kernel.double()
    axes = [RegularAxis.covering(0.0, 1.0, 8) for _ in range(d)]
    x = draw(30, d, seed=6)
    operator = GridInterpolation(kernel, axes).operator(x)
    exact = kernel.evaluate(x, x)
    torch.testing.assert_close(operator.to_dense(), exact, rtol=2e-3, atol=2e-3)
    (slope,) = torch.autograd.grad(
        (operator @ x).sum(), [parts[3].parametrizations.lengthscale.original]
    )
    (want,) = torch.autograd.grad(
        (exact @ x).sum(), [parts[3].parametrizations.lengthscale.original]
    )
    assert float(slope) == pytest.approx(float(want), rel=5e-2)


def test_mistakes_are_explained():
    axes = [RegularAxis.covering(0.0, 1.0, 8)] * 2
    with pytest.raises(ConfigError, match="interpolant=spline"):
        GridInterpolation(RBF(), axes, "spline")
    with pytest.raises(ConfigError, match="no product of one-dimensional kernels"):
        GridInterpolation(Matern32(), axes)
