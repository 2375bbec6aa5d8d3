"""Variance that nearby data explain beyond a projection: conditioning on both at once, densely."""

import pytest
import torch
from linear_features import draw

from gpx.inference import predictive_variance
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.inference.predictive_variance import explained_by_neighbours
from gpx.kernels import Matern32
from gpx.models import IterativeOptions

NOISE = torch.tensor(0.1, dtype=torch.float64)


@torch.no_grad()
def problem(n=30, t=4, b=7):
    x, at, projection = draw(n, 2, seed=1), draw(b, 2, seed=2), draw(n, t, seed=3)
    system = PreconditionedKernel(Matern32(2, 0.8, 1.5), x, NOISE, IterativeOptions(rank=5))
    matrix = system.kernel.evaluate(x) + NOISE * torch.eye(n, dtype=torch.float64)
    cross = system.kernel.evaluate(x, at)
    factor = torch.linalg.cholesky(projection.mT @ matrix @ projection)
    whiten = torch.linalg.inv(factor)
    image = matrix @ projection @ whiten.mT
    rest = cross - image @ (whiten @ projection.mT @ cross)
    return system, matrix, cross, projection, image, rest


@pytest.mark.parametrize("block_bytes", [1, 2**26])
@pytest.mark.parametrize("neighbours", [1, 6])
def test_it_is_the_gain_of_conditioning_on_both(monkeypatch, neighbours, block_bytes):
    monkeypatch.setattr(predictive_variance, "BLOCK_BYTES", block_bytes)
    system, matrix, cross, projection, image, rest = problem()
    found = explained_by_neighbours(system, image, rest, neighbours)

    def explained(functionals, k):
        inner = functionals.mT @ matrix @ functionals
        along = functionals.mT @ k
        return along @ torch.linalg.solve(inner, along)

    identity = torch.eye(len(matrix), dtype=torch.float64)
    for point, k in enumerate(cross.mT):
        near = rest[:, point].abs().topk(neighbours).indices
        both = explained(torch.cat([projection, identity[:, near]], 1), k)
        want = both - explained(projection, k)
        torch.testing.assert_close(found[point], want, rtol=1e-6, atol=1e-10)
        assert float(both) <= float(k @ torch.linalg.solve(matrix, k)) + 1e-12
