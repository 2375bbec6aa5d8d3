import copy
import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.inducing import Eigenfunctions, Eigenvectors, Uniform
from gpx.inference.variational import FullCholesky, MeanField, Unwhitened
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Bernoulli, Gaussian, Softmax
from gpx.means import Constant, Zero
from gpx.methods.base.batch import Batch
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence
from gpx.methods.sparse.collapsed_elbo import collapsed_elbo
from gpx.methods.sparse.svgp_elbo import SVGPELBO
from gpx.models import SVGP


def _problem(n=60, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64) * 4
    noise = 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, x.sum(1).sin() + noise


def _model(likelihood=None, num_inducing=12, jitter=0.0, mean=None, kernel=None, **options):
    return SVGP(
        kernel=kernel or Matern32(lengthscale=1.2, outputscale=0.9),
        mean=mean or Zero(),
        likelihood=likelihood or Gaussian(0.1),
        num_inputs=2,
        num_inducing=num_inducing,
        jitter=jitter,
        **options,
    ).double()


def _collapsed(model, x, y):
    """The collapsed bound by dense algebra: log N(y | 0, Q + noise) - tr(K - Q) / (2 noise)."""
    noise = model.likelihood.noise_variance
    z = model.inducing
    k_zx = model.kernel.evaluate(z, x)
    k_zz = model.kernel.evaluate(z) + model.jitter * model.kernel.outputscale * torch.eye(
        len(z), dtype=x.dtype
    )
    nystrom = k_zx.mT @ torch.linalg.solve(k_zz, k_zx)
    covariance = nystrom + noise * torch.eye(len(x), dtype=x.dtype)
    evidence = torch.distributions.MultivariateNormal(
        model.mean(x), covariance_matrix=covariance
    ).log_prob(y)
    return evidence - (model.kernel.diagonal(x) - nystrom.diagonal()).sum() / (2 * noise)


def _generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("jitter", [0.0, 1e-6])
def test_optimal_q_gives_the_collapsed_bound(jitter):
    x, y = _problem()
    model = _model(jitter=jitter, mean=Constant(0.2))
    model.initialise(x, y, generator=_generator())  # warm start: q is at its optimum
    evidence = SVGPELBO(len(x)).evidence(model, x, y)
    assert evidence.value.item() == pytest.approx(_collapsed(model, x, y).item(), abs=1e-8)
    gradients = torch.autograd.grad(evidence.value, list(model.q.parameters()))
    assert max(g.abs().max() for g in gradients) < 1e-7


def test_golden_number():
    """Fixture G1 of Burt's diagnostics: collapsed ELBO -15.39090192 without jitter."""
    n = torch.arange(200, dtype=torch.float64)
    x = (10 * n / 199).unsqueeze(1)
    y = (2 * x[:, 0]).sin() + 0.3 * (7 * x[:, 0]).cos()
    model = SVGP(
        kernel=RBF(lengthscale=0.7, outputscale=1.3).double(),
        mean=Zero(),
        likelihood=Gaussian(0.05).double(),
        num_inputs=1,
        num_inducing=20,
        jitter=0.0,
    ).double()
    with torch.no_grad():
        for module, name, value in (
            (model.kernel, "lengthscale", 0.7),
            (model.kernel, "outputscale", 1.3),
            (model.likelihood, "noise_variance", 0.05),
        ):
            setattr(module, name, torch.tensor(value, dtype=torch.float64))
        model.inducing.copy_(x[5::10])
    model.fit_variational(x, y)
    found = SVGPELBO(200).evidence(model, x, y).value.item()
    assert found == pytest.approx(-15.39090192, rel=1e-6)


def test_any_other_q_is_below_the_collapsed_bound():
    x, y = _problem()
    for seed in range(20):
        model = _model(warm_start=seed % 2 == 0)
        model.initialise(x, y, generator=_generator())
        with torch.no_grad():
            for parameter in model.q.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
        value = SVGPELBO(len(x)).evidence(model, x, y).value
        assert value < _collapsed(model, x, y) + 1e-8


