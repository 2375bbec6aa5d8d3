"""Kernel matrices in 100 dimensions from 10^200 inducing points (Evans thesis, figure 4.2)."""

import statistics

import pytest
import torch

from gpx.bases import GridEigenfunctions, GridOptions
from gpx.kernels import RBF

DIMENSIONS, NODES = 100, 100


def best_error(matrix, rank, generator):
    """Relative Frobenius error of the best matrix of a rank, from its leading eigenvalues.

    Subspace iteration with half as many vectors again: the spectrum drops after the rank, so that
    a few products give the leading eigenvalues to all digits that matter.
    """
    vectors = torch.randn(len(matrix), rank + rank // 2, generator=generator, dtype=matrix.dtype)
    for _ in range(4):
        vectors, _ = torch.linalg.qr(matrix @ vectors)
    values = torch.linalg.eigvalsh(vectors.mT @ matrix @ vectors)[-rank:]
    return float((matrix.square().sum() - values.square().sum()).clamp(min=0).sqrt())


@torch.no_grad()
def errors(points, rank, seed):
    """Per matrix (training points, all points): eigenfunctions' error over best, over Nystrom's."""
    generator = torch.Generator().manual_seed(seed)
    bound = 3.0**0.5
    uniform = torch.rand(points, DIMENSIONS, generator=generator, dtype=torch.float64)
    x = bound * (2.0 * uniform - 1.0)
    kernel = RBF(ard_num_dims=DIMENSIONS, lengthscale=10.0, outputscale=None).double()
    axis = torch.linspace(-bound, bound, NODES, dtype=torch.float64).tolist()
    grid = GridOptions(axes=[axis] * DIMENSIONS)
    basis = GridEigenfunctions(kernel, DIMENSIONS, rank, grid).double()
    basis.place(x)
    features = basis(x)
    half = points // 2
    chosen = x[torch.randperm(half, generator=generator)[:rank]]
    eye = torch.eye(rank, dtype=x.dtype)
    lower = torch.linalg.cholesky(kernel.evaluate(chosen, chosen) + 1e-10 * eye)
    found = []
    for count in (half, points):
        matrix = kernel.evaluate(x[:count], x[:count])
        ours = float(torch.linalg.norm(matrix - features[:count] @ features[:count].mT))
        cross = kernel.evaluate(chosen, x[:count])
        nystrom = torch.linalg.solve_triangular(lower, cross, upper=False)
        other = float(torch.linalg.norm(matrix - nystrom.mT @ nystrom))
        found.append((ours / best_error(matrix, rank, generator), ours / other))
    return found


def test_the_best_error_is_that_of_all_eigenvalues():
    generator = torch.Generator().manual_seed(0)
    x = 3.0**0.5 * (2.0 * torch.rand(600, DIMENSIONS, generator=generator).double() - 1.0)
    matrix = torch.exp(-0.5 * torch.cdist(x, x).square() / 100.0)
    tail = torch.linalg.eigvalsh(matrix)[:-101]
    assert best_error(matrix, 101, generator) == pytest.approx(float(tail.norm()), rel=1e-4)


def test_a_hundred_and_one_eigenfunctions_are_nearly_the_best():
    """The constant and one linear function an input; one small draw, ratios as at full size."""
    for over_best, over_nystrom in errors(2000, 101, 0):
        assert 1.0 - 1e-9 <= over_best <= 1.1
        assert over_nystrom <= 0.4


@pytest.mark.slow
def test_reconstruction_at_full_size():
    """Ten draws of 5,000 points, half of them training points; the ratios of mean errors."""
    draws = [errors(5000, 101, seed) for seed in range(10)]
    for which in (0, 1):
        assert statistics.fmean(d[which][0] for d in draws) <= 1.1
        assert statistics.fmean(d[which][1] for d in draws) <= 0.4
