"""Weights of a fixed basis from statistics against dense Gaussian processes in float64."""

import pytest
import torch
from linear_features import (
    assert_evidence_and_gradient,
    evidence,
    expected_information,
    features_and_targets,
    position,
    value,
)

from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics
from gpx.methods.reweighted.weights import CompressedForm, CovarianceForm

SIZES = [(40, 7), (12, 30), (30, 30)]


def problem(n, m):
    phi, y = features_and_targets(n, m)
    return phi, y, SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


def forms(statistics):
    compressed = CompressedForm(CompressedStatistics(statistics))
    return {"covariance": CovarianceForm(statistics), "compressed": compressed}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["covariance", "compressed"])
def test_evidence_and_gradient_equal_dense_algebra(size, name):
    phi, y, statistics = problem(*size)
    u, s = position(size[1])
    assert_evidence_and_gradient(forms(statistics)[name].weights(u, s), phi, y, u, s)


def test_gradient_equals_central_differences():
    _, _, statistics = problem(40, 7)
    form = CovarianceForm(statistics)
    u, s = position(7)
    step = 1e-5
    slopes = form.weights(u, s).weight_gradient()
    for i in range(7):
        move = torch.zeros(7, dtype=torch.float64)
        move[i] = step
        up, down = value(form.weights(u + move, s)), value(form.weights(u - move, s))
        assert float((up - down) / (2 * step)) == pytest.approx(float(slopes[i]), rel=1e-5)


def test_weights_that_are_pruned_leave_everything_finite():
    phi, y, statistics = problem(40, 7)
    u, s = position(7)
    u[2] = -700.0
    keep = [i for i in range(7) if i != 2]
    want = evidence(phi[:, keep], y, u[keep].exp(), s.exp())
    for form in forms(statistics).values():
        found = form.weights(u, s)
        torch.testing.assert_close(value(found), want, rtol=1e-10, atol=0)
        assert bool(found.weight_gradient().isfinite().all())
        assert float(found.weight_gradient()[2].abs()) < 1e-100


def test_expected_information_is_that_of_the_dense_covariance():
    phi, _, statistics = problem(12, 5)
    u, s = position(5)
    noise = s.exp() * torch.eye(12, dtype=torch.float64)
    slopes = [u[i].exp() * torch.outer(phi[:, i], phi[:, i]) for i in range(5)]
    want = expected_information(phi * u.exp() @ phi.mT + noise, [*slopes, noise])
    for form in forms(statistics).values():
        torch.testing.assert_close(form.weights(u, s).fisher(), want, rtol=1e-9, atol=1e-12)
