"""Mixtures of experts: gates, the first two moments, and steps that never lower the evidence."""

import copy
import math
from itertools import pairwise

import dense_experts as dense
import pytest
import torch
from claimed_cuda import claimed_cuda
from draws import draws
from recordings import Capture
from torch.distributions import MultivariateNormal, Normal

from gpx.errors import ConfigError
from gpx.inducing import ClusterBlocks
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg.replayed import EAGER_STEPS, solves_recorded
from gpx.means import Constant
from gpx.methods.experts import HardCut
from gpx.methods.experts.mixture import Gates
from gpx.models import ExactGP, MixtureOfExperts
from gpx.objectives import HardCutEvidence


def mixture(x, y, count=3, **options):
    model = MixtureOfExperts(**dense.parts(), num_experts=count, **options)
    model.initialise(x, y, generator=draws())
    return model


def value(model, x, y):
    return float(HardCutEvidence().evidence(model, x, y).value.detach())


def two_regimes(n=120):
    """Slow on the left and fast on the right; labels by the sign of x."""
    generator = draws(7)
    x = torch.rand(n, 1, generator=generator, dtype=torch.float64) * 6.0 - 3.0
    fast = x[:, 0] > 0.0
    y = torch.where(fast, (9.0 * x[:, 0]).sin(), 0.5 * x[:, 0])
    return x, y + 0.05 * torch.randn(n, generator=generator, dtype=torch.float64), fast.long()


def regimes_model(**options):
    return MixtureOfExperts(
        kernel=RBF(1, 0.5).double(),
        mean=Constant().double(),
        likelihood=Gaussian(0.05).double(),
        num_experts=2,
        **options,
    )


def test_gates_are_gaussian_clusters_that_sum_to_one():
    x, _, new = dense.data()
    labels = torch.arange(61) % 4
    gates = Gates.fit(x, labels, 4)
    want = []
    for k in range(4):
        own = x[labels == k]
        normal = MultivariateNormal(own.mean(0), own.var(0, correction=0).diag())
        want.append(normal.log_prob(new) + math.log(len(own) / 61))
    want = torch.stack(want)
    torch.testing.assert_close(gates.log_joint(new), want, rtol=1e-10, atol=1e-10)
    found = gates.probabilities(new)
    torch.testing.assert_close(found.sum(0), torch.ones(11).double(), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(found, want.softmax(0), rtol=1e-10, atol=1e-14)


def test_the_clusters_are_the_most_likely_ones():
    x, _, _ = dense.data()
    labels = torch.arange(61) % 3

    def likelihood(gates):
        return float(gates.log_joint(x).gather(0, labels.unsqueeze(0)).sum())

    gates = Gates.fit(x, labels, 3)
    best = likelihood(gates)
    for change in (1.02, 0.98):
        assert likelihood(gates._replace(centres=gates.centres * change)) < best
        assert likelihood(gates._replace(variances=gates.variances * change)) < best


def test_inputs_that_do_not_vary_leave_the_gates_finite():
    x, _, new = dense.data()
    x[:, 1] = 0.5
    gates = Gates.fit(x, torch.arange(61) % 3, 3)
    assert torch.isfinite(gates.log_joint(new)).all()


@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_one_expert_is_the_exact_process(sharing):
    x, y, new = dense.data()
    posterior = mixture(x, y, 1, hyperparameters=sharing).condition(x, y)
    exact = ExactGP(**dense.parts()).condition(x, y)
    found, want = posterior.predict(new), exact.predict(new)
    torch.testing.assert_close(found, want, rtol=0.0, atol=1e-10)


def test_the_prediction_is_the_mixture_of_its_experts():
    x, y, new = dense.data()
    model = mixture(x, y)
    with torch.no_grad():
        for parameter in model.own.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draws(1)).double()
    posterior = model.condition(x, y)
    gates = Gates.fit(x, model.labels, 3).probabilities(new)
    target = torch.linspace(-1.0, 1.0, 11, dtype=torch.float64)
    mean, second, density = 0.0, 0.0, 0.0
    with torch.no_grad():
        for k in range(3):
            kernel, constant, likelihood, _ = model.parts.of_expert(k)
            own = model.labels == k
            noise = likelihood.noise_variance
            m, v = dense.prediction(kernel, constant, noise, x[own], y[own], new)
            m = m + constant(new)
            mean, second = mean + gates[k] * m, second + gates[k] * (v + m.square())
            density = density + gates[k] * Normal(m, (v + noise).sqrt()).log_prob(target).exp()
    found = posterior.predict(new)
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.variance, second - mean.square(), rtol=1e-8, atol=1e-9)
    law = posterior.predictive(new, model.likelihood)
    torch.testing.assert_close(law.log_prob(target), density.log(), rtol=1e-8, atol=1e-9)


def test_the_evidence_is_that_of_targets_inputs_and_assignment():
    x, y, _ = dense.data()
    model = mixture(x, y, hyperparameters="shared")
    want = 0.0
    for k in range(3):
        own = model.labels == k
        noise = model.likelihood.noise_variance
        want = want + dense.log_density(model.kernel, model.mean, noise, x[own], y[own])
        normal = MultivariateNormal(x[own].mean(0), x[own].var(0, correction=0).diag())
        share = math.log(int(own.sum()) / 61)
        want = want + (normal.log_prob(x[own]) + share).sum()
    found = HardCutEvidence().evidence(model, x, y)
    torch.testing.assert_close(found.value, want, rtol=1e-11, atol=0.0)
    assert found.kind == "lower_bound"


