"""Slice sampling leaves its law invariant, whatever the shape of the likelihood."""

import math

import pytest
import scipy.stats
import torch

from gpx.sampling import elliptical_slice, line_slice
from gpx.sampling.slices import LineSlices


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def chain(log_likelihood, chains=4000, updates=12, seed=0):
    """Last states of many short chains from the prior: independent draws once they have mixed."""
    draws = generator(seed)
    state = torch.randn(chains, 1, generator=draws).double()
    for _ in range(updates):
        fresh = torch.randn(chains, 1, generator=draws).double()
        (state,), value, count = elliptical_slice(
            (state,), (fresh,), lambda at: log_likelihood(at[0][:, 0]), generator=draws
        )
        assert count >= 2
    torch.testing.assert_close(value, log_likelihood(state[:, 0]))
    return state[:, 0]


LAWS = {
    # likelihood N(f; 1, 1/3): the posterior is N(3/4, 1/4)
    "gaussian": (lambda f: -1.5 * (f - 1.0).square(), scipy.stats.norm(0.75, 0.5)),
    "flat": (lambda f: 0.0 * f, scipy.stats.norm(0.0, 1.0)),
    "a wall": (
        lambda f: torch.where(f > 0.3, 0.0, -torch.inf),
        scipy.stats.truncnorm(0.3, math.inf),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_elliptical_slices_sample_the_posterior(name):
    """KS at 0.1 %: three tests, false alarms below 0.3 %. Starts beyond a wall come back."""
    log_likelihood, law = LAWS[name]
    found = chain(log_likelihood)
    assert scipy.stats.kstest(found, law.cdf).pvalue > 1e-3


def test_linear_maps_move_along():
    draws = generator()
    state, fresh = torch.randn(2, 5, 3, generator=draws).double()
    kind = torch.randn(3, 2, generator=draws).double()
    (z, image), _, _ = elliptical_slice(
        (state, state @ kind),
        (fresh, fresh @ kind),
        lambda at: -at[1].square().sum(1),
        generator=draws,
    )
    torch.testing.assert_close(z @ kind, image)
    assert not torch.equal(z, state)


def test_a_likelihood_that_is_nowhere_else_keeps_the_chain():
    """Down to rounding, without an endless loop."""
    state = torch.zeros(2, 1).double()
    alone = lambda at: torch.where(at[0][:, 0] == 0.0, 0.0, -torch.inf)  # noqa: E731
    (found,), _, _ = elliptical_slice((state,), (state + 1.0,), alone, generator=generator())
    torch.testing.assert_close(found, state, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("width", [0.1, 1.0, 30.0])
def test_lines_sample_a_density(width):
    """A mixture of two normals, from brackets far too small and far too large.

    KS at 0.1 % on a thinned chain: three tests, false alarms below 0.3 %.
    """
    parts = scipy.stats.norm(-1.0, 0.5), scipy.stats.norm(1.0, 1.0)

    def log_density(at):
        u = float(at[0])
        return math.log(math.exp(-2.0 * (u + 1.0) ** 2) + 0.5 * math.exp(-0.5 * (u - 1.0) ** 2))

    draws, at = generator(1), torch.zeros(1).double()
    value, states = log_density(at), []
    for step in range(3000 if width > 0.1 else 6000):
        at, value, _ = line_slice(
            at, torch.tensor([width]).double(), value, log_density, generator=draws
        )
        if step % (20 if width > 0.1 else 40) == 0:
            states.append(float(at[0]))
    law = lambda v: 0.5 * parts[0].cdf(v) + 0.5 * parts[1].cdf(v)  # noqa: E731
    assert scipy.stats.kstest(states, law).pvalue > 1e-3


def test_the_last_point_asked_for_is_the_one_taken():
    asked = []

    def log_density(at):
        asked.append(at.clone())
        return -0.5 * float(at.square().sum())

    draws, at = generator(), torch.ones(2).double()
    for _ in range(20):
        found, value, count = line_slice(
            at, torch.tensor([0.5, -0.2]).double(), log_density(at), log_density, generator=draws
        )
        assert torch.equal(asked[-1], found)
        assert value == -0.5 * float(found.square().sum())
        assert count >= 1
        at = found


def test_chains_in_lockstep_sample_their_own_densities():
    """Normals of scales 1/3, 1 and 3, each on its line: KS at 0.1 % on thinned chains of each."""
    draws, scale = generator(3), torch.tensor([1.0 / 3.0, 1.0, 3.0]).double()
    log_density = lambda at: -0.5 * (at / scale).square()  # noqa: E731
    at, states = torch.zeros(3).double(), []
    for step in range(1000):
        slices = LineSlices(log_density(at), generator=draws)
        before = at.clone()
        while slices.moving:
            points = before + 1.5 * torch.tensor(slices.offsets).double()
            values = log_density(points)
            # what is said of a chain that no longer moves is not read
            values[[c for c in range(3) if c not in slices.moving]] = torch.nan
            for chain in slices.tell(values):
                at[chain] = points[chain]
        assert slices.count >= 3
        if step % 4 == 0:
            states.append(at.clone())
    found = torch.stack(states)
    for chain in range(3):
        law = scipy.stats.norm(0.0, float(scale[chain]))
        assert scipy.stats.kstest(found[:, chain], law.cdf).pvalue > 1e-3
    correlation = torch.corrcoef(found.mT) - torch.eye(3).double()
    assert float(correlation.abs().max()) < 0.2  # of 250 states: three standard errors


def test_a_line_on_which_nothing_is_possible_keeps_its_chain_only():
    at = torch.zeros(2).double()
    slices = LineSlices(at, generator=generator())
    accepted = []
    while slices.moving:
        values = torch.tensor([-math.inf, 1.0]).double()
        accepted += slices.tell(values)
    assert accepted == [1]
    assert slices.count > 200
