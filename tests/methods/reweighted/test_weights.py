"""Weights of a fixed basis from statistics against dense Gaussian processes in float64."""

import math

import pytest
import torch
from linear_features import (
    assert_evidence_and_gradient,
    draw,
    evidence,
    expected_information,
    features_and_targets,
    log_density,
    position,
    value,
)

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.weights import CompressedForm, CompressedStatistics, CovarianceForm

SIZES = [(40, 7), (12, 30), (30, 30)]


def problem(n, m, rank=None):
    phi, y = features_and_targets(n, m, rank)
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


def test_prior_mean_of_the_weights():
    phi, y, statistics = problem(40, 7)
    mu, noise = draw(7, seed=8), torch.tensor(0.3, dtype=torch.float64)
    variances = draw(7, seed=9).exp()
    weights = CovarianceForm(statistics.about(mu)).weights(variances.log(), noise.log())
    want = evidence(phi, y - phi @ mu, variances, noise)
    torch.testing.assert_close(weights.log_marginal_likelihood(), want, rtol=1e-10, atol=0)
    precision = phi.mT @ phi / noise + (1.0 / variances).diag()
    mean = torch.linalg.solve(precision, phi.mT @ y / noise + mu / variances)
    torch.testing.assert_close(mu + weights.mean(), mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("n", "m", "rank"), [(40, 7, None), (12, 30, None), (30, 30, None), (40, 20, 6)]
)
def test_few_rows_have_the_evidence_of_all_under_any_prior(n, m, rank):
    phi, y, statistics = problem(n, m, rank)
    found = CompressedStatistics(statistics)
    assert found.rank == (rank or min(n, m))
    assert (found.num_data, found.num_basis) == (n, m)
    root, noise = draw(m, m, seed=7), 0.3
    prior = root @ root.mT
    whole = log_density(y, phi @ prior @ phi.mT + noise * torch.eye(n, dtype=torch.float64))
    b = found.values.sqrt()[:, None] * found.vectors.mT
    inner = b @ prior @ b.mT + noise * torch.eye(found.rank, dtype=torch.float64)
    left = (n - found.rank) * math.log(2.0 * math.pi * noise) + found.rest / noise
    torch.testing.assert_close(
        log_density(found.targets, inner) - 0.5 * left, whole, rtol=1e-9, atol=0
    )


def test_the_rest_is_the_part_of_the_targets_beyond_all_functions():
    phi, y, statistics = problem(40, 7)
    found = CompressedStatistics(statistics)
    residual = y - phi @ torch.linalg.lstsq(phi, y[:, None]).solution[:, 0]
    torch.testing.assert_close(found.rest, residual.square().sum())
    y = phi @ draw(7, seed=8)
    inside = CompressedStatistics(statistics.with_targets(phi.mT @ y, y @ y))
    assert 0.0 <= float(inside.rest) < 1e-10


def test_axes_that_are_given_are_kept():
    """In their order and with their signs, from statistics of which they are eigenvectors."""
    _, _, sums = problem(40, 7)
    plain = CompressedStatistics(sums)
    order = torch.tensor([3, 0, 6, 1, 2, 5, 4])
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    found = CompressedStatistics(sums, plain.vectors[:, order] * signs)
    torch.testing.assert_close(found.values, plain.values[order])
    torch.testing.assert_close(found.targets, plain.targets[order] * signs)
    torch.testing.assert_close(found.rest, plain.rest)
