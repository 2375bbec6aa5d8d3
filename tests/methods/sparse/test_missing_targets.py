"""Rows that lack some of their targets: SVGP against exact processes on the rows that have them."""

import math

import pytest
import torch

from gpx.errors import DataError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, GaussianOutputs, MixedOutputs, StudentT
from gpx.means import Zero
from gpx.models import SVGP
from gpx.objectives import SVGPELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")


def data(n=14):
    draws = torch.Generator().manual_seed(0)
    x = torch.linspace(-2.0, 2.0, n)[:, None] + 0.05 * torch.randn(n, 1, generator=draws)
    y = torch.cat([(2 * x).sin(), x.cos(), x], 1) + 0.1 * torch.randn(n, 3, generator=draws)
    gaps = torch.rand(n, 3, generator=draws) < 0.3
    gaps[4] = True  # a row without any
    return x, y.masked_fill(gaps, math.nan)


def model(likelihood, x):
    """With inducing points at all data, where it is exact."""
    made = SVGP(
        kernel=RBF(lengthscale=0.6),
        mean=Zero(),
        likelihood=likelihood,
        num_inducing=len(x),
        num_inputs=1,
        warm_start=False,
        jitter=1e-10,
    )
    made.initialise(x, torch.zeros(len(x), 3), generator=torch.Generator().manual_seed(1))
    return made


def exact(x, y, noise, z):
    """Posterior moments at z, and the log marginal likelihood, of one output by dense algebra."""
    kernel = RBF(lengthscale=0.6).double()
    covariance = (kernel.evaluate(x, x) + noise * torch.eye(len(x))).detach()
    cross = kernel.evaluate(z, x).detach()
    law = torch.distributions.MultivariateNormal(torch.zeros(len(x)), covariance)
    solved = torch.linalg.solve(covariance, torch.cat([y[:, None], cross.mT], 1))
    variance = 1.0 - (cross * solved[:, 1:].mT).sum(1)
    return cross @ solved[:, 0], variance, law.log_prob(y)


def test_each_output_is_the_exact_process_of_the_rows_that_have_it():
    x, y = data()
    z = torch.linspace(-1.9, 2.3, 7)[:, None]
    svgp = model(GaussianOutputs(3, 0.05), x)
    svgp.fit_variational(x, y)
    found = svgp.condition(x, y).predict(z)
    bound = SVGPELBO(len(x)).evidence(svgp, x, y).value
    total = 0.0
    for j in range(3):
        rows = ~y[:, j].isnan()
        mean, variance, evidence = exact(x[rows], y[rows, j], 0.05, z)
        total += evidence
        torch.testing.assert_close(found.mean[:, j], mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.variance[:, j], variance, rtol=0, atol=1e-6)
    torch.testing.assert_close(bound, total, rtol=0, atol=1e-4)


def test_batches_add_up_to_the_bound_and_no_gradient_is_lost():
    x, y = data()
    svgp, elbo = model(MixedOutputs(3, 2, 0.05), x), SVGPELBO(len(x))
    whole = elbo.evidence(svgp, x, y)
    halves = [elbo.evidence(svgp, x[rows], y[rows]).value for rows in (slice(7), slice(7, 14))]
    torch.testing.assert_close(sum(halves) / 2, whole.value)
    whole.value.backward()
    for parameter in svgp.parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all())
    assert bool((svgp.likelihood.parametrizations.noise_variance.original.grad != 0).all())


@pytest.mark.parametrize("likelihood", [GaussianOutputs(3, 0.2), MixedOutputs(3, 2, 0.2)])
def test_densities_are_sums_over_the_targets_that_are_there(likelihood):
    likelihood = likelihood.double()
    _, y = data()
    draws = torch.Generator().manual_seed(3)
    latents = likelihood.num_latents
    mean, variance = torch.randn(14, latents, generator=draws), torch.rand(14, latents)
    centre, spread = likelihood.outputs(mean, variance)
    noise = likelihood.noise_variance
    for found, extra in (
        (likelihood.log_prob(y, mean), torch.zeros_like(centre)),
        (likelihood.expected_log_prob(y, mean, variance), spread),
    ):
        each = torch.distributions.Normal(centre, noise.sqrt()).log_prob(y.nan_to_num())
        wanted = torch.where(y.isnan(), 0.0, each - 0.5 * extra / noise).sum(1)
        torch.testing.assert_close(found, wanted)
        assert found[4] == 0.0


def test_a_warm_start_takes_the_rows_of_each_output():
    x, y = data()
    svgp = SVGP(
        kernel=RBF(lengthscale=0.6),
        mean=Zero(),
        likelihood=GaussianOutputs(3, 0.01),
        num_inducing=5,
        num_inputs=1,
    )
    svgp.initialise(x, y, generator=torch.Generator().manual_seed(1))
    rows = ~y[:, 1].isnan()
    alone = SVGP(
        kernel=RBF(lengthscale=0.6),
        mean=Zero(),
        likelihood=GaussianOutputs(3, 0.01),
        num_inducing=5,
        num_inputs=1,
        warm_start=False,
    )
    alone.initialise(x, y, generator=torch.Generator().manual_seed(1))
    alone._warm_start(alone.likelihood, x[rows], y[rows][:, [1, 1, 1]])
    torch.testing.assert_close(
        svgp.likelihood.noise_variance[1], alone.likelihood.noise_variance[1]
    )
    torch.testing.assert_close(svgp.q.mean[1], alone.q.mean[1])


def test_an_output_without_any_target_is_refused():
    x, y = data()
    y[:, 2] = math.nan
    with pytest.raises(DataError, match="output 2 of 3 has no target in any row"):
        model(GaussianOutputs(3), x).fit_variational(x, y)


@pytest.mark.parametrize("likelihood", [Gaussian(), StudentT()])
def test_one_output_takes_no_gaps(likelihood):
    x, y = data()
    made = SVGP(kernel=RBF(), mean=Zero(), likelihood=likelihood, num_inducing=5, num_inputs=1)
    with pytest.raises(DataError, match="14 targets are not finite"):
        made.initialise(x, y[:, 0], generator=torch.Generator().manual_seed(1))


def test_models_that_do_not_take_them_say_which_does():
    class Other(SVGP):
        takes_missing_targets = False

    x, y = data()
    other = Other(
        kernel=RBF(), mean=Zero(), likelihood=GaussianOutputs(3), num_inducing=5, num_inputs=1
    )
    for call in (lambda: other.condition(x, y), lambda: other.initialise(x, y, generator=None)):
        with pytest.raises(DataError, match=r"Other: \d+ of 42 targets are missing.*model=SVGP"):
            call()
