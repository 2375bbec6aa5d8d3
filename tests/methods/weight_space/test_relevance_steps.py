"""Relevance vectors from mini-batches: the optimum of a weight, sparsity, and an exact resume."""

import copy

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.weight_space.qsrvm import QSRVM
from gpx.objectives import WeightSpaceELBO
from gpx.training import RelevanceSteps


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def problem(n=60, noise=0.01, **options):
    """A noisy sinc with every kernel function in the dictionary, and no sweep."""
    generator = torch.Generator().manual_seed(0)
    x = 20.0 * torch.rand(n, 1, generator=generator) - 10.0
    y = torch.sinc(x[:, 0] / torch.pi) + 0.1 * torch.randn(n, generator=generator)
    settings = {"num_data": n, "num_inputs": 1, "block_size": 10, "sweeps": 0, **options}
    kernel = RBF(lengthscale=2.0, outputscale=None)
    model = QSRVM(kernel=kernel, mean=Zero(), likelihood=Gaussian(noise), **settings)
    model.initialise(x, y, generator=generator)
    return model, x, y


def run(steps, model, x, y, count, start=0):
    generator = torch.Generator().manual_seed(5)
    if start == 0:
        steps.check(model, len(x))
    steps.bind(model, x, seed=3)
    return [float(steps.step(k, x, y, generator=generator).value) for k in range(start, count)]


def test_a_visit_is_the_joint_optimum_of_weight_and_precision():
    """From all rows, the first visit of each: no gradient is left there, and out means out."""
    model, x, y = problem()
    steps = RelevanceSteps(rows=60, candidates=1, active=1, learn_noise=False)
    steps.bind(model, x, seed=0)
    objective = WeightSpaceELBO()
    inside = 0
    for column in (7, 30, 52, 11, 45, 22):
        fitted = model.basis(x) @ model.family.mean.detach().view(-1)
        steps._visit(torch.tensor([column]), x, y - fitted, 1.0)
        for parameter in (model.family.mean, model.basis.log_precision):
            parameter.requires_grad_(True).grad = None
        objective.evidence(model, x, y).value.backward()
        if float(model.family.mean.detach().view(-1)[column]) != 0.0:
            inside += 1
            assert abs(float(model.family.mean.grad.view(-1)[column])) < 1e-7
            assert abs(float(model.basis.log_precision.grad[column])) < 1e-9
        else:  # any smaller precision lowers the bound
            assert float(model.basis.log_precision.grad[column]) >= 0.0
            phi = model.basis(x)[:, column].detach()
            assert float(phi @ (y - fitted)) ** 2 <= 0.01 * float(phi @ phi)
    assert inside >= 3


def test_a_visit_of_several_columns_is_one_of_each_in_turn_and_the_noise_is_its_fixed_point():
    columns = (28, 7, 30, 33, 52, 11)  # neighbours overlap
    together, x, y = problem()
    apart, _, _ = problem()
    steps = [RelevanceSteps(rows=60, candidates=1, active=1) for _ in range(2)]
    for each, model in zip(steps, (together, apart), strict=True):
        each.bind(model, x, seed=0)
    steps[0]._visit(torch.tensor(columns), x, y, 1.0)
    for column in columns:
        residual = y - apart.basis(x).detach() @ apart.family.mean.detach().view(-1)
        steps[1]._visit(torch.tensor([column]), x, residual, 1.0)
    for name in ("family.mean", "basis.log_precision"):
        found, want = (model.get_parameter(name).detach() for model in (together, apart))
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
    # |y - Phi mu|^2 + tr(Phi Sigma Phi^T) over n, Sigma diagonal
    phi, mean = apart.basis(x).detach(), apart.family.mean.detach().view(-1)
    kept = mean.nonzero()[:, 0]
    assert len(kept) >= 3
    squares = phi[:, kept].square().sum(0)
    covariance = 1.0 / (apart.basis.log_precision.detach()[kept, 0].exp() + squares / 0.01)
    misfit = (y - phi @ mean).square().sum()
    steps[1]._move_noise(misfit, len(y), 0)
    want = float(misfit + squares @ covariance) / len(y)
    assert float(apart.noise_variance) == pytest.approx(want, rel=1e-9)


