"""Q = Q_xx + noise I against its dense self, with A kept and with A recomputed."""

import pytest
import torch

from gpx.inference import nystrom
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels import RBF, Matern32


@pytest.fixture(params=["kept", "recomputed"])
def pair(request, monkeypatch):
    monkeypatch.setitem(nystrom.BLOCK_BYTES, "cpu", 7 * 9 * 8)  # 7 points a block
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=draws, dtype=torch.float64)
    z, y = x[:9] + 0.1, x.sum(1).sin()
    kernel = Matern32(lengthscale=1.3).double()
    noise = torch.tensor(0.05, dtype=torch.float64)
    budget = 2**30 if request.param == "kept" else 20 * 9 * 8
    with torch.no_grad():
        q = NystromMatrix.of(kernel, x, z, y, noise, memory_budget=budget)
        cross = kernel.evaluate(z, x)
        low_rank = cross.mT @ torch.linalg.solve(kernel.evaluate(z), cross)
        k = kernel.evaluate(x) + noise * torch.eye(50, dtype=torch.float64)
    assert (q.store.whole is None) == (request.param == "recomputed")
    return q, low_rank + noise * torch.eye(50, dtype=torch.float64), k, low_rank, y


@pytest.mark.parametrize("columns", [None, 3])
def test_products_solves_and_roots(pair, columns):
    q, dense, k, low_rank, _ = pair
    shape = (50,) if columns is None else (50, columns)
    right = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    trace = (k - dense).trace()
    shifted = dense + trace * torch.eye(50, dtype=torch.float64)

    def same(found, want):
        torch.testing.assert_close(found, want, rtol=1e-8, atol=1e-9)

    same(q.matmul(right), dense @ right)
    same(q.solve(right), torch.linalg.solve(dense, right))
    same(q.shifted_solve(right), torch.linalg.solve(shifted, right))
    same(q.root_matmul(q.root_matmul(right)), dense @ right)
    same(q.inverse_root_matmul(q.root_matmul(right)), right)
    same(q.logdet(), torch.logdet(dense))
    same(q.largest_eigenvalue(), torch.linalg.eigvalsh(low_rank)[-1])
    same(q.sums.trace_error, trace)
    assert q.below_kernel
    assert torch.linalg.eigvalsh(k - dense).min() > -1e-10


@torch.no_grad()
def test_scale_estimated_by_the_bound_is_biased_upwards():
    # y ~ N(0, K): the bound's estimate of the scale is y^T Q^{-1} y / n, the exact one y^T K^{-1} y
    x = torch.linspace(0, 10, 100, dtype=torch.float64)[:, None]
    kernel, noise = RBF().double(), torch.tensor(0.1, dtype=torch.float64)
    kernel.lengthscale = kernel.outputscale = torch.ones((), dtype=torch.float64)
    k = kernel.evaluate(x) + noise * torch.eye(100, dtype=torch.float64)
    golden = {4: (4.3235, 6.2430), 8: (1.2653, 0.084878), 12: (1.00956, 0.020461)}
    for m, (mean, variance) in golden.items():
        z = torch.linspace(0, 10, m, dtype=torch.float64)[:, None]
        solved = NystromMatrix.of(kernel, x, z, x[:, 0], noise).solve(k)
        assert float(solved.trace()) / 100 == pytest.approx(mean, rel=1e-4)
        second = float((solved @ solved).trace())
        assert 2 * second / 100**2 == pytest.approx(variance, rel=1e-4)


def test_another_target(pair):
    q, dense, _, _, y = pair
    other = y.cos()
    moved = q.with_target(other)
    sums, inner = moved.sums, moved.inner
    fit = (sums.squared_residual - sums.projected @ inner.weights) / moved.noise
    torch.testing.assert_close(fit, other @ torch.linalg.solve(dense, other))
    torch.testing.assert_close(q.sums.squared_residual, y @ y)
