"""The evidence of experts is that of a block-diagonal kernel matrix, with its gradient."""

import dense_experts as dense
import pytest
import torch
from draws import draws

from gpx.errors import DataError, NotPositiveDefinite
from gpx.inducing import ColumnBlocks
from gpx.models import Committee, ExactGP, LocalExperts
from gpx.objectives import ExactMLL, ExpertsMLL


def ragged_data():
    """Blocks of 1 to 28 rows, by a column that no kernel of the tests minds."""
    x, y, _ = dense.data(55)
    x[:, 1] = torch.repeat_interleave(torch.arange(5), torch.tensor([1, 9, 28, 12, 5])).double()
    return x, y


def gradients(model, value):
    parameters = [p for group in model.parameter_groups().values() for p in group]
    return torch.autograd.grad(value, parameters)


def compared(model, x, y, value, budgets=(10**9,)):
    """Value and gradient against a dense one, in batches of one expert and of all."""
    want = gradients(model, value)
    for budget in budgets:
        model.batch_bytes = budget
        found = ExpertsMLL().evidence(model, x, y)
        torch.testing.assert_close(found.value, value, rtol=1e-12, atol=1e-10)
        for mine, theirs in zip(gradients(model, found.value), want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kernel", dense.KERNELS)
def test_shared_hyperparameters_against_the_block_diagonal_matrix(kernel):
    x, y = ragged_data()
    model = Committee(**dense.parts(kernel), rule="bcm", partition=ColumnBlocks(1))
    model.initialise(x, y, generator=draws())
    same = model.labels.unsqueeze(0) == model.labels.unsqueeze(1)
    matrix = model.kernel.evaluate(x) * same
    matrix = matrix + model.likelihood.noise_variance * torch.eye(len(x)).double()
    normal = torch.distributions.MultivariateNormal(model.mean(x), matrix)
    compared(model, x, y, normal.log_prob(y), budgets=(1, 10**5, 10**9))


@pytest.mark.parametrize("kernel", dense.KERNELS)
def test_own_hyperparameters_against_one_expert_at_a_time(kernel):
    x, y = ragged_data()
    model = LocalExperts(**dense.parts(kernel), partition=ColumnBlocks(1))
    model.initialise(x, y, generator=draws())
    with torch.no_grad():
        for parameter in model.own.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draws()).double()
    rows = model.expert_rows(x)
    want = []
    total = torch.zeros((), dtype=torch.float64)
    for k, own in enumerate(rows.rows.split(rows.sizes.tolist())):
        part = model.parts.of_expert(k)
        for p in (*part.kernel.parameters(), *part.mean.parameters()):
            p.requires_grad_()
        noise = part.likelihood.noise_variance
        value = dense.log_density(part.kernel, part.mean, noise, x[own], y[own])
        leaves = [*part.kernel.parameters(), *part.mean.parameters(), *part.likelihood.parameters()]
        want.append(torch.autograd.grad(value, leaves))
        total = total + value.detach()
    for budget in (1, 10**9):
        model.batch_bytes = budget
        found = ExpertsMLL().evidence(model, x, y)
        torch.testing.assert_close(found.value, total, rtol=1e-12, atol=1e-10)
        mine = gradients(model, found.value)
        for place, stacked in enumerate(mine):
            theirs = torch.stack([each[place] for each in want])
            torch.testing.assert_close(stacked, theirs, rtol=1e-8, atol=1e-9)


def test_one_expert_has_the_evidence_of_the_exact_process():
    x, y, _ = dense.data()
    model = Committee(**dense.parts(), num_experts=1)
    model.initialise(x, y, generator=draws())
    exact = ExactMLL().evidence(ExactGP(**dense.parts()), x, y)
    found = ExpertsMLL().evidence(model, x, y)
    torch.testing.assert_close(found.value, exact.value, rtol=1e-12, atol=0.0)
    assert found.kind == "estimate"
    assert found.facts["evidence_of"] == "independent experts"


def test_experts_that_share_rows_count_them_each():
    x, y, _ = dense.data()
    model = LocalExperts(
        **dense.parts(), num_experts=4, points_per_expert=30, hyperparameters="shared"
    )
    model.initialise(x, y, generator=draws())
    parts = model.parts
    value = sum(
        dense.log_density(parts.kernel, parts.mean, model.likelihood.noise_variance, x[r], y[r])
        for r in model.expert_rows(x).rows.split(30)
    )
    compared(model, x, y, value, budgets=(1, 10**9))


def test_a_matrix_without_a_factor_and_targets_that_are_not_finite():
    x, y, _ = dense.data()
    x[:30] = x[0]
    model = Committee(**dense.parts(), num_experts=3)
    model.initialise(x, y, generator=draws())
    broken = y.clone()
    broken[3] = torch.inf
    with pytest.raises(DataError, match="1 of 61 targets are not finite"):
        ExpertsMLL().evidence(model, x, broken)
    model = Committee(**dense.parts(), num_experts=3).float()
    model.initialise(x.float(), y.float(), generator=draws())
    model.kernel.outputscale = torch.tensor(1e4)
    model.likelihood.noise_variance = torch.tensor(1.1e-6)
    with pytest.raises(NotPositiveDefinite, match="kernel matrix of an expert of 21 rows"):
        ExpertsMLL().evidence(model, x.float(), y.float())
