"""The chain for fixed-size determinantal processes against enumeration."""

from itertools import combinations

import pytest
import torch

from gpx.errors import ConfigError
from gpx.inducing import Determinantal, GreedyConditionalVariance, determinantal
from gpx.inducing.determinantal import MAX_PROPOSALS, DeterminantalChain, mixing_steps
from gpx.kernels import RBF


def data(n, d=1, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draws, dtype=torch.float64)


def kernel(lengthscale=0.7):
    return RBF(lengthscale=lengthscale).double()


def shifted_gram(chain):
    gram = chain.kernel.evaluate(chain.x, chain.x)
    gram.diagonal().copy_(chain.diagonal)
    return gram


def test_transition_matrix_is_in_detailed_balance_with_the_process():
    n, m = 12, 3
    x = data(n)
    sets = list(combinations(range(n), m))
    index = {s: i for i, s in enumerate(sets)}
    transition = torch.zeros(len(sets), len(sets), dtype=torch.float64)
    leaves = torch.arange(m).repeat_interleave(n - m)
    enters = torch.arange(n - m).repeat(m)
    for s in sets:
        chain = DeterminantalChain(x, kernel(), torch.tensor(s))
        rows = chain.outside[enters]
        cross = chain.kernel.evaluate(chain.x[chain.inside], chain.x[rows])
        accept = 0.5 / (m * (n - m)) * chain.ratios(leaves, rows, cross).clamp(max=1.0)
        for leave, enter, chance in zip(leaves, enters, accept, strict=True):
            new = set(s) - {int(chain.inside[leave])} | {int(chain.outside[enter])}
            transition[index[s], index[tuple(sorted(new))]] += chance
    transition.diagonal().copy_(1.0 - transition.sum(1))
    assert float(transition.min()) >= 0.0

    gram = shifted_gram(chain)
    target = torch.stack([torch.det(gram[list(s)][:, list(s)]) for s in sets])
    target /= target.sum()
    flow = target[:, None] * transition
    assert float((flow - flow.T).abs().max()) < 1e-12
    # the bound on the mixing time, from the greedy start
    start = GreedyConditionalVariance().select(x, kernel(), m).indices
    now = torch.zeros(len(sets), dtype=torch.float64)
    now[index[tuple(sorted(start.tolist()))]] = 1.0
    law = now @ torch.linalg.matrix_power(transition, mixing_steps(n, m, 0.05))
    assert 0.5 * float((law - target).abs().sum()) < 0.05


def test_blocks_of_proposals_are_the_chain_of_single_ones():
    x, m, steps = data(30, 2), 6, 700
    chain = DeterminantalChain(x, kernel(), torch.arange(m))
    chain.run(steps, torch.Generator().manual_seed(5))
    assert chain.accepted > MAX_PROPOSALS

    draws = torch.Generator().manual_seed(5)
    moves = int((torch.rand(steps, generator=draws) < 0.5).sum())
    leaves = torch.randint(m, (moves,), generator=draws).tolist()
    enters = torch.randint(24, (moves,), generator=draws).tolist()
    levels = torch.rand(moves, generator=draws, dtype=torch.float64).tolist()
    gram = shifted_gram(chain)
    inside, outside = list(range(m)), list(range(m, 30))
    for i, j, level in zip(leaves, enters, levels, strict=True):
        new = inside.copy()
        new[i] = outside[j]
        if level < float(torch.det(gram[new][:, new]) / torch.det(gram[inside][:, inside])):
            outside[j], inside = inside[i], new
    assert chain.inside.tolist() == inside
    assert chain.outside.tolist() == outside
    # updates have not drifted from the inverse
    found = chain.inverse @ gram[inside][:, inside]
    torch.testing.assert_close(found, torch.eye(m, dtype=torch.float64), rtol=0, atol=1e-9)


def test_memory_does_not_grow_with_the_steps(monkeypatch):
    monkeypatch.setattr(determinantal, "STEPS_PER_DRAW", 100)
    rand, sizes = torch.rand, []

    def recorded(count, **options):
        sizes.append(count)
        return rand(count, **options)

    monkeypatch.setattr(torch, "rand", recorded)
    chain = DeterminantalChain(data(30, 2), kernel(), torch.arange(6))
    chain.run(750, torch.Generator().manual_seed(5))
    assert max(sizes) == 100
    assert sum(sizes[::2]) == 750
    assert chain.accepted > 0


def test_inclusion_frequencies_are_those_of_the_process():
    x, n, m = data(8), 8, 3
    chain = DeterminantalChain(x, kernel(0.4), torch.arange(m))
    gram = shifted_gram(chain)
    exact, total = torch.zeros(n, dtype=torch.float64), 0.0
    for s in combinations(range(n), m):
        chance = torch.det(gram[list(s)][:, list(s)])
        exact[list(s)] += chance
        total += chance
    exact /= total
    draws, seen, rounds = torch.Generator().manual_seed(1), torch.zeros(n), 300
    for _ in range(rounds):
        chain.run(16, draws)
        seen[chain.inside] += 1
    error = (seen.double() / rounds - exact) / (exact * (1 - exact) / rounds).sqrt()
    assert float(error.abs().max()) < 5.0  # standard errors of independent draws


def test_trace_error_is_below_the_guarantee_on_average():
    m, data_sets = 6, 8
    found = bound = 0.0
    for seed in range(data_sets):
        x = data(120, seed=seed)
        gram = kernel(1.0).evaluate(x, x).detach()
        draws = torch.Generator().manual_seed(seed)
        z = Determinantal(steps=600).select(x, kernel(1.0), m, generator=draws).indices
        explained = gram[:, z] @ torch.linalg.solve(gram[z][:, z], gram[z])
        found += float((gram - explained).diagonal().sum()) / data_sets
        bound += (m + 1) * float(torch.linalg.eigvalsh(gram)[:-m].sum()) / data_sets
    assert found < bound


def test_repeated_inputs_and_more_points_than_rank():
    x = data(5, 2).repeat(4, 1)
    draws = torch.Generator().manual_seed(0)
    four = Determinantal(steps=300).select(x, kernel(), 4, generator=draws)
    assert torch.unique(four.points, dim=0).shape[0] == 4  # a repeated point has no probability
    assert torch.equal(x[four.indices], four.points)
    nine = Determinantal(steps=300).select(x, kernel(), 9, generator=draws)
    assert nine.informative == 5
    assert nine.indices.unique().numel() == 9


def test_long_runs_refresh_the_inverse():
    chain = DeterminantalChain(data(60, 2), kernel(0.3), torch.arange(10))
    chain.run(2200, torch.Generator().manual_seed(0))
    assert chain.accepted > 500
    gram = shifted_gram(chain)[chain.inside][:, chain.inside]
    error = chain.inverse @ gram - torch.eye(10, dtype=torch.float64)
    assert float(error.abs().max()) < 1e-9
    everything = torch.cat([chain.inside, chain.outside]).sort().values
    assert torch.equal(everything, torch.arange(60))


def test_options():
    assert mixing_steps(1000, 50, 0.01) == pytest.approx(1.62e6, rel=1e-3)
    x = data(12)
    draws = torch.Generator().manual_seed(0)
    assert Determinantal(accuracy=0.5).select(x, kernel(), 3, generator=draws).points.shape[0] == 3
    with pytest.raises(ConfigError, match="steps"):
        Determinantal(steps=-1)
    with pytest.raises(ConfigError, match="accuracy"):
        Determinantal(accuracy=1.5)
