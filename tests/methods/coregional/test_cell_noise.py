"""Known noise of every cell of several targets, in one model of all of them."""

import pytest
import torch
from draws import draws

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.models import SVGP, CoregionalGP, ExactGP
from gpx.objectives import CoregionalMLL

N, P = 11, 3


@pytest.fixture(params=[1, 2], ids=["one latent", "two latents"])
def problem(request):
    """A model, x (11, 2), y (11, 3) with gaps, known variances (11, 3) and weights (11,)."""
    x = torch.randn(N, 2, generator=draws(0)).double()
    y = torch.randn(N, P, generator=draws(1)).double()
    known = torch.rand(N, P, generator=draws(2)).double()
    relative = 0.5 + torch.rand(N, generator=draws(3)).double()
    model = CoregionalGP(
        kernel=RBF(2, lengthscale=0.9),
        mean=Constant(0.1),
        likelihood=GaussianOutputs(P, 0.2),
        num_latents=request.param,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=draws(4)).double()
    return model, x, y, RowNoise(known, relative)


def dense(model, x, y, noise):
    """Log density of the observed cells, and mean and covariance of all functions given them."""
    prior = sum(
        torch.kron(each.kernel.evaluate(x), each.between.matrix()) for each in model.latents
    )
    variances = noise.known + noise.relative[:, None] * model.likelihood.noise_variance
    seen = ~y.isnan().reshape(-1)
    residual = (y - model.mean(x)[:, None]).reshape(-1)[seen]
    matrix = prior[seen][:, seen] + variances.reshape(-1)[seen].diag()
    law = torch.distributions.MultivariateNormal(torch.zeros_like(residual), matrix)
    mean = prior[:, seen] @ torch.linalg.solve(matrix, residual)
    covariance = prior - prior[:, seen] @ torch.linalg.solve(matrix, prior[seen])
    return law.log_prob(residual), mean.view(y.shape) + model.mean(x)[:, None], covariance


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
def test_evidence_gradient_and_posterior_are_those_of_the_dense_law(problem, missing):
    model, x, y, noise = problem
    if missing:
        y[torch.rand(N, P, generator=draws(5)) < 0.3] = torch.nan
    model.know_noise(noise)
    found = CoregionalMLL().evidence(model, x, y)
    want, mean, covariance = dense(model, x, y, noise)
    assert found.value.item() == pytest.approx(want.item(), rel=1e-10)
    parameters = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(found.value, parameters),
        torch.autograd.grad(want, parameters),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)
    posterior = model.condition(x, y)
    marginals = posterior.predict(x)
    torch.testing.assert_close(marginals.mean, mean.detach(), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(
        marginals.variance, covariance.diagonal().view(N, P).detach(), rtol=1e-7, atol=1e-9
    )
    restored = model.new_posterior()
    restored.load_state_dict(posterior.state_dict())
    torch.testing.assert_close(restored.predict(x).mean, marginals.mean, rtol=0, atol=0)
    assert posterior.facts()["solver"].startswith("cholesky of")


def test_nothing_known_is_the_model_without_noise_of_cells(problem):
    model, x, y, _ = problem
    plain = CoregionalMLL().evidence(model, x, y).value.item()
    model.know_noise(RowNoise.plain(x[:, 0]))
    assert CoregionalMLL().evidence(model, x, y).value.item() == pytest.approx(plain, rel=1e-10)


def test_further_rows_know_their_noise(problem):
    model, x, y, noise = problem
    model.know_noise(noise)
    want = model.condition(x, y).predict(x)
    model.know_noise(noise.of(slice(0, 8)))
    first = model.condition(x[:8], y[:8])
    more = first.with_observations(x[8:], y[8:], model.likelihood, noise.of(slice(8, None)))
    torch.testing.assert_close(more.predict(x).mean, want.mean)
    model.row_noise = None
    plain = model.condition(x[:8], y[:8])  # of these rows nothing is known
    before = RowNoise.plain(x[:8, 0]).concatenated(noise.of(slice(8, None)))
    model.know_noise(before)
    mixed = plain.with_observations(x[8:], y[8:], model.likelihood, noise.of(slice(8, None)))
    torch.testing.assert_close(mixed.predict(x).mean, model.condition(x, y).predict(x).mean)


def test_draws_have_the_noise_of_every_cell(problem):
    model, x, y, noise = problem
    model.know_noise(noise)
    posterior = model.condition(x, y)
    paths = posterior.sample_paths(2000, generator=draws(6))(x)
    want = posterior.predict(x)
    # five standard errors, and the error of random features
    error = (paths.mean(0) - want.mean).abs() / want.variance.sqrt()
    assert error.max() < 5 / 2000**0.5 + 0.05
    # with the noise of the targets alone the ratio would be up to 1.4 here
    ratio = paths.var(0) / want.variance
    assert ratio.min() > 0.8
    assert ratio.max() < 1.2


def test_starts_take_known_noise():
    x = torch.linspace(0, 3, 30).double()[:, None]
    y = torch.cat([x.sin(), x.cos()], 1)
    model = CoregionalGP(
        kernel=Matern32(), mean=Constant(), likelihood=GaussianOutputs(2), num_latents=2
    ).double()
    model.know_noise(torch.rand(30, 2, generator=draws(0)).double())
    model.initialise(x, y, generator=draws(0))
    shorter, longer = (each.kernel.lengthscale.item() for each in model.latents)
    assert shorter < longer


def test_what_is_refused(problem):
    model, x, y, noise = problem
    with pytest.raises(ConfigError, match="have 2 columns and there are 3 targets"):
        model.know_noise(noise.known[:, :2])
    with pytest.raises(ConfigError, match="finite and not negative"):
        model.know_noise(-noise.known)
    model.know_noise(noise.known[1:])
    with pytest.raises(ConfigError, match="each of 10 rows, but was given 11 rows"):
        CoregionalMLL().evidence(model, x, y)
    alone = ExactGP(kernel=RBF(), mean=Constant(), likelihood=model.likelihood.output(0))
    with pytest.raises(ConfigError, match=r"of every row, \(n,\), got a tensor \(11, 3\)"):
        alone.know_noise(noise.known)
    sparse = SVGP(
        kernel=RBF(),
        mean=Constant(),
        likelihood=GaussianOutputs(P),
        num_inputs=2,
        num_inducing=5,
    )
    with pytest.raises(ConfigError, match=r"taken by model=IndependentGP\(\) and CoregionalGP"):
        sparse.know_noise(noise.known)
