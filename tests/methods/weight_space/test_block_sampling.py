"""Block lists: expected counts are L / B in every scheme."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

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


@pytest.mark.parametrize(("num_blocks", "size"), [(7, 3), (12, 4), (5, 5)])
def test_stratified_counts_by_enumeration(monkeypatch, num_blocks, size):
    # over all uniform numbers a block is listed L / B times, where strata cut blocks as well
    steps = 20 * num_blocks  # the borders of blocks lie between the points of this grid
    counts = torch.zeros(num_blocks, dtype=torch.float64)
    for k in range(steps):
        uniform = torch.full((size,), (k + 0.5) / steps, dtype=torch.float64)
        monkeypatch.setattr(torch, "rand", lambda *_, value=uniform, **__: value.clone())
        found = sample_blocks(num_blocks, size, "stratified", generator=None, device=CPU)
        counts += torch.bincount(found, minlength=num_blocks)
    want = torch.full((num_blocks,), size / num_blocks, dtype=torch.float64)
    torch.testing.assert_close(counts / steps, want, rtol=0, atol=1e-12)


def test_whole_list_and_large_numbers():
    found = sample_blocks(6, 6, "stratified", generator=None, device=CPU)
    assert found.tolist() == [0, 1, 2, 3, 4, 5]
    huge = sample_blocks(10**9, 4, "stratified", generator=None, device=CPU)
    assert int(huge.max()) < 10**9


def test_multiplicity():
    assert multiplicity(torch.tensor([4, 2, 4, 4])).tolist() == [3, 1, 3, 3]
    long = torch.randint(1000, (3000,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(multiplicity(long), torch.bincount(long)[long])


def test_multiplicity_of_a_long_list_takes_memory_in_proportion_to_it():
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        multiplicity(torch.arange(20_000))
    most = max(event.self_cpu_memory_usage for event in profiler.key_averages())
    assert most < 100 * 8 * 20_000  # every pair would take 400 MB
