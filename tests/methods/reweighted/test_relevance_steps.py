"""The sequential relevance vector machine: evidence, sparsity, the posterior that is left."""

import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.reweighted.cached_relevance import LEFT_OUT, select_relevance_vectors
from gpx.models import Reweighted, ReweightedPosterior
from gpx.objectives import ReweightedEvidence
from gpx.training import LBFGSB, RelevanceVectors

GENERATOR = torch.Generator()


def build(num_data=100, **options):
    defaults = {"basis": "dictionary", "inference": "relevance_vectors"}
    return Reweighted(
        kernel=RBF(1, lengthscale=2.0),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=1,
        num_data=num_data,
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
    inside = model.log_weights.detach() > LEFT_OUT + 1.0
    assert float(model.log_weights.grad[inside].abs().max()) < 0.1
    assert int(inside.sum()) == facts["relevance_vectors"]


def test_with_the_noise_held_it_is_the_selection_from_statistics():
    model, steps, x, y = problem(learn_noise=False)
    run(steps, x, y)
    noise = model.likelihood.noise_variance.detach().double()
    want, report = select_relevance_vectors(model.statistics, noise)
    assert report.converged
    torch.testing.assert_close(steps.variances, want, rtol=1e-9, atol=0)
    assert float(noise) == pytest.approx(0.05)


@torch.no_grad()
def test_the_posterior_is_that_of_all_functions_and_holds_the_relevant_ones():
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
    empty = build().empty_posterior(0)
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
    with pytest.warns(UserWarning, match=r"nats left to gain in one move.*raise optimizer\.moves"):
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
        with pytest.warns(UserWarning, match=r"wants less noise than the variance of 2e-06"):
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


def test_mistakes_are_explained():
    with pytest.raises(ConfigError, match=r"optimizer\.tolerance=0\.0 must be positive"):
        RelevanceVectors(tolerance=0.0)
    steps = RelevanceVectors()
    with pytest.raises(ConfigError, match="inference=type2 weights all of them; use inference=rel"):
        steps.check(build(inference="type2"), 10)
    with pytest.raises(ConfigError, match="LBFGSB would weight every function"):
        build().check_optimizer(LBFGSB())
