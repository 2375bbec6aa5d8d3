"""Laplace's evidence: definition, gradient, limits, and warm starts of the mode."""

import math

import pytest
import torch
from claimed_cuda import claimed_cuda
from class_problems import gradient_errors, parts, points

from gpx.errors import ConfigError, DataError, NotAvailable
from gpx.kernels import RBF
from gpx.likelihoods import (
    Bernoulli,
    Gaussian,
    Laplace,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Softmax,
    StudentT,
)
from gpx.means import Zero
from gpx.models import SVGP, VGP, ExactGP, ExpectationPropagationGP, LaplaceGP
from gpx.objectives import VGPELBO, EPEvidence, ExactMLL, LaplaceEvidence

CASES = {
    "logit": (lambda: Bernoulli("logit"), 2),
    "probit": (lambda: Bernoulli("probit"), 2),
    "softmax": (lambda: Softmax(3), 3),
    "softmax of four": (lambda: Softmax(4), 4),
    "poisson": (Poisson, 3),
    "gaussian": (lambda: Gaussian(0.1), 3),
}


class AnyLikelihood(LaplaceEvidence):
    """Also of Gaussian noise, under which it is exact."""

    def check(self, model):
        pass


def problem(name, n=40, scale=2.0):
    make, classes = CASES[name]
    x, y = points(n, classes)
    return LaplaceGP(**parts(make(), scale)).double(), x, y


@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(name, n):
    """log of the integral of the Gaussian at the maximum of the joint density, all by autograd."""
    model, x, y = problem(name, n)
    p = model.likelihood.num_latents
    kernel = torch.kron(model.kernel.evaluate(x), torch.eye(p).double()).detach()

    def joint(f):
        rise = f - model.mean.constant.detach()
        prior = torch.distributions.MultivariateNormal(0.0 * f, kernel)
        shaped = f if p == 1 else f.view(n, p)
        return model.likelihood.log_prob(y, shaped).sum() + prior.log_prob(rise)

    f = torch.zeros(n * p, dtype=torch.float64)
    for _ in range(60):
        slope = torch.autograd.functional.jacobian(joint, f)
        hessian = torch.autograd.functional.hessian(joint, f)
        f = f - 0.7 * torch.linalg.solve(hessian, slope)
    assert float(slope.abs().max()) < 1e-9
    want = joint(f) + 0.5 * n * p * math.log(2.0 * math.pi) - 0.5 * torch.logdet(-hessian)
    found = AnyLikelihood().evidence(model, x, y)
    torch.testing.assert_close(found.value, want.detach(), rtol=1e-9, atol=1e-9)
    assert found.kind == "estimate"


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_follows_the_mode(name):
    """Central differences of the converged evidence; errors relative to the gradient's size."""
    model, x, y = problem(name)
    errors = gradient_errors(model, AnyLikelihood(), x, y)
    assert max(errors.values()) < 1e-8, errors


def test_the_gradient_in_the_inputs():
    model, x, y = problem("softmax", 5)
    x = x.clone().requires_grad_()
    evidence = lambda at: LaplaceEvidence().evidence(model, at, y).value  # noqa: E731
    assert torch.autograd.gradcheck(evidence, x, eps=1e-5, atol=1e-6)


def test_gaussian_noise_is_the_exact_process():
    model, x, y = problem("gaussian")
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    found, want = AnyLikelihood().evidence(model, x, y), ExactMLL().evidence(exact, x, y)
    torch.testing.assert_close(found.value, want.value, rtol=1e-11, atol=0.0)
    assert found.facts["newton_steps"] <= 2  # one, and one that finds nothing left to do
    found.value.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    want.value.backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-8, atol=1e-9)
    new = x[:7] + 0.1
    found, want = model.condition(x, y).predict(new), exact.condition(x, y).predict(new)
    torch.testing.assert_close(found.mean, want.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.variance, want.variance, rtol=1e-8, atol=1e-10)


def test_two_classes_by_softmax_or_by_their_difference():
    """f_1 - f_0 of two latents with kernel k is one latent with kernel 2 k."""
    x, y = points()
    both = LaplaceGP(kernel=RBF(2, 0.8, 1.5), mean=Zero(), likelihood=Softmax(2)).double()
    one = LaplaceGP(kernel=RBF(2, 0.8, 3.0), mean=Zero(), likelihood=Bernoulli()).double()
    found = LaplaceEvidence().evidence(both, x, (y > 0).double()).value
    want = LaplaceEvidence().evidence(one, x, y).value
    torch.testing.assert_close(found, want, rtol=1e-11, atol=0.0)
    new = x[:9] + 0.2
    law = both.condition(x, (y > 0).double()).predictive(new, both.likelihood)
    probability = one.condition(x, y).predictive(new, one.likelihood).probs
    # the first averages over 1,024 quasi-random points
    torch.testing.assert_close(law.probs[:, 1], probability, rtol=0.0, atol=2e-3)


