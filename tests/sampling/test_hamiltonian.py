"""Hamiltonian chains leave their law invariant, and go on from a stored state."""

import math

import pytest
import scipy.stats
import torch

from gpx.sampling.hamiltonian import Hamiltonian


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def of(log_density):
    """The densities that chains ask for, of a function (C, k) -> (C,), by automatic derivatives."""

    def densities(positions):
        at = positions.detach().requires_grad_()
        values = log_density(at)
        return values.detach(), torch.autograd.grad(values.sum(), at)[0]

    return densities


def chains(densities, positions, root, size, steps, draws):
    sampler = Hamiltonian(densities, positions, root)
    sampler.log_step = math.log(size)
    for _ in range(steps):
        sampler.step(generator=draws)
    return sampler


@pytest.mark.parametrize("size", [0.3, 1.2])
def test_the_law_is_invariant_whatever_the_step_size(size):
    """4,000 chains that start in a skewed law stay in it: KS at 0.1 %."""
    law = scipy.stats.loggamma(2.0)  # log density 2 u - exp(u), of the logarithm of a Gamma draw
    start = torch.from_numpy(law.rvs((4000, 1), random_state=0))
    sampler = chains(
        of(lambda u: (2.0 * u - u.exp()).sum(1)), start, torch.eye(1).double(), size, 5, generator()
    )
    assert scipy.stats.kstest(sampler.positions[:, 0], law.cdf).pvalue > 1e-3
    assert float((sampler.positions != start).double().mean()) > 0.7


def test_chains_find_a_correlated_normal_law_from_afar():
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]]).double()
    precision = torch.linalg.inv(covariance)
    sampler = chains(
        of(lambda u: -0.5 * ((u @ precision) * u).sum(1)),
        torch.full((4000, 2), 3.0).double(),
        torch.linalg.cholesky(covariance),
        0.7,
        20,
        generator(),
    )
    # standard errors of 4,000 draws: 0.016 of a mean, 0.02 of an entry of the covariance
    assert float(sampler.positions.mean(0).abs().max()) < 0.07
    assert float((sampler.positions.mT.cov() - covariance).abs().max()) < 0.1


def test_impossible_positions_are_never_taken():
    """A standard normal above a wall: half of the trajectories end beyond it."""

    def densities(positions):
        u = positions[:, 0]
        return torch.where(u > 0.3, -0.5 * u.square(), -torch.inf), -positions

    law = scipy.stats.truncnorm(0.3, math.inf)
    start = torch.from_numpy(law.rvs((4000, 1), random_state=0))
    sampler = chains(densities, start, torch.eye(1).double(), 0.3, 10, generator())
    assert scipy.stats.kstest(sampler.positions[:, 0], law.cdf).pvalue > 1e-3


def test_burn_in_adapts_the_step_to_the_width_of_the_law():
    densities = of(lambda u: -0.5 * (u / 0.01).square().sum(1))
    sampler = Hamiltonian(densities, torch.zeros(4, 3).double(), torch.eye(3).double())
    draws = generator()
    for _ in range(150):
        sampler.adapt(sampler.step(generator=draws))
    assert 0.004 < sampler.step_size < 0.03
    found = torch.stack([sampler.step(generator=draws).mean() for _ in range(50)])
    assert 0.65 < float(found.mean()) < 0.95


def test_a_chain_on_a_cliff_comes_down():
    """Three chains are at home in a normal law, the fourth where it falls much faster."""
    densities = of(
        lambda u: torch.where(u > 5.0, -1e6 * (u - 5.0) - 12.5, -0.5 * u.square()).sum(1)
    )
    start = torch.tensor([[0.0], [0.5], [-0.5], [6.0]]).double()
    sampler, draws = Hamiltonian(densities, start, torch.eye(1).double()), generator()
    for _ in range(100):
        sampler.adapt(sampler.step(generator=draws))
    assert float(sampler.positions[3]) < 5.0


def test_a_restored_state_goes_on_bit_for_bit():
    densities = of(lambda u: -0.25 * u.pow(4).sum(1))
    draws, start = generator(), torch.ones(3, 2).double()
    sampler = chains(densities, start, torch.eye(2).double(), 0.5, 4, draws)
    state = {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in sampler.state_dict().items()
    }
    kept = draws.get_state()
    for _ in range(3):
        sampler.adapt(sampler.step(generator=draws))
    again = Hamiltonian.restored(densities, state)
    draws.set_state(kept)
    for _ in range(3):
        again.adapt(again.step(generator=draws))
    assert torch.equal(again.positions, sampler.positions)
    assert again.step_size == sampler.step_size
    assert again.evaluations == sampler.evaluations
