"""Low-rank parts of a grid's matrix, and sums over pairs of weights, against dense definitions."""

import pytest
import torch

from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import ProductsPlusNoise
from gpx.means import Zero
from gpx.methods.ski import gradients, pairs
from gpx.methods.ski.axis_spectra import parities
from gpx.methods.ski.covariance import AxisCovariance, LagCovariance, grid_covariance
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.low_rank import EigenPart, PivotedPart
from gpx.methods.ski.pairs import _PairProducts, weight_moments
from gpx.models import SKI

CPU = torch.device("cpu")
SIZES = {1: [12], 2: [9, 7], 3: [7, 6, 8]}


def inputs(d, n=50):
    generator = torch.Generator().manual_seed(0)
    return 4.0 * torch.rand(n, d, generator=generator, dtype=torch.float64)


def grid_of(d, method="cubic"):
    return InterpolationGrid.covering(inputs(d), SIZES[d], method)


def covariance_of(d, kernel=RBF, method="cubic"):
    return grid_covariance(grid_of(d, method), kernel(d, 1.2, 1.3).double(), CPU)


def dense_factor(part, size):
    return part.project(torch.eye(size, dtype=torch.float64))


def test_the_form_of_a_covariance_follows_kernel_and_grid():
    assert isinstance(covariance_of(1), LagCovariance)
    assert isinstance(covariance_of(2), AxisCovariance)
    assert isinstance(covariance_of(2, Matern32), LagCovariance)
    for d in (1, 2, 3):
        for kernel in (RBF, Matern32):
            grid, made = grid_of(d), kernel(d, 1.2, 1.3).double()
            points = torch.cartesian_prod(*[a.points(inputs(d)) for a in grid.axes])
            want = made.evaluate(points.reshape(grid.size, d))
            found = grid_covariance(grid, made, CPU).operator.to_dense()
            torch.testing.assert_close(found, want, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("method", ["cubic", "linear"])
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kernel", [RBF, Matern32])
def test_products_and_gram_matrix_are_those_of_the_array(d, kernel, method):
    grid, x = grid_of(d, method), inputs(d)
    part = covariance_of(d, kernel, method).low_rank(20, 0.0, 1000)
    assert isinstance(part, EigenPart)
    c = dense_factor(part, grid.size)
    assert c.shape == (20, grid.size)
    low = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(part.expand(low), c.mT @ low)
    torch.testing.assert_close(part.carried(), c.square().sum(0))
    weights = grid.weights(x)
    dense = weights.to_dense()
    torch.testing.assert_close(part.at(weights, x, "error"), c @ dense.mT)
    found = part.gram(weight_moments(weights, grid.shape))
    torch.testing.assert_close(found, c @ dense.mT @ dense @ c.mT, rtol=1e-10, atol=1e-10)
    wide = torch.randn(20, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    picked = torch.gather((c.mT @ wide).mT, 1, weights.indices)
    torch.testing.assert_close(part.picked(wide, weights.indices), picked)


@pytest.mark.parametrize("even", [True, False])
def test_on_fine_axes_the_gram_matrix_is_that_of_the_array(even, monkeypatch):
    """Through the few dimensions of the columns' products, with and without parities."""
    x = inputs(2, 400)
    sizes = [64, 81]
    if even:
        grid = InterpolationGrid.covering(x, sizes, "cubic")
    else:
        axes = [torch.linspace(-0.5, 2.2, m, dtype=torch.float64).exp() - 0.7 for m in sizes]
        grid = InterpolationGrid.given(x, axes, "linear", "keys")
    covariance = grid_covariance(grid, RBF(2, 2.0, 1.3).double(), CPU)
    part = covariance.low_rank(60, 0.0, 1000)
    width = 4 if even else 2
    for v in part.vectors:
        assert (parities(v) is not None) == even
        for basis in _PairProducts(v, width, parities(v))._bases:
            assert basis is not None
            assert all(b.shape[1] <= 0.6 * len(b) for b in basis)
    weights = grid.weights(x)
    moments = weight_moments(weights, grid.shape)
    found = part.gram(moments)
    seen = part.at(weights, x, "error")
    torch.testing.assert_close(found, seen @ seen.mT, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(pairs, "MAX_DIMENSION_SHARE", 0.0)
    v = part.vectors[0]
    assert _PairProducts(v, width, parities(v))._bases[0] is None
    torch.testing.assert_close(part.gram(moments), found, rtol=1e-9, atol=1e-9)


def test_of_a_product_the_largest_eigenvalues_are_kept():
    covariance = covariance_of(2)
    dense = covariance.operator.to_dense().detach()
    part = covariance.low_rank(20, 0.0, 1000)
    c = dense_factor(part, 63)
    want = torch.linalg.eigvalsh(dense).flip(0)[:20]
    torch.testing.assert_close((c @ c.mT).diagonal().sort(descending=True).values, want)
    assert part.below
    assert float(torch.linalg.eigvalsh(dense - c.mT @ c)[0]) > -1e-12
    tolerance = 0.05
    fewer = covariance.low_rank(63, tolerance, 1000)
    left = dense.trace() - dense_factor(fewer, 63).square().sum()
    assert 0.0 <= float(left) <= tolerance
    one_less = covariance.low_rank(fewer.rank - 1, 0.0, 1000)
    assert float(dense.trace() - dense_factor(one_less, 63).square().sum()) > tolerance


def test_of_a_radial_kernel_the_diagonal_in_that_basis_is_kept():
    covariance = covariance_of(2, Matern32)
    dense = covariance.operator.to_dense().detach()
    part = covariance.low_rank(63, 0.0, 1000)
    basis = part.expand(torch.eye(63, dtype=torch.float64)) / part.roots
    torch.testing.assert_close(basis.mT @ basis, torch.eye(63, dtype=torch.float64))
    torch.testing.assert_close((basis.mT @ dense @ basis).diagonal(), part.roots.square())
    assert not part.below


@pytest.mark.parametrize("kernel", [RBF, Matern32])
@pytest.mark.parametrize("d", [2, 3])
def test_trace_gradients_are_those_of_autograd(d, kernel):
    covariance = covariance_of(d, kernel)
    part = covariance.low_rank(12, 0.0, 1000)
    generator = torch.Generator().manual_seed(2)
    inner = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    inner = inner + inner.mT
    basis = part.expand(torch.eye(12, dtype=torch.float64)) / part.roots
    leaves = [t.detach().requires_grad_() for t in covariance.tensors]
    if isinstance(covariance, AxisCovariance):
        operator = AxisCovariance(covariance.grid, leaves).operator
        # the same matrix as S^{-1} (I - B^{-1}) S^{-1}, B^{-1} by a scale and the rest
        scale = 0.5 + torch.rand(12, generator=generator, dtype=torch.float64)
        inverse = torch.eye(12, dtype=torch.float64) - part.roots.outer(part.roots) * inner
        found = part.axis_gradients(inverse / scale.outer(scale), scale)
    else:
        operator = LagCovariance(covariance.grid, *leaves).operator
        found = [part.lag_gradient(inner)]
    (inner * (basis.mT @ operator.to_dense() @ basis)).sum().backward()
    for mine, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(mine, leaf.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", ["everywhere", "a corner without any", "most in one place"])
def test_gradients_by_an_inverse_in_float32_are_those_in_float64(rows, monkeypatch):
    """To 1e-6 of each, by a look at float32 alone and at what is taken where it is not enough."""
    generator = torch.Generator().manual_seed(4)
    x = 6.0 * torch.rand(3000, 2, generator=generator, dtype=torch.float64)
    if rows == "a corner without any":
        x = x[(x < 3.0).any(1)]
    if rows == "most in one place":
        x[300:] *= 0.2
    model = SKI(
        kernel=RBF(2, 0.6, 1.3), mean=Zero(), likelihood=Gaussian(1e-3), num_inputs=2, grid_size=60
    ).double()
    model.initialise(x, x[:, 0], generator=generator)
    system = model.system(x)
    assert isinstance(system.part, EigenPart)
    assert isinstance(system.covariance, AxisCovariance)
    hyperparameters = [*model.kernel.parameters(), *model.likelihood.parameters()]
    found = []
    for least in (2, 10**9):
        monkeypatch.setattr(gradients, "MIN_FLOAT32_SIZE", least)
        slopes = gradients.carried_gradient(system)
        by_tensor = [s.reshape(t.shape) for s, t in zip(slopes, system.tensors, strict=True)]
        found.append(
            torch.cat(
                [
                    g.flatten()
                    for g in torch.autograd.grad(
                        system.tensors, hyperparameters, by_tensor, retain_graph=True
                    )
                ]
            )
        )
    torch.testing.assert_close(*found, rtol=1e-6, atol=0.0)
    monkeypatch.setattr(gradients, "MIN_FLOAT32_SIZE", 2)
    inverse, _ = gradients._inverse(system.preconditioner.capacitance, single=True)
    assert inverse.dtype == torch.float32
    monkeypatch.setattr(gradients, "MAX_INVERSE_DIAGONAL", 0.5)
    inverse, scale = gradients._inverse(system.preconditioner.capacitance, single=True)
    assert inverse.dtype == torch.float64
    assert bool((scale == 1.0).all())


def test_the_residual_of_pivots_is_within_its_bound():
    covariance = covariance_of(1)
    part = covariance.low_rank(5, 0.0, 1000)
    assert isinstance(part, PivotedPart)
    residual = covariance.operator.to_dense().detach() - part.factor.mT @ part.factor
    torch.testing.assert_close(part.missing, residual.diagonal().max())
    assert covariance.low_rank(5, 0.0, 3).rank == 3


def test_predictions_process_pivots_within_the_memory_limit(monkeypatch):
    """Columns are looked up at all 16 points of a stencil; an axis of 1,600 has no eigenvectors."""
    x = inputs(2, 300)
    kernel = Matern32(2, 1.0, 1.0)
    parts = {"mean": Zero(), "likelihood": Gaussian(0.1), "num_inputs": 2}
    model = SKI(kernel=kernel, grid_size=[1600, 8], rank=20, **parts).double()
    model.initialise(x, x[:, 0], generator=torch.Generator())
    with pytest.warns(UserWarning, match="of rank 20 lacks up to .* raise rank"):
        posterior = model.condition(x, x[:, 0])
    held, at = [], PivotedPart.at

    def watched(part, weights, *rest):
        held.append(part.rank * weights.values.numel())
        return at(part, weights, *rest)

    want = posterior.predict(x).variance
    monkeypatch.setattr(PivotedPart, "at", watched)
    monkeypatch.setattr("gpx.methods.ski.posterior.CHUNK_ENTRIES", 10_000)
    torch.testing.assert_close(posterior.predict(x).variance, want)
    assert 0 < max(held) <= 10_000


def test_draws_of_products_plus_noise_have_its_covariance():
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    noise = torch.tensor(0.3, dtype=torch.float64)
    q = ProductsPlusNoise(factor.matmul, factor.mT.matmul, factor @ factor.mT, 8, noise)
    dense = factor.mT @ factor + 0.3 * torch.eye(8, dtype=torch.float64)
    root = q.draws(torch.eye(11, dtype=torch.float64))
    torch.testing.assert_close(root @ root.mT, dense)
    right = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(q.solve(right), torch.linalg.solve(dense, right))
    torch.testing.assert_close(q.solve(right[:, 0]), torch.linalg.solve(dense, right[:, 0]))
    torch.testing.assert_close(q.quadratic_form(right), (right * q.solve(right)).sum(0))
    torch.testing.assert_close(q.matmul(right), dense @ right)
    torch.testing.assert_close(q.logdet(), torch.logdet(dense))
