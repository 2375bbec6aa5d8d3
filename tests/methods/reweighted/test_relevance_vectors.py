"""The sequential relevance vector machine: evidence, sparsity, the posterior that is left."""

import math
from functools import partial

import pytest
import torch
from linear_features import draw, evidence

from gpx.bases import TrainingPoints
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.reweighted.posterior import LOG_OF_ZERO_VARIANCE, relevant_functions
from gpx.methods.reweighted.relevance_vectors import (
    active_weights,
    coordinate_factors,
    noise_update,
)
from gpx.models import Reweighted, ReweightedPosterior
from gpx.objectives import ReweightedEvidence
from gpx.training import LBFGSB, RelevanceVectors

GENERATOR = torch.Generator()


def build(num_data=100, **options):
    points = partial(TrainingPoints, num_inputs=1, num_data=num_data)
    defaults = {"basis": points, "inference": "relevance_vectors"}
    return Reweighted(
        kernel=RBF(1, lengthscale=2.0),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        **{**defaults, **options},
    ).double()


def sinc(n=100):
    x = torch.linspace(-10.0, 10.0, n, dtype=torch.float64)[:, None]
    noise = torch.randn(n, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return x, torch.sinc(x[:, 0] / math.pi) + 0.1 * noise


def problem(**options):
    model, (x, y) = build(), sinc()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    steps = RelevanceVectors(**options)
    steps.check(model, len(y))
    steps.bind(model, x, 0)
    return model, steps, x, y


def run(steps, x, y, most=200):
    values = []
    while not steps.converged and len(values) < most:
        values.append(float(steps.step(len(values), x, y, generator=GENERATOR).value))
    return values


def test_the_evidence_never_falls_and_few_functions_and_the_noise_are_left():
    model, steps, x, y = problem()
    before = float(ReweightedEvidence().evidence(model, x, y).value.detach())
    values = run(steps, x, y)
    assert min(torch.tensor([before, *values]).diff()) > -1e-9
    facts = steps.final_evidence(x, y, generator=GENERATOR).facts
    assert facts["converged"]
    assert 3 <= facts["relevance_vectors"] <= 15
    assert float(model.likelihood.noise_variance.detach()) == pytest.approx(0.01, rel=0.35)
    # what the objective says of the model at which it ended, and that it is a maximum
    found = ReweightedEvidence().evidence(model, x, y)
    assert float(found.value.detach()) == pytest.approx(values[-1], rel=1e-7)
    found.value.backward()
    inside = model.log_weights.detach() > LOG_OF_ZERO_VARIANCE + 1.0
    assert float(model.log_weights.grad[inside].abs().max()) < 0.1
    assert int(inside.sum()) == facts["relevance_vectors"]


@torch.no_grad()
def test_with_the_noise_held_the_evidence_is_that_of_the_functions_that_are_in():
    model, steps, x, y = problem(learn_noise=False)
    values = run(steps, x, y)
    assert steps.converged
    assert float(model.likelihood.noise_variance) == pytest.approx(0.05)
    assert min(torch.tensor(values).diff()) > -1e-9
    phi = model.kernel.evaluate(x, x)
    want = evidence(phi, y, steps.variances, model.likelihood.noise_variance)
    assert values[-1] == pytest.approx(float(want), rel=1e-9)
    fitted = model.condition(x, y).predict(x).mean
    assert float((fitted - torch.sinc(x[:, 0] / math.pi)).square().mean().sqrt()) < 0.06


@torch.no_grad()
def test_the_posterior_equals_that_of_all_functions_and_stores_the_relevant_ones():
    model, steps, x, y = problem()
    run(steps, x, y)
    count = int((steps.variances > 0.0).sum())
    sparse = model.condition(x, y)
    assert sparse.gram.shape == (count, count)
    assert sparse.basis.centres.shape == (count, 1)
    dense = ReweightedPosterior(model.basis, model.mean, "diagonal")
    dense.fill(model.statistics, model.position[None])
    at = torch.linspace(-12.0, 12.0, 23, dtype=torch.float64)[:, None]
    for a, b in zip(sparse.predict(at), dense.predict(at), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    empty = build().new_posterior()
    empty.load_state_dict(sparse.state_dict())
    assert torch.equal(empty.predict(at).variance, sparse.predict(at).variance)
    paths = empty.sample_paths(4000, generator=torch.Generator().manual_seed(1))(at)
    assert float((paths.mean(0) - sparse.predict(at).mean).abs().max()) < 0.05


def test_a_selection_goes_on_where_it_stopped():
    _, first, x, y = problem()
    whole = run(first, x, y)
    model, half, x, y = problem()
    values = run(half, x, y, most=4)
    again = RelevanceVectors()
    again.load_state_dict(half.state_dict())
    again.bind(model, x, 0)
    assert values + run(again, x, y) == whole


def test_ending_early_is_a_warning():
    _, steps, x, y = problem(moves=2)
    assert steps.max_steps(100) == 2
    run(steps, x, y, most=2)
    with pytest.warns(UserWarning, match=r"nats left to gain in one move.*raise moves"):
        steps.final_evidence(x, y, generator=GENERATOR)


def test_targets_that_are_explained_without_noise_are_a_warning():
    model, (x, _) = build(num_data=30), sinc(30)
    y = RBF(1, lengthscale=2.0).double().evaluate(x, x[10:11])[:, 0].detach()  # one function of all
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    steps = RelevanceVectors()
    steps.bind(model, x, 0)
    run(steps, x, y)
    assert steps.converged
    again = RelevanceVectors()
    again.load_state_dict(steps.state_dict())
    again.bind(model, x, 0)
    for ended in (steps, again):
        with pytest.warns(UserWarning, match=r"is at its lower bound of 2e-06"):
            ended.final_evidence(x, y, generator=GENERATOR)


def test_without_signal_no_function_joins():
    model, (x, _) = build(), sinc()
    y = torch.zeros(100, dtype=torch.float64)
    y[::2], y[1::2] = 1.0, -1.0  # no smooth function comes near it
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    steps = RelevanceVectors()
    steps.bind(model, x, 0)
    run(steps, x, y)
    assert float(steps.variances.amax()) == 0.0
    assert float(model.likelihood.noise_variance.detach()) == pytest.approx(1.0, rel=1e-6)
    assert float(model.condition(x, y).predict(x).mean.abs().max()) < 1e-6


def test_invalid_setups_are_refused():
    with pytest.raises(ConfigError, match=r"tolerance=0\.0 must be positive"):
        RelevanceVectors(tolerance=0.0)
    steps = RelevanceVectors()
    with pytest.raises(ConfigError, match="inference=type2 weights all of them; use inference=rel"):
        steps.check(build(inference="type2"), 10)
    with pytest.raises(ConfigError, match="LBFGSB would weight every function"):
        build().check_optimizer(LBFGSB())


# --- one prior variance, or the noise, at a time -------------------------------------------------


def features():
    phi = draw(40, 8, seed=1)
    return phi, phi[:, 0] - 0.5 * phi[:, 3] + 0.4 * draw(40, seed=2)


def sums():
    phi, y = features()
    return SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, len(y))


NOISE = torch.tensor(0.16, dtype=torch.float64)


def evidence_of(variances, noise=NOISE):
    return float(evidence(*features(), variances, noise))


def test_coordinate_optimum_beats_a_grid_and_the_gain_is_the_evidence_gained():
    statistics = sums()
    variances = draw(8, seed=3).exp()
    variances[[2, 5]] = 0.0
    factors = coordinate_factors(statistics, variances, NOISE)
    before = evidence_of(variances)
    assert int((factors.optimum == 0.0).sum()) > 0  # both kinds are there
    assert int((factors.optimum > 0.0).sum()) > 1
    for i in range(8):
        moved = variances.clone()
        moved[i] = factors.optimum[i]
        best = evidence_of(moved)
        assert best - before == pytest.approx(float(factors.gain[i]), abs=1e-9)
        for value in [0.0, *torch.logspace(-6.0, 3.0, 60).tolist()]:
            moved[i] = value
            assert evidence_of(moved) <= best + 1e-9


def test_the_noise_update_never_lowers_the_evidence_and_ends_at_a_maximum():
    statistics, variances = sums(), draw(8, seed=3).exp()
    variances[[2, 5]] = 0.0
    for start in (1e-4, 0.16, 50.0):
        noise = torch.tensor(start, dtype=torch.float64)
        last = evidence_of(variances, noise)
        for _ in range(30):
            weights = active_weights(statistics, variances, noise)
            noise = noise_update(statistics, variances, noise, weights)
            value = evidence_of(variances, noise)
            assert value > last - 1e-9
            last = value
        weights = active_weights(statistics, variances, noise)
        assert float(weights.noise_gradient().abs()) < 1e-5
    none = torch.zeros_like(variances)
    none = noise_update(statistics, none, NOISE, active_weights(statistics, none, NOISE))
    assert float(none) == pytest.approx(float(statistics.squared) / 40)


def test_relevant_functions_are_those_of_any_sample():
    logs = torch.tensor(
        [
            [0.0, LOG_OF_ZERO_VARIANCE, -40.0, -3.0],
            [LOG_OF_ZERO_VARIANCE, LOG_OF_ZERO_VARIANCE, 0.0, -30.0],
        ]
    ).double()
    samples = torch.cat([logs, torch.zeros(2, 1)], 1)
    assert relevant_functions(samples).tolist() == [0, 2, 3]
    assert relevant_functions(torch.full((1, 4), LOG_OF_ZERO_VARIANCE).double()).tolist() == [0]


def test_another_run_selects_anew_and_a_fixed_noise_variance_stays():
    model, steps, x, y = problem()
    values = run(steps, x, y)
    noise = float(model.noise_variance.detach())
    model.likelihood.requires_grad_(False)
    steps.bind(model, x, 0)
    assert not steps.converged
    assert run(steps, x, y)[-1] == pytest.approx(values[-1], abs=1.0)
    assert float(model.noise_variance) == noise
    state = steps.state_dict()
    steps.load_state_dict(state)
    steps.bind(model, x, 0)
    assert steps.converged
    steps.bind(model, x, 0)
    assert not steps.converged
