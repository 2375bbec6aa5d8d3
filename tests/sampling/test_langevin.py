"""Metropolis-adjusted Langevin against laws that are known."""

import math

import scipy.stats
import torch

from gpx.sampling import Langevin, effective_sample_size


def gaussian(mean, variance):
    def density(u):
        gap = u - mean
        return -0.5 * (gap.square() / variance).sum(), -gap / variance

    return density


def run(chain, burn_in, iterations, thin=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for count in range(1, burn_in + 1):
        chain.adapt(count, chain.step(generator=generator)[0])
    kept, moves = [], 0
    for count in range(1, iterations + 1):
        moves += chain.step(generator=generator)[1]
        if count % thin == 0:
            kept.append(chain.position.clone())
    return torch.stack(kept), moves / iterations


def test_gaussian_marginals_and_acceptance():
    """KS test at 0.1 % per marginal: three marginals, false alarms below 0.3 %."""
    mean = torch.tensor([0.0, 3.0, -1.0], dtype=torch.float64)
    variance = torch.tensor([1.0, 0.01, 4.0], dtype=torch.float64)
    chain = Langevin(gaussian(mean, variance), mean + 1.0, variance)
    samples, rate = run(chain, 300, 4000, thin=10)
    assert 0.4 < rate < 0.75
    for column, m, v in zip(samples.mT, mean.tolist(), variance.tolist(), strict=True):
        assert scipy.stats.kstest(column, scipy.stats.norm(m, math.sqrt(v)).cdf).pvalue > 1e-3


def test_a_skewed_law():
    """u = log of a Gamma(3) variable: mean digamma(3), within four standard errors."""

    def density(u):
        return (3.0 * u - u.exp()).sum(), 3.0 - u.exp()

    one = torch.ones(1, dtype=torch.float64)
    samples, _ = run(Langevin(density, one, one), 300, 6000)
    error = float(samples.std()) / float(effective_sample_size(samples)) ** 0.5
    assert abs(float(samples.mean()) - float(torch.digamma(torch.tensor(3.0)))) < 4 * error


def test_same_seed_same_chain_and_a_restored_one_goes_on():
    density = gaussian(torch.zeros(2, dtype=torch.float64), 1.0)
    start = torch.ones(2, dtype=torch.float64)
    first, second = (Langevin(density, start, torch.ones_like(start)) for _ in range(2))
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    for _ in range(5):
        for chain, generator in zip((first, second), generators, strict=True):
            chain.step(generator=generator)
    assert torch.equal(first.position, second.position)
    second = Langevin.restored(density, second.state_dict())
    for chain, generator in zip((first, second), generators, strict=True):
        chain.step(generator=generator)
    assert torch.equal(first.position, second.position)
    assert first.value == second.value


def test_proposals_without_a_density_are_never_accepted():
    def walled(u):
        inside = bool(u.abs() < 1.0)
        return torch.tensor(0.0 if inside else -math.inf, dtype=torch.float64), 0.0 * u

    zero = torch.zeros(1, dtype=torch.float64)
    samples, _ = run(Langevin(walled, zero, torch.ones_like(zero), step=1.0), 0, 2000)
    assert float(samples.abs().max()) < 1.0
    assert scipy.stats.kstest(samples[::10, 0], scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3
