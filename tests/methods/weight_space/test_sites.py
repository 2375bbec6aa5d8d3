"""The start of the weight mean under log-concave sites, against dense optimisation."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import (
    Bernoulli,
    Gamma,
    Gaussian,
    Laplace,
    NegativeBinomial,
    Poisson,
    Softmax,
    StudentT,
)
from gpx.means import Zero
from gpx.methods.weight_space.qsgp import QSGP
from gpx.methods.weight_space.representer import FewFunctionsPreconditioner, representer_passes
from gpx.methods.weight_space.sites import ascend_sites, check_site
from gpx.objectives import exact_site_elbo

ROWS = 40
LATENT_VARIANCE = 0.3

pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(likelihood=None, num_basis=64, **options):
    """Model with blocks of 4 functions in groups of two, inputs, labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 2, generator=generator)
    y = torch.where(x.prod(1) + 0.3 * torch.randn(ROWS, generator=generator) > 0, 1.0, -1.0)
    options = {
        "warm_start": True,
        "warm_start_size": 8,
        "basis": partial(RandomFourier, block_frequencies=2),
        **options,
    }
    model = QSGP(
        kernel=options.pop("kernel", RBF(lengthscale=1.0, outputscale=4.0)),
        mean=Zero(),
        likelihood=Bernoulli() if likelihood is None else likelihood,
        num_basis=num_basis,
        **options,
    )
    return model, x, y


def ascend(model, x, y, **options):
    options = {"group": 2, "warm_start": True, "solves": 0, **options}
    return ascend_sites(
        model.basis,
        model.family.mean.data,
        model.likelihood,
        x,
        y,
        latent_variance=torch.tensor(LATENT_VARIANCE),
        **options,
    )


def bound(model, x, y, scale=1.0):
    """sum E log p(y | N(phi mu, v)) - scale mu^T mu / 2, by one dense product."""
    mean = model.family.mean.detach()
    latent = model.basis(x).detach() @ mean.reshape(-1)
    variance = torch.full_like(latent, LATENT_VARIANCE)
    fit = model.likelihood.expected_log_prob(y, latent, variance).sum()
    return fit - 0.5 * scale * mean.square().sum()


def dense_optimum(model, x, y, columns, scale=1.0):
    """Largest bound over the weights of ``columns``, all others zero, and the latents there."""
    phi = model.basis(x).detach()[:, columns]
    variance = torch.full((ROWS,), LATENT_VARIANCE)

    def loss(flat):
        mu = torch.from_numpy(flat).requires_grad_()
        value = 0.5 * scale * mu.square().sum()
        value = value - model.likelihood.expected_log_prob(y, phi @ mu, variance).sum()
        (gradient,) = torch.autograd.grad(value, mu)
        return float(value.detach()), gradient.numpy()

    options = {"gtol": 1e-9, "ftol": 1e-15, "maxiter": 5000}
    found = minimize(loss, np.zeros(len(columns)), jac=True, method="L-BFGS-B", options=options)
    return -found.fun, phi @ torch.from_numpy(found.x)


@pytest.mark.parametrize("likelihood", [None, Poisson()])
def test_warm_start_is_the_optimum_of_its_group_as_if_it_were_the_basis(likelihood):
    model, x, y = problem(likelihood)
    y = y.abs() if likelihood else y
    report = ascend(model, x, y)
    assert report.converged
    assert (report.solves, report.visited, report.representer) == (1, 2, None)
    assert bool((model.family.mean[2:] == 0).all())
    share = 8 / 64
    best, _ = dense_optimum(model, x, y, list(range(8)), share)
    assert math.isclose(float(bound(model, x, y, scale=share)), best, rel_tol=1e-6)


def test_every_group_raises_the_bound_and_sweeps_end_at_the_optimum():
    model, x, y = problem()
    best, latent = dense_optimum(model, x, y, list(range(64)))
    values = []
    for solves in (1, 2, 4, 8, 8, 8):  # the first groups again, then further ones
        ascend(model, x, y, warm_start=False, solves=solves)
        values.append(float(bound(model, x, y)))
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(values))
    assert values[0] < best - 1.0
    assert best - 0.1 < values[-1] <= best
    found = model.basis(x).detach() @ model.family.mean.detach().reshape(-1)
    torch.testing.assert_close(found, latent, rtol=0.0, atol=0.2)


def test_passes_carry_the_warm_start_to_the_optimum_over_all_functions():
    best, latent = dense_optimum(*problem(), list(range(64)))
    values = []
    for passes in (1, 2, 4, 40):
        model, x, y = problem()
        report = ascend(model, x, y, passes=passes)
        assert report.representer.passes <= passes
        assert report.visited == 0  # no block alone holds the weights
        values.append(float(bound(model, x, y)))
    warm, x, y = problem()
    ascend(warm, x, y)
    assert float(bound(warm, x, y)) < values[0] < values[1] < values[2] <= best
    assert report.representer.converged
    assert math.isclose(values[-1], best, abs_tol=1e-3)
    found = model.basis(x).detach() @ model.family.mean.detach().reshape(-1)
    torch.testing.assert_close(found, latent, rtol=0.0, atol=0.02)