def test_collapsed_bound_is_below_the_evidence_and_reaches_it_with_all_points():
    x, y = _problem(30)
    gaps = []
    for size in (5, 15, 30):
        model = _model(num_inducing=size)
        model.initialise(x, y, generator=_generator())
        covariance = model.kernel.evaluate(x) + model.likelihood.noise_variance * torch.eye(
            30, dtype=x.dtype
        )
        exact = torch.distributions.MultivariateNormal(torch.zeros(30, dtype=x.dtype), covariance)
        gaps.append((exact.log_prob(y) - SVGPELBO(30).evidence(model, x, y).value).item())
    assert gaps[0] > gaps[1] > gaps[2] > -1e-8
    assert gaps[2] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("likelihood", [Gaussian(0.2), Bernoulli("probit")])
@pytest.mark.parametrize("family", [FullCholesky, MeanField])
def test_average_over_all_batches_is_the_full_bound(likelihood, family):
    x, y = _problem(12)
    y = y if isinstance(likelihood, Gaussian) else y.sign()
    model = _model(likelihood, num_inducing=5, family=family())
    model.initialise(x, y, generator=_generator())
    with torch.no_grad():
        model.q.mean.normal_(generator=_generator())
    objective = SVGPELBO(12)
    full = objective.evidence(model, x, y).value
    single = [objective.evidence(model, x[i : i + 1], y[i : i + 1]).value for i in range(12)]
    torch.testing.assert_close(torch.stack(single).mean(), full, rtol=1e-12, atol=1e-10)
    pairs = [
        objective.evidence(model, x[[i, j]], y[[i, j]]).value for i in range(12) for j in range(i)
    ]
    torch.testing.assert_close(torch.stack(pairs).mean(), full, rtol=1e-12, atol=1e-10)


def test_softmax_bound_is_below_the_evidence():
    """Importance sampling from the prior at Z = X, exact up to its standard error."""
    x = torch.tensor([[0.0, 0.0], [1.0, 0.5], [2.0, 3.0]], dtype=torch.float64)
    y = torch.tensor([0.0, 2.0, 1.0]).double()
    model = _model(Softmax(3), num_inducing=3, selector=Uniform())
    model.initialise(x, y, generator=_generator())
    objective = SVGPELBO(3)
    optimiser = torch.optim.LBFGS(model.q.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = objective(model, x, y)
        loss.backward()
        return loss

    optimiser.step(closure)
    bound = objective.evidence(model, x, y).value.item()
    chol = torch.linalg.cholesky(model.kernel.evaluate(x)).detach()
    draws = torch.randn(200_000, 3, 3, generator=_generator(), dtype=torch.float64)
    weights = Softmax(3).log_prob(y, chol @ draws).sum(-1).exp()
    evidence = weights.mean().log().item()
    error = (weights.std() / math.sqrt(len(weights)) / weights.mean()).item()
    assert evidence - 0.05 < bound < evidence + 4 * error


@pytest.mark.parametrize("jitter", [1e-6, 1e-4])
def test_gradient_is_that_of_the_bound_with_its_jitter(jitter):
    x, y = _problem()
    model = _model(jitter=jitter, mean=Constant(0.2))
    model.initialise(x, y, generator=_generator())
    hyper = [*model.kernel.parameters(), *model.likelihood.parameters()]
    # at the optimal q both bounds touch, so that their gradients agree
    found = torch.autograd.grad(SVGPELBO(len(x)).evidence(model, x, y).value, hyper)
    want = torch.autograd.grad(_collapsed(model, x, y), hyper)
    for ours, dense in zip(found, want, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-8, atol=1e-8)


def test_parts_kind_report_and_loss():
    x, y = _problem()
    model = _model(jitter=1e-6)
    model.initialise(x, y, generator=_generator())
    objective = SVGPELBO(600)
    evidence = objective.evidence(model, x, y)
    assert evidence.kind == objective.kind == "unbiased"
    torch.testing.assert_close(
        evidence.parts["fit"] - evidence.parts["complexity"], evidence.value.detach()
    )
    assert evidence.report.jitter == pytest.approx(0.9e-6, rel=1e-4)
    torch.testing.assert_close(objective(model, x, y), -evidence.value / 600)


def test_a_larger_jitter_is_among_the_facts_of_a_run():
    x, y = _problem()
    model = _model()
    with torch.no_grad():
        model.inducing.copy_(x[[0, *range(11)]])  # one of them twice
    found = SVGPELBO(len(x)).full_evidence(model, x, y, batch_size=20)
    assert 0.0 < found.facts["jitter"] == found.report.relative


def test_invalid_setups_are_refused():
    class Other(Model):
        def condition(self, x, y): ...
        def new_posterior(self): ...

    with pytest.raises(
        ConfigError,
        match="needs SVGP, or a model with likelihood and bound_terms, got Other",
    ):
        SVGPELBO(10).check(Other())
    with pytest.raises(ConfigError, match=r"num_data=\S+ must be at least 1"):
        SVGPELBO(0)


def test_full_evidence_is_the_streamed_bound():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(23, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0])
    model = SVGP(
        kernel=RBF(ard_num_dims=2),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_inputs=2,
        num_inducing=5,
    ).double()
    model.initialise(x, y, generator=generator)
    objective = SVGPELBO(num_data=23)
    whole = objective.evidence(model, x, y).value.item()
    for batch_size in (1, 7, 23, 100):  # the remainder counts
        streamed = objective.full_evidence(model, x, y, batch_size=batch_size)
        assert streamed.value.item() == pytest.approx(whole, rel=1e-12)
        assert streamed.kind == "lower_bound"


