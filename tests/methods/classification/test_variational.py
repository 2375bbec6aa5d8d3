"""The variational Gaussian approximation: against optimisation, integrals, and other bounds."""

import math

import pytest
import torch
from class_problems import gradient_errors, parts, points

from gpx.errors import ConfigError, DidNotConverge
from gpx.kernels import RBF
from gpx.likelihoods import (
    Bernoulli,
    Gamma,
    Gaussian,
    Laplace,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Softmax,
    StudentT,
)
from gpx.methods.classification.variational import fit_gaussian
from gpx.models import SVGP, VGP, ExactGP
from gpx.objectives import SVGPELBO, VGPELBO, ExactMLL

LIKELIHOODS = {
    "logit": lambda: Bernoulli("logit"),
    "probit": lambda: Bernoulli("probit"),
    "poisson": Poisson,
    "negative binomial": lambda: NegativeBinomial(0.4),
    "gamma": Gamma,
    "ordinal": lambda: Ordinal(3),
    "laplace": lambda: Laplace(0.3),
    "softmax": lambda: Softmax(3),
}


def targets(name, x):
    """Targets (n,) of the inputs x (n, 2) for a likelihood."""
    f = (2.0 * x[:, 0]).sin() + x[:, 1]
    if name in ("logit", "probit"):
        return torch.where(f > 0.0, 1.0, -1.0).double()
    if name in ("poisson", "negative binomial"):
        return torch.poisson(f.exp(), generator=torch.Generator().manual_seed(0))
    if name == "gamma":
        return f.exp()
    return f if name == "laplace" else (f > -0.5).double() + (f > 0.5).double()


def problem(name, n=30, scale=2.0):
    x, _ = points(n)
    return VGP(**parts(LIKELIHOODS[name](), scale)).double(), x, targets(name, x)


