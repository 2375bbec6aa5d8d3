"""The exact bound: identities, orderings and the oracle columns of the covariance factor."""

import math
from functools import partial

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.bases import ImportanceWeightedFourier, RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.weight_space import exact_elbo
from gpx.methods.weight_space.exact_elbo import WeightSpaceELBO
from gpx.methods.weight_space.qsgp import QSGP
from gpx.methods.weight_space.qsrvm import QSRVM

M, N, NOISE = 8, 12, 0.15


pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(num_dense=0, diagonal="free", randomise=True, basis=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator)
    y = torch.sin(x.sum(1)) + 0.1 * torch.randn(N, generator=generator)
    model = QSGP(
        kernel=RBF(ard_num_dims=2, outputscale=1.3),
        mean=Zero(),
        likelihood=Gaussian(NOISE),
        num_basis=M,
        covariance="chevron" if num_dense else "mean_field",
        num_dense=num_dense,
        diagonal=diagonal,
        warm_start=False,
        diagonal_rows=0,
        basis=basis or partial(RandomFourier, block_frequencies=2),
    )
    model.initialise(x, y, generator=generator)
    if randomise:
        with torch.no_grad():
            for parameter in model.family.parameters():
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model, x, y


def factor(model):
    """C (m, m) of the family."""
    blocks = torch.arange(model.basis.num_blocks)
    dense = model.family.dense_of(blocks).reshape(M, -1)
    scale = model.log_scales(blocks).exp() * model.family.is_diagonal_column(blocks)
    return torch.cat((dense, torch.diag(scale.reshape(-1))[:, dense.shape[1] :]), dim=1)


def bound(model, x, y):
    return float(WeightSpaceELBO().evidence(model, x, y).value.detach())


def exact_posterior(model, x, y):
    phi = model.basis(x).detach()
    precision = phi.T @ phi / NOISE + torch.eye(M)
    return phi, precision, torch.linalg.solve(precision, phi.T @ y / NOISE)


def log_marginal_likelihood(phi, y):
    covariance = phi @ phi.T + NOISE * torch.eye(N)
    return float(MultivariateNormal(torch.zeros(N), covariance).log_prob(y))


def set_factor(model, c):
    """Write a lower-triangular factor into the tables, as far as the family has the entries."""
    family, k = model.family, model.family.num_dense
    with torch.no_grad():
        family.log_scale.copy_(c.diagonal().log().view_as(family.log_scale))
        if k:
            family.dense.copy_(torch.tril(c, -1)[:, :k].reshape(family.dense.shape))
            family.log_dense.copy_(c.diagonal()[:k].log())


def oracle_factor(precision, num_dense):
    """Optimal columns: h / sqrt(h_1), h the first column of the inverse of H[r:, r:]."""
    c = torch.diag(precision.diagonal().rsqrt())
    for r in range(num_dense):
        h = torch.linalg.inv(precision[r:, r:])[:, 0]
        c[r:, r] = h / h[0].sqrt()
    return c


@pytest.mark.parametrize("num_dense", [0, 3, M])
def test_equals_expected_log_likelihood_minus_kl(num_dense):
    model, x, y = problem(num_dense)
    c, mu = factor(model).detach(), model.family.mean.detach().reshape(-1)
    phi = model.basis(x).detach()
    q = MultivariateNormal(mu, c @ c.T)
    expected = model.likelihood.expected_log_prob(y, phi @ mu, (phi @ c).square().sum(1)).sum()
    prior = MultivariateNormal(torch.zeros(M), torch.eye(M))
    want = float((expected - kl_divergence(q, prior)).detach())
    assert bound(model, x, y) == pytest.approx(want, rel=1e-10)


def test_full_family_at_its_optimum_is_the_log_marginal_likelihood_and_families_are_nested():
    values = []
    for k in (0, 1, 2, 5, M):
        model, x, y = problem(k)
        phi, precision, mean = exact_posterior(model, x, y)
        with torch.no_grad():
            model.family.mean.copy_(mean.view_as(model.family.mean))
        set_factor(model, oracle_factor(precision, k))
        values.append(bound(model, x, y))
    evidence = log_marginal_likelihood(phi, y)
    assert values == sorted(values)
    assert values[0] < evidence - 0.01
    assert values[-1] == pytest.approx(evidence, rel=1e-10)


