"""R-hat and bulk effective sample sizes: chains whose answers are known."""

import math

import pytest
import scipy.stats
import torch

from gpx.sampling import (
    bulk_effective_sample_size,
    effective_sample_size,
    potential_scale_reduction,
)
from gpx.sampling.convergence import rank_normalised, split


def normals(count, chains, k=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, chains, k, generator=generator).double()


def autoregressive(count, chains, correlation, seed=0):
    noise = normals(count, chains, 2, seed) * math.sqrt(1.0 - correlation**2)
    states = [noise[0] / math.sqrt(1.0 - correlation**2)]
    for step in noise[1:]:
        states.append(correlation * states[-1] + step)
    return torch.stack(states)


def test_ranks_become_normal_scores():
    draws = torch.tensor([3.0, -1.0, 7.0, 7.0]).double().reshape(2, 2, 1)
    want = scipy.stats.norm.ppf((torch.tensor([2.0, 1.0, 3.5, 3.5]) - 0.375) / 4.25)
    found = rank_normalised(draws).flatten()
    torch.testing.assert_close(found, torch.as_tensor(want).double(), rtol=1e-6, atol=0.0)


def test_halves():
    draws = torch.arange(10.0).reshape(5, 2, 1)  # of odd length: the middle is left out
    assert split(draws)[:, :, 0].tolist() == [[0.0, 1.0, 6.0, 7.0], [2.0, 3.0, 8.0, 9.0]]


def test_against_the_definition():
    """Equations 1 to 4 and 14 of the source, written out for one quantity."""
    draws = autoregressive(60, 3, 0.5)[:, :, :1]
    halves = split(draws)
    worst = []
    for values in (halves, (halves - halves.flatten().median()).abs()):
        ranks = scipy.stats.rankdata(values[:, :, 0].numpy()).reshape(30, 6)
        z = scipy.stats.norm.ppf((ranks - 0.375) / (180 + 0.25))
        within = z.var(0, ddof=1).mean()
        between = 30 * z.mean(0).var(ddof=1)
        worst.append(math.sqrt((29 / 30 * within + between / 30) / within))
    found = potential_scale_reduction(draws)
    torch.testing.assert_close(
        found, torch.tensor([max(worst)], dtype=torch.float64), rtol=1e-9, atol=0.0
    )


def test_chains_of_one_law_and_of_two():
    """Independent normals: R-hat within 0.02 of 1 (its deviation is 0.002 here)."""
    draws = normals(500, 4)
    assert bool((potential_scale_reduction(draws) - 1.0).abs().max() < 0.02)
    moved = draws.clone()
    moved[:, 0, 0] += 2.0  # another place
    moved[:, 0, 1] *= 4.0  # the same place, another spread
    found = potential_scale_reduction(moved)
    assert float(found[0]) > 1.1
    assert float(found[1]) > 1.1
    assert float(found[2]) < 1.02
    drifting = draws + torch.linspace(0.0, 2.0, 500).double()[:, None, None]
    assert bool((potential_scale_reduction(drifting) > 1.1).all())  # seen in halves of chains


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_effective_sizes_of_autoregressive_chains(correlation):
    """(1 - r) / (1 + r) of all draws; the estimate's own deviation is some 5 % here."""
    draws = autoregressive(4000, 4, correlation)
    want = 16_000 * (1.0 - correlation) / (1.0 + correlation)
    found = bulk_effective_sample_size(draws)
    assert bool((found / want - 1.0).abs().max() < 0.25)


def test_antithetic_chains_are_worth_more_and_apart_ones_nothing():
    assert bool((bulk_effective_sample_size(autoregressive(2000, 4, -0.5)) > 8000.0).all())
    draws = normals(500, 4)
    draws[:, 0] += 10.0
    assert bool((bulk_effective_sample_size(draws) < 20.0).all())


def test_few_or_still_states():
    assert torch.isnan(potential_scale_reduction(normals(3, 2))).all()
    assert torch.isnan(bulk_effective_sample_size(normals(3, 2))).all()
    still = torch.ones(10, 2, 1).double()
    assert potential_scale_reduction(still).tolist() == [1.0]
    assert bulk_effective_sample_size(still).tolist() == [20.0]


def test_effective_sample_size_of_an_autoregression():
    """rho = 0.8: T (1 - rho) / (1 + rho) = T / 9; independent draws count in full."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, 2, generator=generator, dtype=torch.float64)
    chain = noise.clone()
    for t in range(1, len(chain)):
        chain[t, 0] += 0.8 * chain[t - 1, 0]
    sizes = effective_sample_size(chain)
    assert float(sizes[0]) == pytest.approx(20_000 / 9, rel=0.15)
    assert float(sizes[1]) == pytest.approx(20_000, rel=0.1)
    assert effective_sample_size(torch.ones(10, 1)).tolist() == [1.0]
    assert effective_sample_size(chain[:3]).tolist() == [0.0, 0.0]
