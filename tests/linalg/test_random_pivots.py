"""Randomly pivoted Cholesky against dense algebra; its pivots' distribution enumerated."""

import itertools
import math

import pytest
import torch
from claimed_cuda import claimed_cuda

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg import randomly_pivoted_cholesky


def matrix(n, rank=None, seed=0):
    draws = torch.Generator().manual_seed(seed)
    root = torch.randn(n, rank or n, generator=draws, dtype=torch.float64)
    return root @ root.mT


def factorise(gram, rank, seed=0):
    return randomly_pivoted_cholesky(
        lambda rows: gram[rows],
        gram.diagonal(),
        rank,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("rank", [1, 7, 40, 90])
def test_it_is_the_nystrom_approximation_at_its_pivots(rank):
    gram = matrix(90)
    done = factorise(gram, rank)
    z = done.pivots
    assert z.unique().numel() == rank
    want = gram[:, z] @ torch.linalg.solve(gram[z][:, z], gram[z])
    torch.testing.assert_close(done.factor.mT @ done.factor, want, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(done.residual, (gram - want).diagonal(), rtol=1e-7, atol=1e-7)
    upper = done.factor[:, z]
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.mT @ upper, gram[z][:, z], rtol=1e-10, atol=1e-10)


def test_pivots_are_distributed_as_when_they_are_drawn_one_at_a_time():
    # correlated on purpose: a block of three proposals is often cut
    scale = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
    gram = scale * scale[:, None] * (0.8 + 0.2 * torch.eye(4, dtype=torch.float64))
    chances = {}
    for order in itertools.permutations(range(4), 3):
        left, chance = gram.clone(), 1.0
        for pivot in order:
            variances = left.diagonal().clone()
            chance *= float(variances[pivot] / variances.sum())
            left -= torch.outer(left[pivot], left[pivot]) / variances[pivot]
        chances[order] = chance
    assert sum(chances.values()) == pytest.approx(1.0, rel=1e-9)
    runs, seen = 2000, dict.fromkeys(chances, 0)
    draws = torch.Generator().manual_seed(0)
    for _ in range(runs):
        done = randomly_pivoted_cholesky(
            lambda rows: gram[rows], gram.diagonal(), 3, generator=draws
        )
        seen[tuple(done.pivots.tolist())] += 1
    statistic = sum((seen[o] - runs * p) ** 2 / (runs * p) for o, p in chances.items())
    # chi-square of 23 degrees of freedom: above 60 with probability 4e-5
    assert statistic < 60.0


def test_it_ends_where_the_rank_does():
    done = factorise(matrix(50, rank=6), 20)
    assert len(done.pivots) == 6
    assert float(done.residual.max()) < 1e-10
    assert len(factorise(matrix(5), 0).pivots) == 0
    assert len(factorise(torch.zeros(4, 4, dtype=torch.float64), 3).pivots) == 0


def test_float32_and_repeats():
    gram = matrix(12).repeat(4, 4).float()
    done = factorise(gram, 30)
    assert len(done.pivots) == 12
    assert done.factor.dtype == torch.float32


def test_rows_that_are_inexact_do_not_make_a_covariance_indefinite():
    # repeated inputs whose covariances are off by 1e-5, as where squared distances cancel
    gram = matrix(30).repeat(5, 5)
    gram = gram / gram.diagonal().max()
    draws = torch.Generator().manual_seed(0)
    off = 1e-5 * torch.randn(150, 150, generator=draws, dtype=torch.float64)
    gram = gram + 0.5 * (off + off.mT).fill_diagonal_(0.0)
    for seed in range(20):
        done = factorise(gram, 60, seed)
        assert bool((done.residual >= 0.0).all())


def test_a_block_waits_for_the_device_once():
    with claimed_cuda() as waits:
        gram = matrix(200).cuda()
        blocks = []

        def rows(chosen):
            blocks.append(len(chosen))
            return gram[chosen]

        draws = torch.Generator("cuda").manual_seed(0)
        found = randomly_pivoted_cholesky(rows, gram.diagonal(), 100, generator=draws)
        assert found.factor.shape[0] == 100
        assert len(blocks) > 2
        assert waits.total() <= len(blocks) + 2


def test_mistakes_are_explained():
    gram = matrix(6)
    with pytest.raises(ShapeError, match=r"rows returned \(6,\) for 3 indices"):
        randomly_pivoted_cholesky(lambda rows: gram[0], gram.diagonal(), 3)
    with pytest.raises(NotPositiveDefinite, match="ranges from"):
        randomly_pivoted_cholesky(lambda rows: gram[rows], -gram.diagonal(), 3)
    with pytest.raises(NotPositiveDefinite, match="indefinite"):
        randomly_pivoted_cholesky(lambda rows: math.nan * gram[rows], gram.diagonal(), 3)
    indefinite = gram + 100.0 * (torch.ones(6, 6).double() - torch.eye(6).double())
    with pytest.raises(NotPositiveDefinite, match="indefinite"):
        randomly_pivoted_cholesky(lambda rows: indefinite[rows], indefinite.diagonal(), 3)


def test_it_stops_once_the_trace_error_is_small_enough():
    x = torch.linspace(0.0, 4.0, 200, dtype=torch.float64)
    matrix = (-0.5 * (x[:, None] - x) ** 2).exp()
    generator = torch.Generator().manual_seed(0)
    found = randomly_pivoted_cholesky(
        lambda rows: matrix[rows], matrix.diagonal(), 200, tolerance=1e-3, generator=generator
    )
    assert float(found.residual.sum()) <= 1e-3
    assert found.factor.shape[0] < 60