def test_newton_starts_at_the_last_mode_of_the_same_data():
    """Through a line search the start stays, so that equal points have equal values to the bit."""
    model, x, y = problem("logit")
    objective = LaplaceEvidence()
    first = objective.evidence(model, x, y)
    objective.after_step(model)
    near = objective.evidence(model, x, y)
    assert near.facts["newton_steps"] < first.facts["newton_steps"]
    torch.testing.assert_close(near.value, first.value, rtol=1e-13, atol=0.0)
    with torch.no_grad():
        model.mean.constant.add_(3.0)
        objective.evidence(model, x, y)  # a trial point far away
        model.mean.constant.sub_(3.0)
    assert torch.equal(objective.evidence(model, x, y).value, near.value)
    other = LaplaceEvidence()
    other.load_state_dict(objective.state_dict())
    assert torch.equal(other.evidence(model, x, y).value, near.value)


class Slope(Poisson):
    def curvature(self, y, f):
        return y - f.exp()


def test_unsupported_models_are_refused():
    x, y = points(6)
    for likelihood, words in (
        (Gaussian(0.1), r"nothing to approximate: take model=ExactGP\(\)"),
        (StudentT(0.3), "needs a log-concave likelihood, which StudentT is not"),
    ):
        with pytest.raises(ConfigError, match=words):
            LaplaceEvidence().check(LaplaceGP(**parts(likelihood)))
    with pytest.raises(NotAvailable, match="the Laplace likelihood declares no second derivatives"):
        LaplaceEvidence().check(LaplaceGP(**parts(Laplace())))
    with pytest.raises(ConfigError, match=r"Slope.curvature gave a Tensor; expected .*Curvature\("):
        LaplaceEvidence().check(LaplaceGP(**parts(Slope())))
    with pytest.raises(
        ConfigError, match=r"needs LaplaceGP, or a model with gaussian_sites, got SVGP"
    ):
        LaplaceEvidence().check(SVGP(**parts(Bernoulli()), num_inputs=2))
    for likelihood, bad, words in (
        (
            Bernoulli(),
            (y > 0).double(),
            r"the first is 0 in row \d+: it takes the classes -1 and 1",
        ),
        (Softmax(3), 3.0 * (y > 0).double(), "the first is 3 in row .* classes 0, 1, ..., 2"),
        (Poisson(), y + 0.5, "Poisson likelihood, the first is .* counts 0, 1, 2, ..."),
        (Bernoulli(), torch.nan * y, r"6 of 6 targets (do not suit|are not finite)"),
    ):
        model = LaplaceGP(**parts(likelihood)).double()
        for call in (lambda m=model, b=bad: m.condition(x, b),):
            with pytest.raises(DataError, match=words):
                call()
        with pytest.raises(DataError, match=words):
            LaplaceEvidence().evidence(model, x, bad)


def test_too_many_points_for_memory_name_the_size_and_an_alternative(monkeypatch):
    monkeypatch.setattr("gpx.linalg.memory.available_memory", lambda _: 2**30)
    x = torch.zeros(20_000, 2, dtype=torch.float64)
    model = LaplaceGP(**parts(Bernoulli())).double()
    words = (
        r"LaplaceGP on 20000 training points, .* needs about 11.9 GiB .* 1.0 GiB are free .*SVGP"
    )
    with pytest.raises(ConfigError, match=words):
        model.check(x)


@pytest.mark.parametrize(
    ("model", "objective", "likelihood"),
    [
        (LaplaceGP, LaplaceEvidence, NegativeBinomial),
        (LaplaceGP, LaplaceEvidence, lambda: Ordinal(3)),
        (ExpectationPropagationGP, EPEvidence, lambda: Ordinal(3, link="probit")),
    ],
)
def test_likelihoods_with_parameters_are_checked_where_these_are(model, objective, likelihood):
    with claimed_cuda():
        there = model(**parts(likelihood())).double().cuda()
        objective().check(there)


@pytest.mark.parametrize(
    ("objective", "model"),
    [
        (LaplaceEvidence(), LaplaceGP),
        (EPEvidence(), ExpectationPropagationGP),
        (VGPELBO(), VGP),
    ],
)
def test_the_refusal_of_gaussian_noise_names_what_there_is_for_it(objective, model):
    words = r"take model=ExactGP\(\), of many rows model=SGPR\(\), .* and Poisson\(\) for counts"
    with pytest.raises(ConfigError, match=words):
        objective.check(model(**parts(Gaussian(0.1))))
