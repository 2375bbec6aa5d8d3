"""Block lists: expected counts are L / B in every scheme."""

import pytest
import torch

from gpx.methods.weight_space.block_sampling import multiplicity, sample_blocks

CPU = torch.device("cpu")


@pytest.mark.parametrize("sampling", ["stratified", "with_replacement", "without_replacement"])
@pytest.mark.parametrize(("num_blocks", "size"), [(12, 4), (7, 3), (5, 5)])
def test_expected_counts(sampling, num_blocks, size):
    generator = torch.Generator().manual_seed(0)
    draws = 4000
    counts = torch.zeros(num_blocks)
    for _ in range(draws):
        found = sample_blocks(num_blocks, size, sampling, generator=generator, device=CPU)
        assert found.shape == (size,)
        counts += torch.bincount(found, minlength=num_blocks)
    p = size / num_blocks
    # a count per draw has variance at most L / B (+ pairs); 5 standard errors
    assert (counts / draws - p).abs().max() < 5 * (p * size / draws) ** 0.5


@pytest.mark.parametrize("sampling", ["stratified", "without_replacement"])
def test_no_repeats(sampling):
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        found = sample_blocks(20, 5, sampling, generator=generator, device=CPU)
        assert found.unique().numel() == 5


def test_stratified_exact_inclusion_when_strata_cut_blocks():
    # 3 strata over 7 blocks: probability of block b is the measure of [b, b + 1) under position
    grid = (torch.arange(21_000, dtype=torch.float64) + 0.5) / 7000  # all three strata, even grid
    blocks = (grid * (7 / 3)).long()
    counts = torch.bincount(blocks, minlength=7).double() / 7000
    torch.testing.assert_close(
        counts, torch.full((7,), 3 / 7, dtype=torch.float64), atol=2e-4, rtol=0
    )


def test_whole_list_and_large_numbers():
    found = sample_blocks(6, 6, "stratified", generator=None, device=CPU)
    assert found.tolist() == [0, 1, 2, 3, 4, 5]
    huge = sample_blocks(10**9, 4, "stratified", generator=None, device=CPU)
    assert int(huge.max()) < 10**9


def test_multiplicity():
    assert multiplicity(torch.tensor([4, 2, 4, 4])).tolist() == [3, 1, 3, 3]