def test_a_move_gains_its_predicted_evidence():
    """At the gates as they are: the gates fitted anew can only add to it."""
    x, y, _ = dense.data()
    model = mixture(x, y)
    steps = HardCut()
    steps.bind(model, x, 0)
    target, gain = steps._moves(x, y)
    gates = model.gates(x).log_joint(x)
    labels = model.labels

    def evidence(assigned):
        model.assign(assigned)
        parts = HardCutEvidence().evidence(model, x, y).parts
        experts = parts["fit"] + parts["complexity"] + parts["constant"]
        return float(experts + gates.gather(0, assigned.unsqueeze(0)).sum())

    before = evidence(labels)
    for row in (0, 17, 40, 60):
        moved = labels.clone()
        moved[row] = target[row]
        assert evidence(moved) - before == pytest.approx(float(gain[row]), abs=1e-8)


@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_without_trained_hyperparameters_only_the_assignment_is_found(sharing):
    x, y, _ = two_regimes()
    model = regimes_model(hyperparameters=sharing)
    for part in (model.kernel, model.mean, model.likelihood):
        part.requires_grad_(False)
    model = MixtureOfExperts(**model.parts.named(), num_experts=2, hyperparameters=sharing)
    model.initialise(x, y, generator=draws())
    before, labels = value(model, x, y), model.labels
    steps = HardCut()
    steps.bind(model, x, 0)
    assert float(steps.step(0, x, y, generator=draws()).value) > before
    assert not torch.equal(model.labels, labels)


@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_no_step_lowers_the_evidence(sharing):
    x, y, _ = two_regimes()
    model = regimes_model(hyperparameters=sharing, partition=ClusterBlocks())
    model.initialise(x, y, generator=draws())
    # a start that is wrong for a third of the rows
    wrong = torch.where(
        torch.rand(len(x), generator=draws(2)) < 0.33, 1 - model.labels, model.labels
    )
    model.assign(wrong)
    steps = HardCut(evaluations=5, tolerance=0.0)
    steps.bind(model, x, 0)
    values = [value(model, x, y)]
    for step in range(8):
        values.append(float(steps.step(step, x, y, generator=draws()).value))
        assert step or not torch.equal(model.labels, wrong)
    assert all(after >= before for before, after in pairwise(values))
    assert values[-1] > values[0] + 50.0


def test_a_fit_on_a_device_is_replayed_and_ends_where_a_cpu_does():
    x, y, _ = two_regimes()
    here = regimes_model(partition=ClusterBlocks())
    here.initialise(x, y, generator=draws())
    with claimed_cuda() as waits:
        there = copy.deepcopy(here).cuda()
        recorder = Capture(waits, lambda: [])
        with solves_recorded(recorder):
            found = fitted(there, x.cuda(), y.cuda())
        assert (recorder.recordings, recorder.replays) == (1, 10 - EAGER_STEPS)
        # a look at the factorisation and a copy of loss and gradient for each evaluation
        assert sum(n for place, n in waits.items() if "hard_cut.py" in place) <= 13
        assert found == pytest.approx(fitted(here, x, y), rel=1e-10)
        for name, value in here.named_parameters():
            torch.testing.assert_close(
                there.get_parameter(name).detach().cpu(), value.detach(), rtol=1e-7, atol=1e-9
            )


def fitted(model, x, y):
    """Evidence after one fit of ten evaluations."""
    steps = HardCut(evaluations=10)
    steps.bind(model, x, 0)
    return steps._fit(x, y, value(model, x, y))


def test_hard_cuts_find_the_regimes():
    x, y, truth = two_regimes()
    model = regimes_model(partition=ClusterBlocks())
    model.initialise(x, y, generator=draws())
    model.assign((x[:, 0] > -0.5).long())  # others may end in other optima
    steps = HardCut()
    steps.bind(model, x, 0)
    for step in range(15):
        steps.step(step, x, y, generator=draws())
        if steps.converged:
            break
    assert steps.converged
    assert torch.equal(model.labels, truth)
    kernels = [model.parts.of_expert(k).kernel for k in range(2)]
    lengthscales = [float(kernel.lengthscale.detach()) for kernel in kernels]
    assert max(lengthscales) > 3.0 * min(lengthscales)


def test_a_run_that_was_stopped_after_its_last_round_makes_no_other_one():
    x, y, _ = dense.data()
    steps = HardCut(tolerance=1e3)  # ends after one round
    steps.bind(mixture(x, y), x, 0)
    steps.step(0, x, y, generator=draws())
    assert steps.converged
    resumed = HardCut(tolerance=1e3)
    resumed.load_state_dict(copy.deepcopy(steps.state_dict()))
    resumed.bind(mixture(x, y), x, 0)
    assert resumed.converged
    resumed.bind(mixture(x, y), x, 0)  # of another run
    assert not resumed.converged
    resumed.load_state_dict({})  # of an earlier version
    resumed.bind(mixture(x, y), x, 0)
    assert not resumed.converged


def test_sampled_functions_have_the_moments_of_the_mixture():
    x, y, new = dense.data()
    posterior = mixture(x, y).condition(x, y)
    dense.require_moments_of_paths(posterior, new)


def test_invalid_setups_are_refused():
    x, y, _ = dense.data()
    model = mixture(x, y)
    with pytest.raises(ConfigError, match="a row to each of the 3 experts"):
        model.assign(torch.zeros(61, dtype=torch.long))
    with pytest.raises(ConfigError, match="evaluations=0 must be at least 1"):
        HardCut(evaluations=0)
    with pytest.raises(ConfigError, match="MixtureOfExperts models, got ExactGP"):
        HardCut().check(ExactGP(**dense.parts()), 10)
