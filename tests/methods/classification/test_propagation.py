"""Expectation propagation: against integrals, a sequential reference, and Laplace."""

import math

import pytest
import torch
from class_problems import gradient_errors, parts, points
from draws import draws
from scipy.stats import multivariate_normal

from gpx.errors import ConfigError, DidNotConverge, NotAvailable
from gpx.kernels import RBF
from gpx.likelihoods import (
    Bernoulli,
    Gaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Softmax,
    StudentT,
)
from gpx.means import Constant, Zero
from gpx.methods.classification import propagation
from gpx.methods.classification.propagation import propagate, propagate_many
from gpx.models import ExactGP, ExpectationPropagationGP, LaplaceGP
from gpx.objectives import EPEvidence, ExactMLL, LaplaceEvidence

PROBIT = Bernoulli("probit").double()
LOGIT = Bernoulli("logit").double()


def problem(n=40, scale=2.0):
    x, y = points(n)
    return ExpectationPropagationGP(**parts(Bernoulli("probit"), scale)).double(), x, y


def integral(kernel, mean, y, size=161, reach=9.0, likelihood=PROBIT):
    """log p(y) and posterior mean and variance of each latent, on a grid of white latents."""
    n = len(y)
    line = torch.linspace(-reach, reach, size, dtype=torch.float64)
    white = torch.cartesian_prod(*[line] * n).reshape(-1, n)
    f = mean + white @ torch.linalg.cholesky(kernel).mT
    log_mass = likelihood.log_prob(y, f).sum(1) - 0.5 * white.square().sum(1)
    step = float(line[1] - line[0])
    value = log_mass.logsumexp(0) + n * (math.log(step) - 0.5 * math.log(2.0 * math.pi))
    share = log_mass.softmax(0)
    centre = share @ f
    return value, centre, share @ (f - centre).square()


