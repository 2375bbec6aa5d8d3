"""Families over weights: parameter counts, masks, options."""

from functools import partial

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.weight_space.chevron import ChevronWeights, FullWeights
from gpx.methods.weight_space.mean_field import MeanFieldWeights
from gpx.methods.weight_space.qsgp import QSGP
from gpx.objectives import QuadruplyStochasticELBO, WeightSpaceELBO


def factor_of(family):
    """C (m, m) as a function of the tables."""
    blocks = torch.arange(family.num_blocks)
    dense = family.dense_of(blocks).flatten(0, 1)
    scales = family.log_scale.exp() * family.is_diagonal_column(blocks)
    return torch.cat([dense, torch.diag(scales.reshape(-1))[:, family.num_dense :]], 1)


@pytest.mark.parametrize("k", [0, 1, 3, 12])
def test_parameter_counts(k):
    """K m - K (K - 1) / 2 dense entries of C and m - K scales: as many directions has it."""
    m = 12
    family = ChevronWeights(3, 4, k, "free") if k else MeanFieldWeights(3, 4, "free")
    family.double()
    tables = {name: p for name, p in family.named_parameters() if name != "mean"}

    def factor(*values):
        given = dict(zip(tables, values, strict=True))
        return torch.func.functional_call(
            _Factor(family), {f"family.{n}": v for n, v in given.items()}
        )

    slopes = torch.autograd.functional.jacobian(factor, tuple(tables.values()))
    rank = torch.linalg.matrix_rank(torch.cat([s.reshape(m * m, -1) for s in slopes], 1))
    assert int(rank) == k * m - k * (k - 1) // 2 + m - k


class _Factor(torch.nn.Module):
    def __init__(self, family):
        super().__init__()
        self.family = family

    def forward(self):
        return factor_of(self.family)


def test_factor_is_lower_triangular_with_positive_diagonal():
    family = ChevronWeights(3, 4, 5)
    with torch.no_grad():
        family.dense.normal_(generator=torch.Generator().manual_seed(0))
        family.log_dense.fill_(-0.5)
    dense = family.dense_of(torch.arange(3)).reshape(12, 5)
    assert torch.equal(dense, torch.tril(dense))
    torch.testing.assert_close(dense.diagonal(), torch.full((5,), -0.5).exp())
    assert int((dense != 0).sum()) == 5 * 12 - 10
    swapped = family.dense_of(torch.tensor([1, 0]))
    assert torch.equal(swapped[0], dense[4:8])
    assert (
        family.is_diagonal_column(torch.arange(3)).reshape(-1).tolist() == [False] * 5 + [True] * 7
    )


def test_masked_entries_have_no_gradient():
    family = ChevronWeights(2, 2, 2)
    family.dense_of(torch.arange(2)).square().sum().backward()
    assert family.dense.grad is not None
    with torch.no_grad():
        family.dense.normal_(generator=torch.Generator().manual_seed(0))
    family.dense.grad = None
    family.dense_of(torch.arange(2)).sum().backward()
    grad = family.dense.grad.view(4, 2)
    assert torch.equal(grad, torch.tril(torch.ones(4, 2), -1))


def test_errors():
    with pytest.raises(ConfigError, match="num_dense=13"):
        ChevronWeights(3, 4, 13)
    with pytest.raises(ConfigError, match="closed_form"):
        MeanFieldWeights(3, 4, "best")


pytestmark = pytest.mark.usefixtures("float64_by_default")


def test_parameter_count_and_limit():
    family = FullWeights(3, 4)
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
    parameters = model.family.parameters()
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
        kernel=RBF(ard_num_dims=2),
        mean=Zero(),
        likelihood=Gaussian(0.2),
        num_basis=12,
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
        QSGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.2), num_basis=5000, covariance="full")