@pytest.mark.parametrize("num_dense", [0, 2, M])
def test_oracle_columns_are_stationary_points(num_dense):
    model, x, y = problem(num_dense)
    _, precision, mean = exact_posterior(model, x, y)
    with torch.no_grad():
        model.family.mean.copy_(mean.view_as(model.family.mean))
    set_factor(model, oracle_factor(precision, num_dense))
    torch.testing.assert_close(factor(model), oracle_factor(precision, num_dense))
    parameters = list(model.family.parameters())
    grads = torch.autograd.grad(WeightSpaceELBO().evidence(model, x, y).value, parameters)
    for grad in grads:
        assert grad.abs().max() < 1e-10


@pytest.mark.parametrize("num_dense", [0, 2])
def test_closed_form_diagonal_is_the_optimum(num_dense):
    model, x, y = problem(num_dense, "closed_form")
    free, _, _ = problem(num_dense, "free")
    with torch.no_grad():
        free.family.mean.copy_(model.family.mean)
        if num_dense:
            free.family.dense.copy_(model.family.dense)
            free.family.log_dense.copy_(model.family.log_dense)
        free.family.log_scale.copy_(model.log_scales(torch.arange(model.basis.num_blocks)))
    value = WeightSpaceELBO().evidence(free, x, y).value
    assert float(value.detach()) == pytest.approx(bound(model, x, y), rel=1e-12)
    (grad,) = torch.autograd.grad(value, [free.family.log_scale])
    assert grad.abs().max() < 1e-10
    phi = model.basis(x).detach()
    want = (NOISE / (phi.square().sum(0) + NOISE)).sqrt()[num_dense:]
    torch.testing.assert_close(factor(model).diagonal().detach()[num_dense:], want)


def test_estimated_scales_keep_their_optimum_when_noise_moves():
    # phi_r^T phi_r = expected square * ratio does not depend on the noise
    model, x, _ = problem(0, "closed_form")
    with torch.no_grad():
        model.likelihood.noise_variance = torch.tensor(0.7)
    phi = model.basis(x).detach()
    want = (0.7 / (phi.square().sum(0) + 0.7)).sqrt()
    torch.testing.assert_close(factor(model).diagonal().detach(), want)


def test_prior_bound_without_data_fit():
    # mu = 0 and C = I: KL is zero, the bound is the expected log likelihood under the prior
    model, x, y = problem(0, randomise=False)
    with torch.no_grad():
        model.family.log_scale.zero_()
    want = -0.5 * float(((y.square() + 1.3) / NOISE + math.log(2 * math.pi * NOISE)).sum())
    assert bound(model, x, y) == pytest.approx(want, rel=1e-12)


def test_lists_of_blocks_add_up_to_the_whole(monkeypatch):
    """Blocks one at a time, as beyond ``BLOCK_BUDGET`` functions: every term counts each."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 2, generator=draws), torch.randn(12, generator=draws)
    model = QSRVM(
        kernel=RBF(),
        mean=Zero(),
        likelihood=Gaussian(0.2),
        num_data=12,
        num_inputs=2,
        sweeps=0,
        block_size=3,
    )
    model.initialise(x, y, generator=draws)
    with torch.no_grad():
        model.basis.log_precision.copy_(torch.randn(12, 1, generator=draws))
        model.family.mean.copy_(torch.randn(4, 3, generator=draws))
        whole = WeightSpaceELBO().evidence(model, x, y)
        monkeypatch.setattr(exact_elbo, "BLOCK_BUDGET", 3)
        parts = WeightSpaceELBO().evidence(model, x, y)
    torch.testing.assert_close(parts.value, whole.value, rtol=1e-13, atol=0)
    assert parts.parts.keys() == whole.parts.keys()


def test_importance_weights_in_single_precision():
    found = []
    for dtype in (torch.float64, torch.float32):
        model, x, y = problem(
            diagonal="closed_form", basis=partial(ImportanceWeightedFourier, num_inputs=2)
        )
        value = WeightSpaceELBO().evidence(model.to(dtype), x.to(dtype), y.to(dtype)).value
        found.append(float(value.detach()))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
