"""Likelihood given neighbours: against the densities of dense covariances."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.errors import NotPositiveDefinite
from gpx.inference.neighbour_likelihood import neighbour_log_likelihood, neighbours
from gpx.kernels import RBF, Constant, Linear, Matern32

DOUBLE = torch.float64


def kernels():
    yield RBF(ard_num_dims=3, lengthscale=[1.0, 2.0, 0.5], outputscale=1.3)
    yield Matern32(ard_num_dims=3, lengthscale=[1.0, 2.0, 0.5], outputscale=1.3)
    yield RBF(ard_num_dims=3) + Linear(3)  # has no formula
    yield RBF(ard_num_dims=3) * Matern32(active_dims=[0, 2])


def draw(groups, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(groups, size, 3, generator=generator, dtype=DOUBLE)
    return x, torch.randn(groups, size, generator=generator, dtype=DOUBLE)


@pytest.mark.parametrize("targets", [1, 3, 7])
@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: k.name)
def test_value_and_gradient_are_those_of_the_conditional_densities(kernel, targets, monkeypatch):
    """Groups of seven in two chunks; some miss given values, some targets."""
    monkeypatch.setattr("gpx.inference.neighbour_likelihood.CHUNK_BYTES", 8 * 49 * 2)
    kernel = kernel.double()
    x, y = draw(1, 30)
    x, y = x[0].requires_grad_(), y[0].requires_grad_()
    noise = torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)
    variables = [x, y, noise, *kernel.parameters()]
    groups = torch.rand(5, 30, generator=torch.Generator().manual_seed(1)).argsort(1)[:, :7]
    groups[1, :2] = groups[2, 1] = groups[3, -targets] = -1
    got = neighbour_log_likelihood(kernel, noise, x, y, groups, targets=targets)
    want = torch.zeros((), dtype=DOUBLE)
    for group in groups:
        for sign, rows in ((1.0, group), (-1.0, group[:-targets])):
            rows = rows[rows >= 0]
            if rows.numel():
                joint = kernel.evaluate(x[rows]) + noise * torch.eye(len(rows), dtype=DOUBLE)
                zero = torch.zeros(len(rows), dtype=DOUBLE)
                want = want + sign * MultivariateNormal(zero, joint).log_prob(y[rows])
    torch.testing.assert_close(got, want, rtol=1e-11, atol=0.0)
    found, expected = torch.autograd.grad(got, variables), torch.autograd.grad(want, variables)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    with torch.no_grad():
        again = neighbour_log_likelihood(kernel, noise, x, y, groups, targets=targets)
    assert again.item() == got.item()


def test_neighbours_are_the_nearest_in_the_kernels_metric_and_never_the_row_itself():
    kernel = RBF(ard_num_dims=3, lengthscale=[0.1, 5.0, 5.0]).double()
    x = draw(1, 200)[0][0]
    rows = torch.tensor([3, 77, 199])
    found = neighbours(kernel, x, rows, 10)
    distance = torch.cdist(x[rows] / kernel.lengthscale.detach(), x / kernel.lengthscale.detach())
    for row, near, d in zip(rows.tolist(), found.tolist(), distance, strict=True):
        d[row] = torch.inf
        assert row not in near
        assert sorted(near) == sorted(d.topk(10, largest=False).indices.tolist())


def test_neighbours_under_a_constant_covariance():
    """All rows say the same: any are neighbours, but not the row itself."""
    x = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([0, 5])
    found = neighbours(Constant(), x, rows, 7)
    for row, near in zip(rows.tolist(), found, strict=True):
        assert sorted(near.tolist()) == [i for i in range(8) if i != row]


def test_a_singular_group_is_an_error():
    x, y = draw(1, 4)
    x[0, 1] = x[0, 0]
    zero = torch.zeros((), dtype=DOUBLE)
    with pytest.raises(NotPositiveDefinite, match="covariance of 4 neighbours"):
        neighbour_log_likelihood(
            RBF(ard_num_dims=3).double(), zero, x[0], y[0], torch.arange(4)[None]
        )