def test_mini_batches_alone_select_few_of_five_hundred_functions():
    model, x, y = problem(500, block_size=50)
    steps = RelevanceSteps()
    values = run(steps, model, x, y, 800)
    found = steps.final_evidence(x, y, generator=torch.Generator())
    grid = torch.linspace(-9.5, 9.5, 200)[:, None]
    posterior = model.condition(x, y)
    error = posterior.predict(grid).mean - torch.sinc(grid[:, 0] / torch.pi)
    assert posterior.num_vectors <= 30
    assert float(error.square().mean().sqrt()) <= 0.02
    assert 0.008 < float(model.noise_variance) < 0.012
    assert steps.outcome == f"{posterior.num_vectors} of 500 vectors"
    # the stated bound is the bound, and the steps' estimates of it scatter about it
    exact = float(WeightSpaceELBO().evidence(model, x, y).value.detach())
    assert float(found.value) == pytest.approx(exact, rel=1e-9)
    late = torch.tensor(values[-200:])
    # of 200 batches of 100 rows; at the end the bound still climbs by a few nats
    assert abs(float(late.mean()) - exact) < 10.0 + 5.0 * float(late.std()) / 200**0.5


def test_noise_is_learned_from_a_start_that_is_far_too_large():
    model, x, y = problem(200, noise=0.3, block_size=50)
    run(RelevanceSteps(), model, x, y, 300)
    assert 0.008 < float(model.noise_variance) < 0.014
    fixed, x, y = problem(200, noise=0.3, block_size=50)
    run(RelevanceSteps(learn_noise=False), fixed, x, y, 20)
    assert float(fixed.noise_variance) == pytest.approx(0.3, rel=1e-12)


def test_learned_noise_stays_above_its_floor():
    model, x, y = problem()
    model.likelihood = Gaussian(0.1, noise_floor=0.05)
    run(RelevanceSteps(rows=60, candidates=20, active=20), model, x, y, 20)
    assert model.noise_variance.item() == pytest.approx(1.05 * 0.05)


def test_targets_of_zero_leave_no_function_and_a_posterior_of_none():
    model, x, _ = problem(200, noise=1.0, block_size=50)
    run(RelevanceSteps(learn_noise=False), model, x, torch.zeros(200), 20)
    posterior = model.condition(x, torch.zeros(200))
    assert posterior.num_vectors == 0
    found = posterior.predict(x)
    assert found.mean.shape == (200,)
    assert not found.mean.any()
    assert not found.variance.any()


def test_a_resumed_run_is_the_same_run():
    whole, x, y = problem()
    run(RelevanceSteps(rows=20), whole, x, y, 30)
    parts, x, y = problem()
    first = RelevanceSteps(rows=20)
    generator = torch.Generator().manual_seed(5)
    first.bind(parts, x, seed=3)
    for k in range(12):
        first.step(k, x, y, generator=generator)
    first.release()
    second = RelevanceSteps(rows=20)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.bind(parts, x, seed=3)
    for k in range(12, 30):
        second.step(k, x, y, generator=generator)
    assert torch.equal(parts.family.mean, whole.family.mean)
    assert torch.equal(parts.basis.log_precision, whole.basis.log_precision)
    assert torch.equal(parts.noise_variance, whole.noise_variance)


def test_steps_that_trained_a_model_begin_anew_with_the_next():
    steps, values = RelevanceSteps(rows=20), []
    for _ in range(2):
        model, x, y = problem()
        values.append(run(steps, model, x, y, 8))
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows=0"),
        ({"candidates": 0}, "candidates=0"),
        ({"active": 0}, "active=0"),
        ({"step_decay": 0.5}, r"step_decay=0.5: .* \(0.5, 1\]"),
        ({"step_decay": 1.1}, "step_decay=1.1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        RelevanceSteps(**options)


def test_sweeps_and_dense_columns_are_refused():
    model, x, _ = problem(sweeps=1)
    with pytest.raises(ConfigError, match="set sweeps=0"):
        RelevanceSteps().check(model, len(x))
    model, x, _ = problem(num_dense=2)
    with pytest.raises(ConfigError, match="it needs num_dense=0"):
        RelevanceSteps().check(model, len(x))
