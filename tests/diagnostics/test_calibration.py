"""PIT, coverage curves and AUROC: uniform for the true law, and what they say of wrong ones."""

import math

import pytest
import torch
from draws import draws
from scipy import stats
from torch.distributions import Independent, Normal, Poisson

from gpx.diagnostics.calibration import auroc, coverage_curve, pit
from gpx.errors import DataError
from gpx.likelihoods import Laplace, StudentT
from gpx.likelihoods import Poisson as PoissonLikelihood
from gpx.metrics import coverage

pytestmark = pytest.mark.usefixtures("float64_by_default")

ROWS = 4000


def law_and_targets(name, seed):
    """Of a law with a mean and a variance for each row, and targets drawn from it."""
    generator = draws(seed)
    mean, variance = torch.randn(ROWS, generator=generator), torch.rand(ROWS, generator=generator)
    if name == "normal":
        law = Normal(mean, variance.sqrt() + 0.1)
        return law, law.loc + law.scale * torch.randn(ROWS, generator=generator)
    likelihood = {"student": StudentT(), "laplace": Laplace(), "counts": PoissonLikelihood()}[name]
    law = likelihood.double().predictive(mean, variance)
    torch.manual_seed(seed)
    with torch.no_grad():
        return law, law.sample()


@pytest.mark.parametrize("name", ["normal", "student", "laplace", "counts"])
def test_the_true_law_gives_uniform_values(name):
    """Kolmogorov and Smirnov's test: its p-value is below 1e-6 once in a million."""
    law, y = law_and_targets(name, 3)
    with torch.no_grad():
        values = pit(law, y)
    assert stats.kstest(values.numpy(), "uniform").pvalue > 1e-6


@pytest.mark.parametrize("name", ["normal", "counts"])
def test_the_coverage_curve_of_the_true_law_is_the_diagonal(name):
    """Five standard errors at each of 19 levels: a false alarm once in 90,000."""
    law, y = law_and_targets(name, 4)
    curve = coverage_curve(law, y)
    spread = 5.0 * (curve.levels * (1.0 - curve.levels) / ROWS).sqrt()
    assert bool(((curve.coverage - curve.levels).abs() < spread).all())
    assert float(curve.error()) < 3.0 * 0.33 / math.sqrt(ROWS)


def test_the_curve_is_the_coverage_of_every_central_interval():
    law, y = law_and_targets("normal", 5)
    curve = coverage_curve(law, y)
    expected = [float(coverage(law, y, float(level))) for level in curve.levels]
    assert curve.coverage.tolist() == expected
    assert coverage_curve(law, y, torch.tensor([0.95])).coverage.item() == expected[-1]


@pytest.mark.parametrize(("factor", "sign"), [(2.0, 1.0), (0.5, -1.0)])
def test_laws_too_wide_cover_too_much(factor, sign):
    """A normal law of ``factor`` times the deviation covers 2 Phi(factor z) - 1, z of the level."""
    levels = (torch.arange(ROWS).double() + 0.5) / ROWS
    y = torch.special.ndtri(levels)
    curve = coverage_curve(Normal(torch.zeros(ROWS), torch.tensor(factor)), y)
    z = torch.special.ndtri(0.5 + 0.5 * curve.levels)
    expected = 2.0 * torch.special.ndtr(factor * z) - 1.0
    torch.testing.assert_close(curve.coverage, expected, rtol=0, atol=1.0 / ROWS)
    assert bool((sign * (curve.coverage - curve.levels) > 0.0).all())
    torch.testing.assert_close(
        curve.error(), (expected - curve.levels).abs().mean(), rtol=0, atol=1.0 / ROWS
    )


def test_a_count_lies_between_its_two_probabilities():
    y = torch.tensor([0.0, 3.0, 9.0])
    law = Poisson(torch.tensor([0.2, 4.0, 4.0]))
    values = pit(law, y)
    rates = law.rate.numpy()
    assert (stats.poisson.cdf(y.numpy() - 1.0, rates) <= values.numpy()).all()
    assert (values.numpy() <= stats.poisson.cdf(y.numpy(), rates)).all()
    assert torch.equal(values, pit(law, y))
    assert not torch.equal(values, pit(law, y, draws(1)))


def test_several_outputs():
    mean, y = torch.zeros(ROWS, 2), torch.randn(ROWS, 2, generator=draws())
    law = Normal(mean, torch.tensor([1.0, 3.0]))
    values = pit(Independent(law, 1), y)
    assert torch.equal(values, pit(law, y))
    curve = coverage_curve(Independent(law, 1), y)
    assert curve.coverage.shape == (19, 2)
    assert float(curve.error()[0]) < 0.05 < float(curve.error()[1])


def test_auroc_counts_pairs_in_order():
    inside, outside = torch.tensor([1.0, 2.0, 2.0, 5.0]), torch.tensor([2.0, 6.0, 0.0])
    pairs = (outside[:, None] > inside).double() + 0.5 * (outside[:, None] == inside).double()
    assert float(auroc(inside, outside)) == pytest.approx(float(pairs.mean()), rel=1e-12)
    assert float(auroc(inside, inside)) == 0.5
    assert float(auroc(inside, inside + 10.0)) == 1.0
    assert float(auroc(inside, inside - 10.0)) == 0.0


def test_auroc_of_two_normal_scores():
    """Phi(d / sqrt(2)); the standard error is 0.005 at most, five of them once in a million."""
    inside = torch.randn(ROWS, generator=draws(1))
    outside = 1.0 + torch.randn(ROWS, generator=draws(2))
    expected = stats.norm.cdf(1.0 / math.sqrt(2.0))
    assert float(auroc(inside, outside)) == pytest.approx(expected, abs=0.025)


def test_scores_that_cannot_be_compared():
    with pytest.raises(DataError, match="3 scores of inputs inside and 0 of inputs outside"):
        auroc(torch.zeros(3), torch.zeros(0))
    with pytest.raises(DataError, match="a score is not a number"):
        auroc(torch.tensor([1.0, math.nan]), torch.zeros(1))
