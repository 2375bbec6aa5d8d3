"""Eigenfunctions as preconditioner: the matrix they stand for, and what they are worth."""

import pytest
import torch

from gpx.bases import GridEigenfunctions, GridOptions, eigenfunction_preconditioner
from gpx.kernels import RBF
from gpx.linalg import conjugate_gradients, nystrom_preconditioner


def problem(n, lengthscale):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(n, generator=generator, dtype=torch.float64)
    kernel = RBF(outputscale=None).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel, x, y


@torch.no_grad()
def test_it_is_the_dense_matrix_of_the_eigenfunctions():
    kernel, x, y = problem(60, 0.3)
    options = GridOptions(points_per_dim=8)
    noise = torch.linspace(0.05, 0.2, 60, dtype=torch.float64)
    q = eigenfunction_preconditioner(kernel, x, noise, 25, grid=options)
    basis = GridEigenfunctions(kernel, 2, 25, options)
    basis.place(x)
    features = basis(x)
    dense = features @ features.mT + torch.diag(noise)
    torch.testing.assert_close(q.solve(y), torch.linalg.solve(dense, y), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.matmul(y), dense @ y, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.logdet(), torch.logdet(dense), rtol=1e-10, atol=0)
    assert q.below_kernel
    exact = kernel.evaluate(x, x) + torch.diag(noise)
    assert torch.linalg.eigvalsh(exact - dense).min() > -1e-8
    assert torch.linalg.eigvalsh(dense).min() > 0.0


@torch.no_grad()
@pytest.mark.parametrize(("lengthscale", "rank"), [(0.2, 100), (0.4, 60)])
def test_far_fewer_steps_than_without_and_fewer_than_a_subset(lengthscale, rank):
    kernel, x, y = problem(400, lengthscale)
    noise = 1e-4
    matrix = kernel.evaluate(x, x) + noise * torch.eye(400, dtype=torch.float64)
    chosen = x[:rank]
    subset = nystrom_preconditioner(
        kernel.evaluate(chosen, chosen), kernel.evaluate(chosen, x), noise
    )
    grid = eigenfunction_preconditioner(
        kernel, x, noise, rank, grid=GridOptions(points_per_dim=20, margin=0.0)
    )
    plain = conjugate_gradients(matrix, y, max_iterations=5000)
    with_grid = conjugate_gradients(matrix, y, preconditioner=grid.solve)
    with_subset = conjugate_gradients(matrix, y, preconditioner=subset.solve)
    scale = plain.solution.abs().max()
    assert (with_grid.solution - plain.solution).abs().max() < 1e-2 * scale
    assert plain.report.iterations >= 20 * with_grid.report.iterations
    assert with_grid.report.iterations < with_subset.report.iterations