def test_solves_after_the_passes_go_on_from_it():
    model, x, y = problem()
    ascend(model, x, y, passes=1)
    before = float(bound(model, x, y))
    ascend(model, x, y, warm_start=False, solves=8)
    later = float(bound(model, x, y))
    both, _, _ = problem()
    report = ascend(both, x, y, passes=1, solves=8)
    assert before < later
    assert report.solves == 9
    assert float(bound(both, x, y)) > before


def test_initialise_raises_the_exact_bound_with_passes():
    values = {}
    for passes in (0, 2):
        model, x, y = problem(site_passes=passes)
        model.initialise(x, y, generator=torch.Generator().manual_seed(0))
        values[passes] = float(exact_site_elbo(model, x, y).value)
        assert model.anchor_blocks == (2 if passes == 0 else 0)
    assert values[2] > values[0]


def test_sites_that_are_linear_at_the_start_leave_the_prior_for_scales():
    """Far from every target a Laplace site has no curvature; the warm start is a solve as ever."""
    model, x, y = problem(Laplace(0.01), kernel=RBF(lengthscale=1.0, outputscale=1e-4))
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    found = model.condition(x, y).predict(x)
    prior = model.kernel.outputscale.detach().expand(ROWS)
    torch.testing.assert_close(found.variance, prior, rtol=1e-6, atol=0)
    assert float((found.mean * y).mean()) > 0.0


@pytest.mark.parametrize(("num_basis", "dtype"), [(64, torch.float64), (1000, torch.float32)])
def test_rates_of_counts_that_are_all_zero_stay_small(num_basis, dtype):
    """Their site variance would, taken as it follows from the means, give rates of e^40."""
    x = torch.linspace(-1.5, 1.5, 20, dtype=dtype)[:, None]
    kernel = RBF(1, lengthscale=20.0, outputscale=100.0)
    made = QSGP(
        kernel=kernel,
        mean=Zero(),
        likelihood=Poisson(),
        num_basis=num_basis,
        covariance="mean_field",
    ).to(dtype)
    made.initialise(x, x.new_zeros(20), generator=torch.Generator().manual_seed(0))
    found = made.condition(x, x.new_zeros(20)).predict(x)
    assert float((found.mean + 0.5 * found.variance).max()) < 6.0
    assert float(found.mean.max()) < -2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_of_a_hundred_thousand_start_near_their_logarithms(dtype):
    """A first guess from inaccurate slopes, and float32, would overflow."""
    x = torch.linspace(-1.5, 1.5, 20, dtype=dtype)[:, None]
    y = (1e5 * (2.0 * x[:, 0]).sin().exp()).round()
    kernel = RBF(1, lengthscale=1.0, outputscale=50.0)
    made = QSGP(
        kernel=kernel, mean=Zero(), likelihood=Poisson(), num_basis=1000, covariance="mean_field"
    ).to(dtype)
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made.condition(x, y).predict(x).mean, y.log(), rtol=0.0, atol=0.02)


@torch.no_grad()
def test_a_first_guess_that_overflows_is_shortened():
    model, x, _ = problem(Poisson())
    y = torch.full_like(x[:, 0], 1e6)
    features = model.basis(x).detach()
    root = torch.linalg.cholesky(features.T @ features + torch.eye(features.shape[1]))
    found = representer_passes(
        model.basis,
        torch.zeros_like(model.family.mean),
        model.likelihood,
        x,
        y,
        latent=torch.zeros_like(y),
        latent_variance=y.new_tensor(0.1),
        preconditioner=FewFunctionsPreconditioner(features, root, 1.0),
        passes=1,
    )
    assert 0.0 < float(found.fitted.mean()) < 20.0


def test_likelihoods_without_such_sites_are_refused():
    for fine in (Bernoulli(), Gaussian(0.1), Laplace(0.2), Poisson()):
        check_site(fine)
    with pytest.raises(ConfigError, match="one latent function, got Softmax with 3"):
        check_site(Softmax(3))
    with pytest.raises(ConfigError, match="StudentT is not: its bound is Jensen's inequality"):
        check_site(StudentT())
    with pytest.raises(ConfigError, match="site_passes=-1 must be at least 0"):
        problem(site_passes=-1)


def test_the_hint_names_likelihoods_that_it_takes():
    check_site(NegativeBinomial())
    check_site(Gamma())
    with pytest.raises(ConfigError, match=r"NegativeBinomial\(\) or Gamma\(\), or model=SVGP"):
        check_site(StudentT())