def bound_by_definition(likelihood, kernel, mean, y, centres, roots):
    """E log p(y | f) - KL(N(m_c, L_c L_c^T) || N(mean, K)), summed over c latents (p, n)."""
    covariances = roots @ roots.mT
    prior = torch.distributions.MultivariateNormal(mean, kernel)
    posterior = torch.distributions.MultivariateNormal(centres, covariances)
    divergence = torch.distributions.kl_divergence(posterior, prior).sum()
    variances = covariances.diagonal(dim1=1, dim2=2)
    marginals = (centres.mT, variances.mT) if len(centres) > 1 else (centres[0], variances[0])
    return likelihood.expected_log_prob(y, *marginals).sum() - divergence


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_no_gaussian_has_a_higher_bound(name):
    """Quasi-Newton over all means and roots of covariances ends at the same bound and moments."""
    model, x, y = problem(name, n=7)
    likelihood, p = model.likelihood.requires_grad_(False), model.likelihood.num_latents
    kernel, mean = model.kernel.evaluate(x).detach(), model.mean(x).detach()
    found = fit_gaussian(kernel, mean, likelihood, y, tolerance=1e-9)
    centres = mean.repeat(p, 1).requires_grad_()
    roots = torch.linalg.cholesky(kernel).repeat(p, 1, 1).requires_grad_()
    search = torch.optim.LBFGS(
        [centres, roots], max_iter=2000, tolerance_grad=1e-9, tolerance_change=1e-14,
        history_size=50, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss():
        search.zero_grad()
        value = -bound_by_definition(likelihood, kernel, mean, y, centres, roots.tril())
        value.backward()
        return value.detach()

    search.step(loss)
    best = -float(loss())
    assert float(sum(found.parts.values())) == pytest.approx(best, abs=1e-6)
    moments = (each.reshape(p, -1) for each in found.moments[1:3])
    covariances = roots.tril() @ roots.tril().mT
    expected = (centres - mean).detach(), covariances.diagonal(dim1=1, dim2=2).detach()
    for one, other in zip(moments, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_gradient_is_that_of_the_bound(name):
    model, x, y = problem(name, n=15)
    errors = gradient_errors(model, VGPELBO(tolerance=1e-9), x, y)
    assert len(errors) >= 3
    assert max(errors.values()) < (1e-4 if name == "softmax" else 1e-5), errors


def test_it_is_below_the_evidence_and_above_every_sparse_bound():
    model, x, y = problem("logit", n=3, scale=4.0)
    white = torch.cartesian_prod(*[torch.linspace(-9.0, 9.0, 161).double()] * 3)
    root = torch.linalg.cholesky(model.kernel.evaluate(x).detach())
    log_mass = model.likelihood.log_prob(y, model.mean(x) + white @ root.mT).sum(1)
    log_mass = log_mass - 0.5 * white.square().sum(1)
    step = 18.0 / 160
    exact = log_mass.logsumexp(0) + 3 * math.log(step / math.sqrt(2.0 * math.pi))
    bound = VGPELBO(tolerance=1e-8).evidence(model, x, y).value.item()
    assert exact.item() - 0.05 < bound < exact.item()


@pytest.mark.parametrize("name", ["probit", "poisson", "softmax"])
def test_inducing_points_at_all_rows_have_the_same_bound(name):
    model, x, y = problem(name, n=12)
    sites = VGPELBO(tolerance=1e-9).evidence(model, x, y)
    sparse = SVGP(
        kernel=model.kernel,
        mean=model.mean,
        likelihood=model.likelihood,
        num_inputs=2,
        num_inducing=12,
        jitter=0.0,
    ).double()
    sparse.place(x)
    elbo = SVGPELBO(12)
    start = float(elbo.evidence(sparse, x, y).value.detach())
    sparse.requires_grad_(False)
    q = sparse.parameter_groups()["variational"]
    for each in q:
        each.requires_grad_(True)
    search = torch.optim.LBFGS(q, max_iter=500, line_search_fn="strong_wolfe")

    def loss():
        search.zero_grad()
        value = -elbo.evidence(sparse, x, y).value
        value.backward()
        return value.detach()

    search.step(loss)
    best = -float(loss())
    assert start < best - 0.1
    assert sites.value.item() == pytest.approx(best, abs=1e-4)


def test_gaussian_noise_is_the_exact_process():
    class AnyLikelihood(VGPELBO):
        def check(self, model):
            pass

    x, y = points(classes=3)
    model = VGP(**parts(Gaussian(0.1))).double()
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    found, want = AnyLikelihood(1e-9).evidence(model, x, y), ExactMLL().evidence(exact, x, y)
    torch.testing.assert_close(found.value, want.value, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("scale", [0.1, 10.0, 1e3])
def test_it_converges_for_narrow_and_wide_priors(name, scale):
    model, x, y = problem(name, n=60, scale=scale)
    evidence = VGPELBO(max_iterations=300).evidence(model, x, y)
    assert evidence.report.converged
    assert evidence.facts["natural_gradient"] <= 1e-4
    assert evidence.kind == "lower_bound"


@pytest.mark.parametrize("size", [1e2, 1e6])
def test_large_counts(size):
    x, _ = points(50)
    y = (size * torch.sin(x[:, 0]).exp()).round()
    model = VGP(**parts(Poisson(), 4.0, mean=math.log(size))).double()
    found = VGPELBO(max_iterations=30).evidence(model, x, y)
    assert found.report.converged
    mean = model.condition(x, y).predict(x).mean
    assert float((mean - y.log()).abs().max()) < 2.0 / math.sqrt(size)


def test_an_unusable_start_is_replaced():
    """Sites of other hyperparameters under which exp(f) overflows."""
    model, x, y = problem("poisson")
    kernel, mean = model.kernel.evaluate(x).detach(), model.mean(x).detach()
    want = fit_gaussian(kernel, mean, model.likelihood, y)
    start = torch.stack([torch.zeros(30), torch.full((30,), 1e4)]).double()
    found = fit_gaussian(kernel, mean, model.likelihood, y, start)
    torch.testing.assert_close(found.moments.mean, want.moments.mean, rtol=1e-4, atol=1e-4)


def test_the_next_search_starts_at_the_last_solution():
    model, x, y = problem("softmax")
    objective = VGPELBO()
    first = objective.evidence(model, x, y)
    again = objective.evidence(model, x, y)
    assert again.facts["natural_steps"] == first.facts["natural_steps"] > 1
    objective.after_step(model)
    third = objective.evidence(model, x, y)
    assert third.facts["natural_steps"] == 1
    torch.testing.assert_close(third.value, first.value, rtol=1e-12, atol=0.0)


def test_classes_are_predicted_from_independent_latents():
    model, x, y = problem("softmax")
    posterior, new = model.condition(x, y), points(5, seed=1)[0]
    mean, covariance = posterior.joint(new)
    assert (covariance - torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))).abs().max() == 0.0
    variance = covariance.diagonal(dim1=1, dim2=2)
    found = posterior.predictive(new, model.likelihood).probs
    torch.testing.assert_close(found, model.likelihood.class_probabilities(mean, variance))
    paths = posterior.sample_paths(1000, generator=torch.Generator().manual_seed(0))(new)
    assert float((paths.mean(0) - mean).abs().max()) < 0.25
    assert float((paths.var(0) / variance - 1.0).abs().max()) < 0.25


def test_steps_that_run_out_are_an_error():
    model, x, y = problem("logit")
    words = "natural gradient of .* after 2 steps, expected .*; raise max_iterations"
    with pytest.raises(DidNotConverge, match=words):
        VGPELBO(tolerance=1e-9, max_iterations=2).evidence(model, x, y)
    model.max_iterations = 2
    with pytest.raises(DidNotConverge, match=words):
        model.condition(x, y)


@pytest.mark.parametrize(("name", "other"), [("logit", "LaplaceGP"), ("laplace", "SVGP")])
def test_the_error_names_a_model_that_takes_the_likelihood(name, other):
    model, x, y = problem(name)
    with pytest.raises(DidNotConverge, match=rf"or take model={other}\(\)"):
        VGPELBO(tolerance=1e-12, max_iterations=1).evidence(model, x, y)


def test_unsupported_models_are_refused():
    def check(likelihood):
        VGPELBO().check(VGP(**parts(likelihood)))

    with pytest.raises(ConfigError, match=r"log-concave likelihood, which StudentT is not.*SVGP"):
        check(StudentT())
    with pytest.raises(ConfigError, match="nothing to approximate"):
        check(Gaussian(0.1))
    with pytest.raises(ConfigError, match="log-concave likelihood"):
        VGP(kernel=RBF(1), mean=parts(None)["mean"], likelihood=StudentT()).double().condition(
            torch.zeros(3, 1).double(), torch.zeros(3).double()
        )


@pytest.mark.parametrize(
    ("lengthscale", "scale", "reason"),
    [(0.1, 1e-6, "is small"), (0.6, 4e-6, "as small as rounding allows")],
)
def test_targets_without_noise(lengthscale, scale, reason):
    x = torch.linspace(0.0, 1.0, 12).double()[:, None]
    y = (6.0 * x[:, 0]).sin()
    kernel = 30.0 * torch.exp(-0.5 * ((x - x.mT) / lengthscale).square())
    likelihood = Laplace(scale).double()
    found = fit_gaussian(kernel, torch.zeros(12).double(), likelihood, y)
    assert found.report.reason.endswith(reason)
    assert found.report.residual < 1e-2
    assert (found.moments.mean - y).abs().max() < 10.0 * scale
    # of the widest q that the errors leave: E |y - f| = s sqrt(2 / pi) is of the size of b
    deviation = found.moments.variance.sqrt()
    assert 0.1 * scale < deviation.min() <= deviation.max() < 10.0 * scale
