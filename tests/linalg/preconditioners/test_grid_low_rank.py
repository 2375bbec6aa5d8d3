"""The Kronecker form of the grid preconditioners: equal to the dense form, in O(M) memory."""

import math

import pytest
import torch
from draws import draw, draws
from hypothesis import given, settings
from hypothesis import strategies as st
from largest_tensor import Largest

from gpx.linalg import (
    GridLowRankPlusNoise,
    LowRankPlusNoise,
    RelativeResidual,
    conjugate_gradients,
    kronecker_matmul,
    missing_grid_preconditioner,
    observed_grid_preconditioner,
)
from gpx.linalg.preconditioners import grid_low_rank


def pairs(sizes, lengthscale=0.3):
    found = []
    for m in sizes:
        x = torch.linspace(0, 1, m, dtype=torch.float64)
        k = torch.exp(-0.5 * ((x.unsqueeze(-1) - x) / lengthscale).square())
        found.append(torch.linalg.eigh(k))
    return [q for _, q in found], [v for v, _ in found]


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=draws(seed), dtype=torch.float64)


def same(a, b, n, tolerance=1e-9):
    block = randn(n, 3, seed=7)
    torch.testing.assert_close(a.solve(block), b.solve(block), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.matmul(block), b.matmul(block), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.solve(block[:, 0]), b.solve(block)[:, 0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(a.logdet(), b.logdet(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        a.root_matmul(block), b.root_matmul(block), rtol=tolerance, atol=tolerance
    )


@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    rank=st.integers(1, 60),
    share=st.floats(0.05, 1.0),
    varying=st.booleans(),
    by_rows=st.booleans(),
    seed=st.integers(0, 20),
)
def test_it_equals_the_dense_form(sizes, rank, share, varying, by_rows, seed):
    vectors, values = pairs(sizes)
    total = math.prod(sizes)
    observed = torch.randperm(total, generator=draws(seed))[: max(1, int(share * total))]
    n = len(observed)
    noise = 0.1 + torch.rand(n, generator=draws(seed), dtype=torch.float64) if varying else 0.1
    dense = observed_grid_preconditioner(vectors, values, observed, rank, noise)
    with pytest.MonkeyPatch.context() as patch:
        if by_rows:
            patch.setattr(GridLowRankPlusNoise, "_pairs_fit", lambda self: False)
        patch.setattr(grid_low_rank, "BLOCK_BYTES", 8 * total)  # one column, few rows at a time
        lean = observed_grid_preconditioner(
            vectors, values, observed, rank, noise, form="kronecker"
        )
        assert lean.rank == dense.rank == min(rank, total)
        assert lean.below_kernel
        same(lean, dense, n)
        gaps = missing_grid_preconditioner(vectors, values, observed, rank, 0.1, form="kronecker")
        same(gaps, missing_grid_preconditioner(vectors, values, observed, rank, 0.1), n)


@pytest.mark.parametrize("by_rows", [False, True])
def test_repeated_cells_add_up(by_rows, monkeypatch):
    if by_rows:
        monkeypatch.setattr(GridLowRankPlusNoise, "_pairs_fit", lambda self: False)
    vectors, values = pairs((5, 4))
    cells = torch.tensor([3, 3, 3, 7, 0, 19, 19, 1, 2, 4, 5, 6, 8, 9, 10, 11])
    lean = observed_grid_preconditioner(vectors, values, cells, 6, 0.2, form="kronecker")
    dense = observed_grid_preconditioner(vectors, values, cells, 6, 0.2)
    assert isinstance(dense, LowRankPlusNoise)
    same(lean, dense, len(cells))


@pytest.mark.parametrize("by_rows", [False, True])
def test_columns_that_are_not_orthonormal(by_rows, monkeypatch):
    if by_rows:
        monkeypatch.setattr(GridLowRankPlusNoise, "_pairs_fit", lambda self: False)
    factors = [draw(5, 3), draw(4, 2, seed=1)]
    cells = torch.arange(17)  # more cells with data than without
    columns = torch.cartesian_prod(torch.arange(3), torch.arange(2))
    weights = draw(6, seed=2).abs() + 0.1
    lean = GridLowRankPlusNoise(factors, cells, columns, weights, 0.2, orthonormal=False)
    low_rank = torch.kron(*factors)[:17] * weights
    eye = torch.eye(17, dtype=torch.float64)
    torch.testing.assert_close(lean.solve(low_rank @ low_rank.mT + 0.2 * eye), eye)


def test_memory_is_that_of_a_few_grids():
    sizes, rank = (30, 20, 20), 150
    vectors, values = pairs(sizes, 0.1)
    total = math.prod(sizes)
    observed = torch.randperm(total, generator=draws())[: total // 2]
    block = randn(len(observed), 2)
    counts = {}
    for form in ("dense", "kronecker"):
        with Largest() as build:
            q = observed_grid_preconditioner(vectors, values, observed, rank, 0.1, form=form)
        with Largest() as use:
            q.solve(block)
        counts[form] = build.bytes, use.bytes
    assert min(counts["dense"]) == 8 * rank * len(observed)
    # the grid of two columns, or a few times the larger of the grid and the Gram matrix
    assert counts["kronecker"][1] <= 2 * 8 * total
    assert counts["kronecker"][0] <= 4 * 8 * max(total, rank**2)


def test_few_steps_on_a_partial_grid_of_half_a_million_cells():
    sizes, noise = (80, 80, 80), 1e-2
    vectors, values = pairs(sizes, 0.5)
    total = math.prod(sizes)
    observed = torch.randperm(total, generator=draws())[: total // 3]
    factors = [(q * v) @ q.mT for q, v in zip(vectors, values, strict=True)]

    def product(block):
        grid = block.new_zeros(total, block.shape[-1]).index_copy_(0, observed, block)
        return kronecker_matmul(factors, grid)[observed] + noise * block

    q = observed_grid_preconditioner(vectors, values, observed, 250, noise, form="kronecker")
    found = conjugate_gradients(
        product, randn(len(observed), 1), preconditioner=q, stop=RelativeResidual(1e-6)
    )
    assert found.report.iterations <= 6