@pytest.mark.parametrize("scale", [0.5, 4.0, 50.0])
def test_one_point_is_exact(scale):
    """Evidence, mean and variance of a single probit label."""
    kernel = torch.tensor([[scale]], dtype=torch.float64)
    mean, y = torch.tensor([0.4]).double(), torch.tensor([-1.0]).double()
    found = propagate(kernel, mean, PROBIT, y)
    value = sum(found.parts.values())
    closed = torch.special.log_ndtr(-mean / (1.0 + scale) ** 0.5)[0]
    torch.testing.assert_close(value, closed, rtol=1e-9, atol=1e-10)
    want, centre, spread = integral(kernel, mean, y, size=4001)
    torch.testing.assert_close(value, want, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(mean + found.cavities.mean, centre, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.cavities.variance, spread, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("scale", [0.5, 4.0, 50.0])
def test_one_logistic_label_is_exact(scale):
    kernel = torch.tensor([[scale]], dtype=torch.float64)
    mean, y = torch.tensor([0.4]).double(), torch.tensor([-1.0]).double()
    found = propagate(kernel, mean, LOGIT, y)
    want, centre, spread = integral(kernel, mean, y, size=8001, likelihood=LOGIT)
    torch.testing.assert_close(sum(found.parts.values()), want, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(mean + found.cavities.mean, centre, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.cavities.variance, spread, rtol=1e-7, atol=1e-8)


def test_a_rare_class_has_no_more_evidence_than_its_share():
    """Labels that nothing but chance gives: at most the entropy of the shares, whatever the scale.

    Laplace's evidence of them rises above it (-4.9 nats for 3 of 180 against -15.3).
    """
    y = -torch.ones(60, dtype=torch.float64)
    y[:2] = 1.0
    chance = 2 * math.log(2 / 60) + 58 * math.log(58 / 60)
    for scale, offset in ((1.0, -3.5), (100.0, -10.0), (4000.0, -15.0)):
        found = propagate(
            scale * torch.eye(60).double(), torch.full((60,), offset).double(), LOGIT, y
        )
        # independent labels: exact in every one of them
        each = LOGIT.predictive(torch.tensor(offset).double(), torch.tensor(scale).double()).probs
        exact = 2 * each.log() + 58 * torch.log1p(-each)
        value = sum(found.parts.values())
        torch.testing.assert_close(value, exact, rtol=1e-4, atol=0)
        assert value <= chance + 1e-9


@pytest.mark.parametrize("n", [2, 3])
def test_few_points_against_their_integral(n):
    """Not exact, but close: evidence to 0.002 nats, where Laplace is 0.03 to 0.1 off."""
    x, y = points(n, seed=2)
    kernel = parts(PROBIT, 3.0)["kernel"].double().evaluate(x).detach()
    mean = torch.full((n,), 0.3, dtype=torch.float64)
    want, centre, spread = integral(kernel, mean, y)
    found = propagate(kernel, mean, PROBIT, y)
    assert abs(float(sum(found.parts.values()) - want)) < 2e-3
    assert float((mean + found.cavities.mean - centre).abs().max()) < 5e-3
    assert float((found.cavities.variance / spread - 1.0).abs().max()) < 2e-2
    laplace = LaplaceGP(**parts(Bernoulli("probit"), 3.0)).double()
    value = LaplaceEvidence().evidence(laplace, x, y).value.detach()
    assert abs(float(value - want)) > 10.0 * abs(float(sum(found.parts.values()) - want))


@pytest.mark.parametrize(("scale", "bound"), [(1.0, 2e-4), (16.0, 8e-3), (256.0, 6e-2)])
def test_five_points_against_the_orthant_probability(scale, bound):
    """p(y) = P(y_i g_i > 0), g ~ N(0, K + I): what EP leaves out grows with the outputscale."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    kernel = scale * (-0.5 * torch.cdist(x, x).square()).exp()
    turned = y[:, None] * (kernel + torch.eye(5, dtype=torch.float64)) * y
    zero = torch.zeros_like(y)
    # the randomised rule of Genz: its own error is below 1e-6 here
    exact = multivariate_normal.cdf(zero, zero, turned.numpy(), maxpts=10**6, abseps=1e-9)
    found = sum(propagate(kernel, zero, PROBIT, y).parts.values())
    assert abs(float(found) - math.log(exact)) < bound


def sequential(kernel, mean, y, sweeps=80):
    """Rasmussen and Williams, algorithm 3.5, one site at a time, with dense inverses."""
    tau, nu = torch.zeros_like(y), torch.zeros_like(y)
    covariance, centre = kernel.clone(), torch.zeros_like(y)
    for _ in range(sweeps):
        for i in range(len(y)):
            precision = 1.0 / covariance[i, i] - tau[i]
            shift = centre[i] / covariance[i, i] - nu[i]
            tilted = PROBIT.tilted(y[i : i + 1], mean[i] + shift / precision, 1.0 / precision)
            variance = 1.0 / precision - tilted.information[0] / precision**2
            moved = shift / precision + tilted.gradient[0] / precision
            tau[i] = 1.0 / variance - precision
            nu[i] = moved / variance - shift
            covariance = torch.linalg.inv(torch.linalg.inv(kernel) + tau.diag())
            centre = covariance @ nu
    return tau, nu


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_parallel_updates_converge_to_the_sequential_fixed_point(scale):
    x, y = points(8)
    kernel = parts(PROBIT, scale)["kernel"].double().evaluate(x).detach()
    mean = torch.full_like(y, 0.3)
    tau, nu = sequential(kernel, mean, y)
    found = propagate(kernel, mean, PROBIT, y)
    torch.testing.assert_close(found.sites[0], tau, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.sites[1], nu, rtol=1e-6, atol=1e-8)
    assert (found.sites[0] > 0.0).all()
    assert (found.cavities.cavity_variance <= kernel.diagonal() * (1.0 + 1e-12)).all()


@pytest.mark.parametrize("scale", [0.5, 2.0, 40.0])
def test_the_gradient_is_that_of_the_converged_evidence(scale):
    model, x, y = problem(scale=scale)
    errors = gradient_errors(model, EPEvidence(tolerance=1e-10), x, y)
    assert max(errors.values()) < 1e-7, errors


COUNTS = torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    "likelihood", [Poisson(), NegativeBinomial(0.4).double()], ids=["poisson", "negative binomial"]
)
def test_counts_are_nearly_integrals_where_the_mode_is_not(likelihood):
    """Zeros under a wide prior: their mode is close to the prior mean, and the mass far below."""
    x = torch.tensor([[0.0], [0.5], [1.2]], dtype=torch.float64)
    model = {"kernel": RBF(1, 0.7, 25.0), "mean": Constant(-1.0), "likelihood": likelihood}
    ep, laplace = (kind(**model).double() for kind in (ExpectationPropagationGP, LaplaceGP))
    kernel = ep.kernel.evaluate(x).detach()
    with torch.no_grad():
        want, centre, spread = integral(kernel, ep.mean(x), COUNTS, 161, 8.0, likelihood)
        evidence = EPEvidence().evidence(ep, x, COUNTS).value
    assert float((evidence - want).abs()) < 0.05
    found, other = (each.condition(x, COUNTS).predict(x) for each in (ep, laplace))
    assert (found.mean - centre).abs().max() < 0.1
    assert (other.mean - centre).abs().max() > 0.5
    assert (found.variance / spread - 1.0).abs().max() < 0.1


def test_the_gradient_of_counts_is_that_of_the_evidence():
    x, _ = points(25)
    y = torch.poisson(torch.exp(x[:, 0]), generator=torch.Generator().manual_seed(0))
    model = ExpectationPropagationGP(**parts(NegativeBinomial(0.4), 2.0)).double()
    errors = gradient_errors(model, EPEvidence(tolerance=1e-10), x, y)
    assert len(errors) == 4
    assert max(errors.values()) < 1e-6, errors


def test_gaussian_noise_is_the_exact_process():
    class AnyLikelihood(EPEvidence):
        def check(self, model):
            pass

    x, y = points(classes=3)
    model = ExpectationPropagationGP(**parts(Gaussian(0.1))).double()
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    found, want = AnyLikelihood().evidence(model, x, y), ExactMLL().evidence(exact, x, y)
    torch.testing.assert_close(found.value, want.value, rtol=1e-10, atol=0.0)
    found.value.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    want.value.backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-7, atol=1e-8)


def precise_problem():
    """K of functions that vary by two, and counts near a million: their logarithms by 0.001."""
    x, _ = points()
    kernel = RBF(outputscale=4.0).double().evaluate(x).detach()
    rates = torch.full((len(x),), 1e6, dtype=torch.float64)
    return kernel, torch.zeros_like(rates), torch.poisson(rates, generator=draws())


def test_the_evidence_of_precise_sites_keeps_its_digits():
    kernel, mean, counts = precise_problem()
    likelihood = Gaussian(1e-6).double()
    found = sum(propagate(kernel, mean, likelihood, counts.log()).parts.values())
    total = kernel + likelihood.noise_variance.detach() * torch.eye(len(kernel))
    want = torch.distributions.MultivariateNormal(mean, total).log_prob(counts.log())
    torch.testing.assert_close(found, want, rtol=0.0, atol=1e-3)


def test_counts_of_a_million_converge_in_few_sweeps():
    kernel, mean, counts = precise_problem()
    found = propagate(kernel, mean, Poisson(), counts, max_sweeps=10)
    assert (found.cavities.mean - counts.log()).abs().max() < 0.005


@pytest.mark.parametrize(("scale", "bound"), [(1.0, 0.02), (4.0, 0.05)])
def test_probabilities_are_close_to_laplace(scale, bound):
    """Class probabilities of 60 points in one dimension agree within 0.05, and EP's are bolder."""
    generator = torch.Generator().manual_seed(0)
    x = 6.0 * torch.rand(60, 1, generator=generator).double() - 3.0
    noise = torch.randn(60, generator=generator).double()
    y = torch.where((2.0 * x[:, 0]).sin() + noise > 0.0, 1.0, -1.0).double()
    new = torch.linspace(-4.0, 4.0, 81).double()[:, None]
    found = []
    for kind in (ExpectationPropagationGP, LaplaceGP):
        model = kind(kernel=RBF(1, 1.0, scale), mean=Zero(), likelihood=Bernoulli("probit"))
        model = model.double()
        found.append(model.condition(x, y).predictive(new, model.likelihood).probs)
    assert 1e-4 < float((found[0] - found[1]).abs().max()) < bound
    assert float((found[0] - 0.5).abs().mean()) > float((found[1] - 0.5).abs().mean())


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e6])
def test_broad_priors_converge_by_damping(scale):
    """Sweeps over all sites at once may swing there; changes are halved until they do not."""
    model, x, y = problem(scale=scale)
    found = EPEvidence(max_sweeps=400).evidence(model, x, y)
    assert found.report.converged
    assert found.facts["moment_mismatch"] <= 1e-8
    assert torch.isfinite(found.value)


@pytest.mark.parametrize("link", ["probit", "logit"])
@pytest.mark.parametrize(("scale", "lengthscale"), [(350.0, 1.0), (350.0, 1.3), (2e5, 1.3)])
def test_separable_labels_converge_from_the_prior(link, scale, lengthscale):
    """A small share removes little even when all goes well, and must not stay small for that."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(90, 2, generator=generator, dtype=torch.float64)
    y = torch.sign(x[:, 0] + 0.5 * x[:, 1])
    apart = x[:, :1] + 0.7 * y.unsqueeze(1)
    kernel = RBF(None, lengthscale, scale).double().evaluate(apart / apart.std()).detach()
    mean = torch.full((90,), -0.4, dtype=torch.float64)
    found = propagate(kernel, mean, Bernoulli(link).double(), y, max_sweeps=120)
    assert found.report.residual <= 1e-8


def test_a_class_that_is_certain_has_a_site_that_says_nothing():
    likelihood = Ordinal(num_classes=4).double()
    with torch.no_grad():
        likelihood.gaps = torch.tensor([103.0, 102.0], dtype=torch.float64)
        likelihood.first_cut.fill_(-98.0)
    y, mean, variance = (torch.tensor([v], dtype=torch.float64) for v in (0.0, -678.2, 14386.6))
    assert likelihood.tilted(y, mean, variance).information < 0.0  # an error of quadrature
    found = propagate(variance[None], mean, likelihood, y)
    assert found.report.converged
    assert 0.0 <= found.sites[0] <= 1e-9 / variance


def test_sweeps_that_run_out_are_an_error():
    model, x, y = problem(scale=100.0)
    words = "moments that differ by .* after 3 sweeps with changes damped .*; raise max_sweeps"
    with pytest.raises(DidNotConverge, match=words):
        EPEvidence(max_sweeps=3).evidence(model, x, y)
    model.max_sweeps = 3
    with pytest.raises(DidNotConverge, match=words):
        model.condition(x, y)


def test_unsupported_models_are_refused():
    def check(likelihood):
        EPEvidence().check(ExpectationPropagationGP(**parts(likelihood)))

    with pytest.raises(NotAvailable, match="StudentT likelihood does not know its moments"):
        check(StudentT())
    with pytest.raises(ConfigError, match=r"Softmax likelihood has 3; take model=LaplaceGP\(\)"):
        check(Softmax(3))
    with pytest.raises(ConfigError, match="nothing to approximate"):
        check(Gaussian(0.1))


@pytest.mark.parametrize("likelihood", [PROBIT, LOGIT], ids=["probit", "logit"])
def test_many_problems_are_those_of_each(likelihood):
    """Of very different numbers of sweeps; one does not converge and one has no numbers."""
    x, y = points(30)
    scales = (0.3, 2.0, 40.0, 3e4, 1.0)
    kernels = torch.stack([RBF(2, 0.8, scale).double().evaluate(x).detach() for scale in scales])
    means = torch.linspace(-0.5, 0.5, 5).double().unsqueeze(1).expand(5, 30).contiguous()
    means[4] = torch.nan
    limits = {"tolerance": 1e-6, "max_sweeps": 30}
    found = propagate_many(kernels, means, likelihood, y, **limits)
    sweeps = []
    for row in range(4):
        if not found.converged[row]:
            with pytest.raises(DidNotConverge):
                propagate(kernels[row], means[row], likelihood, y, **limits, memory=0)
            assert not bool(found.weights[row].any())
            continue
        alone = propagate(kernels[row], means[row], likelihood, y, **limits, memory=0)
        sweeps.append(alone.report.iterations)
        torch.testing.assert_close(found.precisions[row], alone.sites[0], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(found.weights[row], alone.weights, rtol=1e-8, atol=1e-9)
    assert len(set(sweeps)) == len(sweeps) >= 2
    assert found.converged == [True, True, True, False, False]


def test_points_of_zero_prior_variance_have_the_evidence_of_a_coin():
    x = torch.arange(-5.0, 6.0, dtype=torch.float64)
    y = torch.where(x > 0.5, 1.0, -1.0).double()
    rest = x != 0.0

    def evidence(x, y):
        found = propagate(x[:, None] * x, torch.zeros_like(x), PROBIT, y)
        return sum(found.parts.values())

    want = evidence(x[rest], y[rest]) - math.log(2.0)
    torch.testing.assert_close(evidence(x, y), want, rtol=1e-7, atol=1e-7)


def test_chains_take_points_of_zero_prior_variance():
    x = torch.arange(-5.0, 6.0, dtype=torch.float64)
    y = torch.where(x > 0.5, 1.0, -1.0).double()
    kernel, limits = x[:, None] * x, {"tolerance": 1e-6, "max_sweeps": 200}
    found = propagate_many(kernel[None], torch.zeros_like(x)[None], PROBIT, y, **limits)
    assert found.converged == [True]
    alone = propagate(kernel, torch.zeros_like(x), PROBIT, y, **limits)
    torch.testing.assert_close(found.weights[0], alone.weights, rtol=1e-6, atol=1e-6)


def targets_of(likelihood, f):
    """Targets of likelihoods with one latent function, drawn at f or cut from it."""
    if likelihood.task == "binary":
        return f.sign()
    if likelihood.task == "count":
        return torch.poisson(f.exp(), generator=draws())
    return torch.bucketize(f, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)).double()


KINDS = {
    "probit": lambda: Bernoulli("probit"),
    "logit": lambda: Bernoulli("logit"),
    "poisson": Poisson,
    "negative binomial": lambda: NegativeBinomial(0.4),
    "ordinal": lambda: Ordinal(4),
    "ordinal probit": lambda: Ordinal(4, "probit"),
}
"""Of each likelihood a new one."""


@pytest.mark.parametrize("kind", KINDS)
def test_extrapolated_sweeps_end_where_damped_ones_do_and_sooner(kind):
    x, _ = points(40)
    y = targets_of(KINDS[kind](), (2.0 * x[:, 0]).sin() + x[:, 1])
    model = ExpectationPropagationGP(**parts(KINDS[kind](), 50.0)).double()
    kernel, mean = model.kernel.evaluate(x).detach(), model.mean(x).detach()
    limits = {"tolerance": 1e-11, "max_sweeps": 400}
    found, plain = (
        propagate(kernel, mean, model.likelihood, y, memory=memory, **limits) for memory in (5, 0)
    )
    torch.testing.assert_close(found.sites, plain.sites, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.weights, plain.weights, rtol=1e-7, atol=1e-9)
    for name, part in plain.parts.items():
        torch.testing.assert_close(found.parts[name], part, rtol=1e-9, atol=1e-9)
    assert found.report.iterations <= 0.8 * plain.report.iterations
    evidences = EPEvidence(tolerance=1e-11), EPEvidence(tolerance=1e-11)
    evidences[1].start = plain.sites  # converged: no sweep changes them
    gradients = []
    for evidence in evidences:
        model.zero_grad()
        evidence.evidence(model, x, y).value.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_hard_problems_take_no_more_sweeps_and_far_fewer_in_all():
    """Separable labels, wide ordered classes that are nearly certain, and counts of a million."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    f = x[:, 0] + 0.5 * x[:, 1]
    wide = Ordinal(4).double()
    with torch.no_grad():
        wide.gaps = torch.tensor([103.0, 102.0], dtype=torch.float64)
        wide.first_cut.fill_(-98.0)
    classes = torch.bucketize(f, torch.tensor([-1.0, 0.0, 1.0]).double()).double()
    near = torch.poisson(torch.full((40,), 1e6).double(), generator=generator)
    problems = [(wide, classes, scale) for scale in (1e3,)]
    problems += [(kind, f.sign(), scale) for kind in (PROBIT, LOGIT) for scale in (1e2, 2e5)]
    problems += [(Ordinal(4).double(), classes, 1e3), (Poisson(), near, 4.0)]
    counts = []
    for likelihood, y, scale in problems:
        kernel = RBF(None, 1.0, scale).double().evaluate(x).detach()
        runs = [propagate(kernel, 0.0 * f, likelihood, y, memory=memory) for memory in (5, 0)]
        # a million counts have sites of precision 1e6, which cost the evidence as many digits
        torch.testing.assert_close(*(sum(run.parts.values()) for run in runs), rtol=1e-6, atol=1e-7)
        counts.append([run.report.iterations for run in runs])
    assert all(ours <= plain for ours, plain in counts), counts
    ours, plain = map(sum, zip(*counts, strict=True))
    assert ours < 0.7 * plain, counts


@pytest.mark.parametrize("bad", [-1e3, math.nan, 1e9])
def test_a_bad_extrapolation_is_not_taken(monkeypatch, bad):
    """A negative precision, no number, or sites from which the moments are further apart."""
    x, y = points(30)
    kernel = parts(PROBIT, 20.0)["kernel"].double().evaluate(x).detach()
    asked = []

    def wrong(past, variance):
        asked.append(len(past))
        found = past[-1, 1].clone()
        found[0, 3] = bad
        return found

    monkeypatch.setattr(propagation, "extrapolated", wrong)
    plain = propagate(kernel, 0.0 * y, PROBIT, y, memory=0)
    found = propagate(kernel, 0.0 * y, PROBIT, y)
    torch.testing.assert_close(found.sites, plain.sites, rtol=1e-6, atol=1e-7)
    assert asked
    # where the precisions show it, no sweep is lost
    assert found.report.iterations <= (2 if bad == 1e9 else 1) * plain.report.iterations
