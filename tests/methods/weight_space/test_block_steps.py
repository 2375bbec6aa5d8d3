"""Block steps: what fits, what each step does, what a checkpoint holds."""

import itertools
from functools import partial

import pytest
import torch
from block_problems import block_diagonal, waves
from draws import draws

from gpx.bases import LaplacianEigenfunctions
from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian, Laplace
from gpx.objectives import QuadruplyStochasticELBO, WeightSpaceELBO
from gpx.training import BlockSteps, StochasticBlockSteps

N = 120


pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(**options):
    generator = draws()
    x, y = waves(N, generator)
    model = block_diagonal(0.3, **options)
    if model.family.num_dense == 0:
        model.initialise(x, y, generator=generator)
    return model, x, y


def run(optimizer, model, x, y, steps=None):
    optimizer.check(model, x.shape[0])
    optimizer.bind(model, x, seed=0)
    generator = torch.Generator().manual_seed(0)
    total = optimizer.max_steps(10_000) if steps is None else steps
    return [float(optimizer.step(k, x, y, generator=generator).value) for k in range(total)]


def test_the_bound_never_falls_and_the_noise_maximises_it():
    model, x, y = problem()
    optimizer = BlockSteps(sweeps=3, stand_in_groups=0, noise="evidence")
    values = run(optimizer, model, x, y)
    assert len(values) == 12
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))
    noise = float(model.noise_variance.detach())
    assert noise != 0.3
    best = float(optimizer.evidence(N).value)
    for factor in (0.9, 1.1):
        model.likelihood.noise_variance = torch.tensor(noise * factor)
        assert float(optimizer.evidence(N).value) < best


@pytest.mark.parametrize("steps", [2, 8])
def test_the_exact_bound_is_the_tracked_one_and_that_of_dense_algebra(steps):
    """With half of the groups solved, and after two sweeps."""
    model, x, y = problem(diagonal_rows=0)
    optimizer = BlockSteps(sweeps=2, stand_in_groups=0)
    run(optimizer, model, x, y, steps)
    model.basis.requires_grad_(True)
    found = WeightSpaceELBO().evidence(model, x, y)
    if steps == 8:  # of groups not solved the tracked bound takes expected column squares
        tracked = optimizer.evidence(N)
        for name, part in tracked.parts.items():
            torch.testing.assert_close(found.parts[name], part, rtol=1e-9, atol=1e-8)
    family, every = model.family, torch.arange(model.basis.num_blocks)
    scale = model.log_scales(every).exp() * family.is_diagonal_column(every)
    sigma = scale.reshape(-1).square().diag().detach()
    for cell in family.covariance.roots:
        own = family.cells.columns(cell)
        root = family.covariance.root(cell, torch.float64)
        sigma[own[:, None], own] = root.T @ root
    mean = family.mean.detach().reshape(-1)
    noise, eye, phi = model.noise_variance.detach(), torch.eye(48), model.basis(x)
    data = torch.distributions.Normal(phi @ mean, noise.sqrt()).log_prob(y).sum()
    data = data - 0.5 * torch.trace(phi @ sigma @ phi.T) / noise
    q = torch.distributions.MultivariateNormal(mean, sigma)
    prior = torch.distributions.MultivariateNormal(torch.zeros(48), eye)
    want = data - torch.distributions.kl_divergence(q, prior)
    torch.testing.assert_close(found.value, want, rtol=1e-10, atol=0.0)
    raw = model.kernel.parametrizations.lengthscale.original
    slopes = [torch.autograd.grad(value, raw)[0] for value in (found.value, want)]
    torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-8)
    law = torch.distributions.MultivariateNormal(torch.zeros(N), phi @ phi.T + noise * torch.eye(N))
    assert found.value.item() < law.log_prob(y).item()


