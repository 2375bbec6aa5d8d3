"""Local Kriging against a dense Gaussian process per snapshot."""

import pytest
import torch
from local_kriging import Independent, local_kriging

from gpx.kernels import AxisProduct
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GapOptions
from gpx.objectives import GridMLL

NOISE, SCALES, VARIANCE = 0.0625, (0.375, 0.625), 1.75


def field():
    """Rows of a 5 x 6 x 4 grid with 30 % gaps, columns x, y, time; targets."""
    generator = torch.Generator().manual_seed(3)
    axes = [torch.rand(m, generator=generator).double().sort().values for m in (5, 6, 4)]
    whole = torch.cartesian_prod(*axes)
    order = torch.randperm(len(whole), generator=generator)[: round(0.7 * len(whole))]
    return whole, whole[order], torch.randn(len(order), generator=generator).double()


def space():
    return AxisProduct(
        "matern32", 3, axes=[[0], [1]], lengthscale=[*SCALES, 1.0], outputscale=VARIANCE
    )


def model(**options):
    """With parameters in float64 from the start: float32 would round them."""
    shared = {"mean": Zero(), "likelihood": Gaussian(NOISE)}
    local = local_kriging(space(), [2], **shared, **options).double()
    with torch.no_grad():
        product = next(m for m in local.modules() if isinstance(m, AxisProduct))
        product.outputscale = torch.tensor(VARIANCE).double()
        for part, scale in zip(product.parts, SCALES, strict=True):
            part.lengthscale = torch.tensor([scale]).double()
        local.likelihood.noise_variance = torch.tensor(NOISE).double()
    return local


def covariance(x1, x2):
    r = [(x1[:, None, i] - x2[:, i]).abs() * 3.0**0.5 / s for i, s in enumerate(SCALES)]
    return VARIANCE * torch.stack([(1 + a) * torch.exp(-a) for a in r]).prod(0)


def each(whole, x, y):
    """Mean, variance and evidence of every snapshot alone, dense."""
    mean, variance, evidence = torch.empty(len(whole)), torch.empty(len(whole)), 0.0
    mean, variance = mean.double(), variance.double()
    for time in whole[:, 2].unique():
        at, seen = whole[:, 2] == time, x[:, 2] == time
        matrix = covariance(x[seen], x[seen]) + NOISE * torch.eye(int(seen.sum())).double()
        cross = covariance(whole[at], x[seen])
        mean[at] = cross @ torch.linalg.solve(matrix, y[seen])
        variance[at] = VARIANCE - (cross * torch.linalg.solve(matrix, cross.mT).mT).sum(1)
        joint = torch.distributions.MultivariateNormal(torch.zeros(len(matrix)).double(), matrix)
        evidence = evidence + joint.log_prob(y[seen])
    return mean, variance, evidence


@pytest.mark.parametrize("gaps", ["fill", "ignore"])
def test_equals_a_dense_process_per_snapshot(gaps):
    whole, x, y = field()
    mean, variance, evidence = each(whole, x, y)
    local = model(solver=GapOptions(gaps, 1e-12), variance=gaps)
    found = local.condition(x, y).predict(whole)
    torch.testing.assert_close(found.mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, variance, rtol=1e-8, atol=1e-8)
    with torch.no_grad():
        value = GridMLL("dense").evidence(local, x, y).value
    torch.testing.assert_close(value, evidence, rtol=1e-9, atol=0)


def test_an_unseen_snapshot_is_the_prior():
    whole, x, y = field()
    rows = whole[:5].clone()
    rows[:, 2] = 9.0
    found = model(variance="fill").condition(x, y).predict(rows)
    torch.testing.assert_close(found.mean, torch.zeros(5).double())
    torch.testing.assert_close(found.variance, torch.full((5,), VARIANCE).double())


def test_independent_compares_all_its_columns():
    x = torch.tensor([[0.0, 1.0, 2.0], [5.0, 1.0, 2.0], [5.0, 1.0, 3.0]])
    expected = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    kernel = Independent([1, 2])
    assert torch.equal(kernel.evaluate(x), expected)
    assert torch.equal(kernel.diagonal(x), torch.ones(3))