@pytest.mark.parametrize("features", [None, Eigenfunctions(), Eigenvectors()])
@pytest.mark.parametrize("strategy", [None, Unwhitened()])
def test_optimal_q_over_any_features_has_the_collapsed_bound(features, strategy):
    x, y = _problem()
    model = _model(
        kernel=RBF(lengthscale=0.9),
        num_inducing=7,
        features=copy.deepcopy(features),
        strategy=strategy,
    )
    model.initialise(x, y, generator=_generator())
    bound = SVGPELBO(len(x)).evidence(model, x, y).value
    terms, _, _ = collapsed_elbo(
        model.kernel,
        x,
        model.inducing,
        y - model.mean(x),
        model.likelihood.noise_variance,
        gradient=False,
        jitter=model.jitter,
        features=model.features,
    )
    torch.testing.assert_close(bound, sum(terms), rtol=1e-9, atol=1e-9)
    bound.backward()
    # at the optimum of q
    assert max(float(p.grad.abs().max()) for p in model.q.parameters()) < 1e-5
    posterior = model.condition(x, y)
    found, sparse = posterior.predict(x[:5]), model.marginals(x[:5])
    torch.testing.assert_close(found.mean, sparse.mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.variance, sparse.variance, rtol=1e-6, atol=1e-8)
    again = model.new_posterior()
    again.load_state_dict(posterior.state_dict())
    assert torch.equal(again.predict(x[:5]).mean, found.mean)
    if features is not None:
        assert set(model.parameter_groups()) == {"variational", "hyperparameters"}
        with pytest.raises(ConfigError, match="sampled functions need inducing points"):
            posterior.sample_paths(2, generator=_generator())


def test_a_subclass_may_write_evidence_without_noise_of_rows():
    class Halved(SVGPELBO):
        def evidence(self, model, x, y, *, generator=None):
            found = super().evidence(model, x, y, generator=generator)
            return Evidence(found.value / 2, "estimate")

    model = SVGP(kernel=RBF(), mean=Constant(), likelihood=Gaussian(), num_inputs=1, num_inducing=3)
    x, y = torch.linspace(0.0, 1.0, 8)[:, None], torch.ones(8)
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    want = SVGPELBO(8).evidence(model, x, y).value / 2
    assert torch.equal(Halved(8).evidence_of(model, Batch(x, y)).value, want)