def test_the_sampled_bound_refuses_blocks_that_were_solved():
    model, x, y = problem()
    objective = QuadruplyStochasticELBO(N, columns=48, diagonal_columns=48, support_rows=0)
    objective.prepare(model, x, y, generator=torch.Generator())  # mean-field so far
    run(BlockSteps(stand_in_groups=0), model, x, y, 1)
    with pytest.raises(ConfigError, match="BlockSteps have solved for dense blocks"):
        objective.evidence(model, x, y)


def test_a_noise_that_maximises_the_bound_stays_above_its_floor():
    model, x, y = problem(likelihood=Gaussian(0.5, noise_floor=0.2))
    run(BlockSteps(sweeps=2, stand_in_groups=0, noise="evidence"), model, x, y)
    assert model.noise_variance.item() == pytest.approx(1.05 * 0.2)


def test_a_noise_variance_far_too_small_is_refitted_and_one_in_reach_is_kept():
    fixed, x, y = problem(likelihood=Gaussian(2e-6))
    first = run(BlockSteps(noise="fixed"), fixed, x, y)
    model, _, _ = problem(likelihood=Gaussian(2e-6))
    optimizer = BlockSteps(sweeps=2)
    values = run(optimizer, model, x, y)
    assert first[-1] / N < -1000.0  # nats per point: what the refit is for
    assert values[-1] / N > -10.0
    assert all(b >= a - 1e-9 * abs(a) for a, b in itertools.pairwise(values[1:]))
    assert 0.02 < model.noise_variance.item() < 0.2  # 0.04 is true

    kept, _, _ = problem(likelihood=Gaussian(0.03))
    twin, _, _ = problem(likelihood=Gaussian(0.03))
    assert run(BlockSteps(), kept, x, y) == run(BlockSteps(noise="fixed"), twin, x, y)
    assert kept.noise_variance.item() == twin.noise_variance.item()


def test_a_refitted_run_goes_on_from_a_state():
    whole, x, y = problem(likelihood=Gaussian(2e-6))
    values = run(BlockSteps(sweeps=2), whole, x, y)
    first, _, _ = problem(likelihood=Gaussian(2e-6))
    optimizer = BlockSteps(sweeps=2)
    run(optimizer, first, x, y, steps=5)
    second, again = problem(likelihood=Gaussian(2e-6))[0], BlockSteps(sweeps=2)
    second.load_state_dict(first.state_dict())
    again.load_state_dict(optimizer.state_dict())
    again.bind(second, x, seed=0)
    found = [float(again.step(k, x, y, generator=None).value) for k in range(5, 8)]
    assert found == values[5:]


def test_predictions_are_those_of_the_dense_block_posterior():
    model, x, y = problem()
    run(BlockSteps(sweeps=2), model, x, y)
    posterior = model.condition(x, y)
    found = posterior.predict(x[:7])
    phi = model.basis(x[:7]).detach()
    family = model.family
    variance = torch.zeros(7)
    for cell in range(family.cells.num_cells):
        root = family.covariance.root(cell, torch.float64)
        part = phi[:, family.cells.columns(cell)]
        variance += (part @ (root.T @ root) * part).sum(1)
    torch.testing.assert_close(found.variance, variance)
    torch.testing.assert_close(found.mean, phi @ family.mean.detach().reshape(-1))
    restored = model.new_posterior()
    restored.load_state_dict(posterior.state_dict())
    assert torch.equal(restored.predict(x[:7]).variance, found.variance)
    paths = posterior.sample_paths(4000, generator=torch.Generator().manual_seed(0))(x[:7])
    assert ((paths.var(0) / found.variance - 1).abs() < 5 * (2 / 4000) ** 0.5).all()


def test_cells_that_stochastic_steps_did_not_reach_have_the_variance_that_the_bound_counts():
    model, x, y = problem()
    stochastic = StochasticBlockSteps(rows=60)
    run(stochastic, model, x, y, 1)
    stochastic.release()
    steps = BlockSteps(sweeps=0.5, stand_in_groups=0)
    run(steps, model, x, y)
    assert len(model.family.covariance.roots) < model.family.cells.num_cells
    _, variance = model.condition(x, y).predict(x)
    trace = float(model.family.terms[:, 0].sum())  # of cells not solved from expected squares
    assert float(variance.sum()) == pytest.approx(trace, rel=0.1)


