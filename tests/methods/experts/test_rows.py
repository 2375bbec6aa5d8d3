"""Experts of about one size taken together, and padding that changes nothing."""

import pytest
import torch

from gpx.methods.experts.rows import ARRAYS_PER_BATCH, ExpertRows


def ragged():
    sizes = torch.tensor([3, 7, 1, 5, 7, 2])
    return ExpertRows(torch.randperm(25, generator=torch.Generator().manual_seed(0)), sizes)


@pytest.mark.parametrize("budget", [1, 8 * ARRAYS_PER_BATCH * 2 * 49, 10**9])
def test_every_row_of_every_expert_is_in_one_batch(budget):
    rows = ragged()
    own = rows.rows.split(rows.sizes.tolist())
    seen = {}
    for batch in rows.batches(8, budget):
        c, m = batch.rows.shape
        assert c == 1 or 8 * ARRAYS_PER_BATCH * c * m * m <= budget
        for place, expert in enumerate(batch.experts.tolist()):
            there = slice(None) if batch.mask is None else batch.mask[place]
            seen[expert] = batch.rows[place][there]
            assert set(batch.rows[place].tolist()) <= set(own[expert].tolist())
    assert rows.widest(8, budget) == max(b.rows.numel() for b in rows.batches(8, budget))
    assert sorted(seen) == list(range(6))
    for expert, found in seen.items():
        assert torch.equal(found, own[expert])


def test_padding_is_the_identity():
    """Log-determinant, inverse and solves of the rows that are there stay as they are."""
    rows = ragged()
    x = torch.randn(25, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (batch,) = rows.batches(8, 10**9)
    assert batch.mask is not None
    inputs = x[batch.rows]
    matrices = (-torch.cdist(inputs, inputs)).exp()
    system = batch.covariance(matrices, torch.full((6,), 0.1, dtype=torch.float64))
    right = batch.zero_padding(torch.randn(6, 7, dtype=torch.float64))
    solved = torch.linalg.solve(system, right)
    for place, mask in enumerate(batch.mask):
        own = matrices[place][mask][:, mask] + 0.1 * torch.eye(int(mask.sum())).double()
        torch.testing.assert_close(
            torch.logdet(system[place]), torch.logdet(own), rtol=1e-13, atol=1e-13
        )
        want = torch.linalg.solve(own, right[place][mask])
        torch.testing.assert_close(solved[place][mask], want, rtol=1e-12, atol=1e-13)
        assert (solved[place][~mask] == 0.0).all()
