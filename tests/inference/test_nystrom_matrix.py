"""Q = Q_xx + noise I against its dense self, with A kept and with A recomputed."""

import pytest
import torch

from gpx.inference import nystrom
from gpx.inference.nystrom import BlockStore, factorise, nystrom_sums
from gpx.inference.nystrom_matrix import InnerFactor, NystromMatrix, best_noise
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


@pytest.fixture
def collapsed():
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=draws, dtype=torch.float64)
    y = x.sum(1).sin() + 0.2 * torch.randn(50, generator=draws, dtype=torch.float64)
    kernel = RBF(lengthscale=0.8, outputscale=1.4).double().requires_grad_(False)
    whitener, _ = factorise(kernel, x[:9])
    cross = kernel.evaluate(x[:9], x)
    low_rank = cross.mT @ torch.linalg.solve(kernel.evaluate(x[:9]), cross)
    return x, y, kernel, whitener, low_rank


def test_blocks_in_float64_of_data_in_float32(collapsed):
    x, y, kernel, whitener, low_rank = collapsed
    narrow, _ = factorise(kernel.float(), x[:9].float())
    narrow.factor = whitener.factor
    narrow._solvers[torch.float64] = whitener.factor
    store = BlockStore(narrow, x.float(), dtype=torch.float64)
    sums = nystrom_sums(store, y.float())
    assert sums.gram.dtype == torch.float64
    (_, block), *_ = store
    assert block.dtype == torch.float64
    torch.testing.assert_close(sums.gram.trace(), low_rank.trace(), rtol=1e-4, atol=0)


def test_inverse_root_is_that_of_the_posterior_covariance(collapsed):
    x, y, kernel, whitener, _ = collapsed
    noise = torch.tensor(0.1, dtype=torch.float64)
    inner = InnerFactor(nystrom_sums(BlockStore(whitener, x), y), noise)
    projection = torch.linalg.solve_triangular(
        whitener.factor, kernel.evaluate(x[:9], x), upper=False
    )
    precision = projection @ projection.mT / noise + torch.eye(9, dtype=torch.float64)
    factor = inner.inverse_root()
    torch.testing.assert_close(factor @ factor.mT, torch.linalg.inv(precision))
    torch.testing.assert_close(inner.weights, torch.linalg.solve(precision, projection @ y / noise))
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal() > 0).all()


def test_best_noise_is_the_peak_of_the_dense_collapsed_bound(collapsed):
    x, y, kernel, whitener, low_rank = collapsed
    sums = nystrom_sums(BlockStore(whitener, x), y)
    found = best_noise(sums, 50, torch.tensor(1e-3, dtype=torch.float64))
    trace = (kernel.diagonal(x) - low_rank.diagonal()).sum()
    identity = torch.eye(50, dtype=torch.float64)

    def bound(noise):
        normal = torch.distributions.MultivariateNormal(
            torch.zeros(50, dtype=torch.float64), low_rank + noise * identity
        )
        return normal.log_prob(y) - trace / (2 * noise)

    for factor in (0.9, 1.1):
        assert bound(found * factor) < bound(found)
    five = torch.tensor(5.0, dtype=torch.float64)
    assert float(best_noise(sums, 50, five)) == pytest.approx(5.0)


def test_trace_at_the_inducing_points_is_rounding_and_never_negative(collapsed):
    x, y, _, whitener, _ = collapsed
    trace = nystrom_sums(BlockStore(whitener, x[:9]), y[:9]).trace_error
    assert 0 <= trace < 1e-12


def test_outputs_have_the_sums_that_each_has_alone(collapsed):
    x, y, _, whitener, _ = collapsed
    both = torch.stack([y, 3.0 * x[:, 0] - y.square()], 1)
    found = nystrom_sums(BlockStore(whitener, x), both).outputs()
    assert len(found) == 2
    for place, each in enumerate(found):
        (alone,) = nystrom_sums(BlockStore(whitener, x), both[:, place]).outputs()
        for name in ("gram", "projected", "squared_residual", "trace_error"):
            torch.testing.assert_close(getattr(each, name), getattr(alone, name))