def test_going_on_from_a_state_is_the_same_run():
    whole, x, y = problem()
    values = run(BlockSteps(sweeps=2), whole, x, y, steps=6)

    first, _, _ = problem()
    optimizer, generator = BlockSteps(sweeps=2), torch.Generator().manual_seed(0)
    optimizer.bind(first, x, seed=0)
    for k in range(3):
        optimizer.step(k, x, y, generator=generator)
    second, again = problem()[0], BlockSteps(sweeps=2)
    second.load_state_dict(first.state_dict())
    again.load_state_dict(optimizer.state_dict())
    again.bind(second, x, seed=0)
    found = [float(again.step(k, x, y, generator=generator).value) for k in range(3, 6)]
    assert found == values[3:]
    assert torch.equal(second.family.mean, whole.family.mean)


def test_steps_that_trained_a_model_begin_anew_with_the_next():
    steps, values = BlockSteps(sweeps=2), []
    for _ in range(2):
        model, x, y = problem()
        values.append(run(steps, model, x, y))
    assert values[0] == values[1]


def test_what_was_frozen_before_the_steps_is_frozen_after_them():
    model, x, y = problem()
    model.kernel.requires_grad_(False)
    steps = BlockSteps(noise="evidence")
    run(steps, model, x, y)
    assert not any(p.requires_grad for p in model.parameters())
    steps.release()
    assert not any(p.requires_grad for p in model.kernel.parameters())
    assert all(p.requires_grad for p in (*model.likelihood.parameters(), model.family.mean))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sweeps": 0}, "sweeps=0 must be positive"),
        ({"noise": "adam"}, "noise=adam: expected one of auto, fixed, evidence"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=message):
        BlockSteps(**options)


@pytest.mark.parametrize(
    ("model_options", "options", "message"),
    [
        ({"covariance": "mean_field"}, {}, "needs covariance=block_diagonal"),
        ({"covariance": "chevron", "num_dense": 2}, {}, "needs covariance=block_diagonal"),
        ({"likelihood": Laplace()}, {}, r"needs likelihood=Gaussian\(\), got Laplace"),
        ({}, {"stand_in_groups": 5}, "stand_in_groups=5 is above the 4 groups"),
    ],
)
def test_invalid_setups_are_refused_before_training(model_options, options, message):
    model, x, _ = problem(**model_options)
    with pytest.raises(ConfigError, match=message):
        BlockSteps(**options).check(model, x.shape[0])


def test_a_negative_number_of_dense_columns_is_refused():
    with pytest.raises(ConfigError, match="num_dense=-1 must be at least 0"):
        problem(num_dense=-1)


def test_a_start_of_its_own_does_not_go_with_block_diagonal():
    for options in ({"warm_start": True}, {"block_solves": 2}, {"diagonal": "free"}):
        with pytest.raises(ConfigError, match="is solved by optimizer=BlockSteps"):
            problem(**options)


def test_the_least_noise_is_relative_to_the_prior_variance_of_f():
    laplacian = partial(LaplacianEigenfunctions, num_inputs=2)
    model, x, _ = problem(basis=laplacian, likelihood=Gaussian(1e-4), num_basis=400)
    BlockSteps(noise="auto").bind(model, x, seed=0)
    assert float(model.noise_variance) == pytest.approx(1e-4)  # above 1e-5 times 1.5
    prior = (model.basis(x).square() @ model.basis.log_variances().exp()).mean()
    # the mean over the data, which are in the middle of the box, is above that over the box
    assert 0.02 < model.prior_variance() / float(prior) < 1.1


def test_a_fixed_noise_variance_stays():
    model, x, y = problem()
    model.likelihood.requires_grad_(False)
    optimizer = BlockSteps(sweeps=2, noise="evidence")
    run(optimizer, model, x, y)
    optimizer.release()
    assert float(model.noise_variance) == pytest.approx(0.3, rel=1e-12)
