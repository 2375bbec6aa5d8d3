"""The full family: counts, and a fit that reaches the exact posterior."""

from functools import partial

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.weight_space.full_covariance import FullWeights
from gpx.methods.weight_space.qsgp import QSGP
from gpx.objectives import QuadruplyStochasticELBO, WeightSpaceELBO


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_parameter_count_and_limit():
    family = FullWeights(3, 4)
    assert family.num_free == 12 + 12 * 13 // 2
    assert not family.is_diagonal_column(torch.arange(3)).any()
    with pytest.raises(ConfigError, match="m=5000 is above 4096"):
        FullWeights(50, 100)


def test_maximising_the_bound_reaches_the_evidence():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 2, generator=generator)
    y = torch.sin(x.sum(1))
    model = QSGP(
        kernel=RBF(ard_num_dims=2),
        mean=Zero(),
        likelihood=Gaussian(0.2),
        num_basis=6,
        warm_start=False,
        basis=partial(RandomFourier, block_frequencies=1),
    )
    model.family = FullWeights(3, 2)
    objective = WeightSpaceELBO()
    objective.prepare(model, x, y)
    parameters = model.family.parameter_list()
    optimiser = torch.optim.LBFGS(parameters, max_iter=300, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        value = -objective.evidence(model, x, y).value
        value.backward()
        return value

    optimiser.step(loss)
    found = objective.evidence(model, x, y).value
    phi = model.basis(x)
    covariance = phi @ phi.T + 0.2 * torch.eye(10)
    evidence = MultivariateNormal(torch.zeros(10), covariance).log_prob(y)
    assert float((evidence - found).detach()) == pytest.approx(0.0, abs=1e-8)
    c = model.family.dense_of(torch.arange(3)).reshape(6, 6).detach()
    want = torch.linalg.inv(phi.T @ phi / 0.2 + torch.eye(6)).detach()
    torch.testing.assert_close(c @ c.T, want, rtol=1e-3, atol=1e-4)


def test_model_with_full_covariance_starts_at_the_evidence():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator)
    y = torch.sin(x.sum(1))
    model = QSGP(
        RBF(ard_num_dims=2),
        Zero(),
        Gaussian(0.2),
        12,
        covariance="full",
        basis=partial(RandomFourier, block_frequencies=2),
    )
    model.initialise(x, y, generator=generator)
    phi = model.basis(x)
    covariance = phi @ phi.T + model.noise_variance * torch.eye(30)
    evidence = MultivariateNormal(torch.zeros(30), covariance).log_prob(y)
    found = WeightSpaceELBO().evidence(model, x, y).value
    torch.testing.assert_close(found, evidence, rtol=1e-9, atol=0.0)
    # so that gradients of hyperparameters through it are those of the evidence
    parameters = model.parameter_groups()["hyperparameters"]
    want = torch.autograd.grad(evidence, parameters, retain_graph=True)
    for a, b in zip(torch.autograd.grad(found, parameters), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    # and with all functions in every list the sampled bound has no noise left
    objective = QuadruplyStochasticELBO(30, support_rows=0)
    objective.prepare(model, x, y, generator=generator)
    every = torch.arange(model.basis.num_blocks)
    value = objective.estimate(model, x, y, every, every, every).value
    torch.testing.assert_close(value, evidence, rtol=1e-9, atol=0.0)
    with pytest.raises(ConfigError, match="m=5000 is above 4096"):
        QSGP(RBF(), Zero(), Gaussian(0.2), 5000, covariance="full")
