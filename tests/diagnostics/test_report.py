"""Verdicts in words, and the page in the data's own unit."""

import dataclasses
import json

import pytest
import torch

from gpx.diagnostics.certificate import certify, certify_exact
from gpx.diagnostics.moment_bounds import MomentBounds
from gpx.diagnostics.report import Report
from gpx.diagnostics.verdict import judge
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.base.posterior import Marginals


@pytest.fixture(scope="module")
def parts():
    x = torch.linspace(-2, 2, 40, dtype=torch.float64)[:, None]
    y = (3 * x[:, 0]).sin() + 0.3 * (40 * x[:, 0]).cos()
    points = torch.linspace(-1.9, 1.9, 8, dtype=torch.float64)[:, None]
    return RBF().double(), Zero(), Gaussian(0.05).double(), x, y, points


def certificate(parts, m, **options):
    kernel, mean, likelihood, x, y, points = parts
    step = max(1, len(x) // m)
    return certify(kernel, mean, likelihood, x[::step][:m], x, y, points, **options)


def page(found, **options):
    points = torch.zeros(8, 1)
    return Report(found, "SGPR", points, ("x",), "load", shift=50.0, scale=10.0, **options)


def test_good_points_are_certified_and_one_certainly_wrong_mean_is_not(parts):
    found = certificate(parts, 20)
    assert judge(found).grade == "certified"
    assert "Certified: at all 8 points" in page(found).sentence()
    mean = found.predicted.mean.clone()
    mean[3] += 0.5
    wrong = dataclasses.replace(found, predicted=Marginals(mean, found.predicted.variance))
    verdict = judge(wrong)
    assert (verdict.grade, verdict.off, verdict.good) == ("uncertified", 1, 7)
    assert "at 1 of 8 points the mean is certainly off" in page(wrong).sentence()


def test_a_model_that_predicts_with_another_q_is_not_told_to_add_inducing_points(parts):
    """As one that was trained for its predictions: the divergence is not that of its q."""
    found = certificate(parts, 20)
    mean, variance = found.predicted
    other = dataclasses.replace(found, predicted=Marginals(mean + 0.5, variance))
    assert "Add inducing points" in page(other).sentence()
    said = page(other, best=False)
    assert "q(u) as it was trained" in said.sentence()
    assert "Add inducing points" not in said.sentence()
    assert "The probability of any event is right to" in page(found).markdown()
    assert "The probability of any event is right to" not in said.markdown()


def test_what_cannot_be_shown_is_not_called_wrong(parts):
    found = certificate(parts, 4, products=False)
    verdict = judge(found)
    assert (verdict.grade, verdict.off) == ("uncertified", 0)
    said = page(found, products=False).sentence()
    assert "may be right, but this cannot be shown" in said
    assert "products=true" in said


def test_a_collapsed_model_is_never_certified_and_much_noise_gets_a_second_look(parts):
    kernel, mean, _, x, y, points = parts
    noisy = certify(kernel, mean, Gaussian(0.4).double(), x[::4], x, y, points)
    assert judge(noisy).grade == "certified"
    assert "counts as noise" in page(noisy).sentence()
    drowned = certify(kernel, mean, Gaussian(2.0).double(), x[::4], x, y, points)
    assert judge(drowned).grade == "uncertified"
    assert "Do not use this model" in page(drowned).sentence()


def test_no_points_and_constant_targets(parts):
    kernel, mean, likelihood, x, y, points = parts
    nowhere = certify(kernel, mean, likelihood, x[::4], x, y, points[:0])
    assert judge(nowhere).grade == "uncertified"
    constant = certify(kernel, mean, likelihood, x[::4], x, 0.0 * y, points)
    assert "the targets' 0" in page(constant).sentence()
    assert json.loads(json.dumps(page(constant).values(), allow_nan=False))["noise_share"] is None


def test_numbers_are_in_the_unit_of_the_data(parts):
    kernel, mean, likelihood, x, y, points = parts
    exact = certify_exact(kernel, mean, likelihood, x, y, points)
    report = page(exact, threshold=55.0, least=0.5)
    columns = report.columns()
    want = 50.0 + 10.0 * exact.predicted.mean
    assert columns["mean"] == pytest.approx(want.tolist())
    assert columns["inflated_lower"] == pytest.approx(columns["deflated_lower"], abs=1e-6)
    # mean above the threshold: more likely than not
    answers = ["yes" if value > 55.0 else "no" for value in want.tolist()]
    assert report.decisions() == answers
    text = report.markdown()
    assert "exact P >= 0.5?" in text
    assert "log marginal likelihood, exact" in text


def test_a_mean_is_off_only_in_the_largest_deviation_that_is_possible(parts):
    """An error of 0.05 to 0.051 is half a deviation of 0.1, or a twentieth of one of 1."""
    one = torch.ones(1, dtype=torch.float64)
    for largest, off in ((1.0, 0), (0.01, 1)):
        found = dataclasses.replace(
            certificate(parts, 20),
            noise=0.01,
            moments=MomentBounds(0.0 * one, 0.001 * one, 0.0 * one, largest * one),
            predicted=Marginals(0.051 * one, 0.0 * one),
        )
        assert judge(found).off == off
