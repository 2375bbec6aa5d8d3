"""Evidence from sufficient statistics: every form of the prior against dense Gaussian processes."""

import math

import pytest
import torch

from gpx.errors import NotPositiveDefinite
from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.statistics_evidence import (
    covariance_evidence,
    evidence_over_noise,
    log_marginal_likelihood,
    precision_evidence,
)
from gpx.methods.reweighted.weights import CovarianceForm


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem(n=40, m=7):
    phi, y = draw(n, m, seed=1), draw(n, seed=2)
    return phi, y, SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


def dense(phi, y, covariance, noise):
    matrix = phi @ covariance @ phi.mT + noise * torch.eye(len(y), dtype=torch.float64)
    fit = y @ torch.linalg.solve(matrix, y)
    return -0.5 * (fit + torch.logdet(matrix) + len(y) * math.log(2.0 * math.pi))


@pytest.mark.parametrize("size", [(40, 7), (12, 30)])
def test_dense_priors_equal_dense_algebra(size):
    phi, y, statistics = problem(*size)
    root = draw(size[1], size[1], seed=3).tril().requires_grad_()
    noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    covariance = root @ root.mT
    want = dense(phi, y, covariance, noise)
    slopes = torch.autograd.grad(want, [root, noise], retain_graph=True)
    found = covariance_evidence(statistics, root, noise)
    torch.testing.assert_close(found, want, rtol=1e-10, atol=0)
    for got, wanted in zip(torch.autograd.grad(found, [root, noise]), slopes, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8)


def test_diagonal_dense_and_covariance_forms_agree():
    phi, y, statistics = problem()
    variances, noise = draw(7, seed=4).exp(), torch.tensor(0.3, dtype=torch.float64)
    want = dense(phi, y, variances.diag(), noise)
    by_precision = precision_evidence(statistics, (1.0 / variances).diag(), noise)
    by_covariance = covariance_evidence(statistics, variances.sqrt().diag(), noise)
    weights = CovarianceForm(statistics).weights(variances.log(), noise.log())
    for found in (by_precision, by_covariance, log_marginal_likelihood(weights)):
        torch.testing.assert_close(found, want, rtol=1e-10, atol=0)


def test_gradients_of_a_dense_precision():
    phi, y, statistics = problem()
    root = draw(7, 7, seed=5).requires_grad_()
    noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    precision = root @ root.mT + torch.eye(7, dtype=torch.float64)
    want = torch.autograd.grad(
        dense(phi, y, torch.linalg.inv(precision), noise), [root, noise], retain_graph=True
    )
    got = torch.autograd.grad(precision_evidence(statistics, precision, noise), [root, noise])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_singular_covariances_are_fine_and_singular_precisions_are_refused():
    phi, y, statistics = problem()
    root, noise = draw(7, 2, seed=6), torch.tensor(0.3, dtype=torch.float64)
    want = dense(phi, y, root @ root.mT, noise)
    found = covariance_evidence(statistics, root, noise)
    torch.testing.assert_close(found, want, rtol=1e-10, atol=0)
    with pytest.raises(NotPositiveDefinite, match="prior precision of 7 weights"):
        precision_evidence(statistics, -torch.eye(7, dtype=torch.float64), noise)


def test_noise_scaled_prior_serves_every_noise():
    phi, y, statistics = problem()
    scaled = draw(7, seed=7)
    noises = torch.logspace(-3.0, 1.0, 20, dtype=torch.float64)
    once = CovarianceForm(statistics).weights(scaled, torch.zeros((), dtype=torch.float64))
    found = evidence_over_noise(once, noises.log())
    want = torch.stack([dense(phi, y, (s * scaled.exp()).diag(), s) for s in noises])
    torch.testing.assert_close(found, want, rtol=1e-10, atol=0)


def test_prior_mean_of_the_weights():
    phi, y, statistics = problem()
    mu, noise = draw(7, seed=8), torch.tensor(0.3, dtype=torch.float64)
    variances = draw(7, seed=9).exp()
    weights = CovarianceForm(statistics.about(mu)).weights(variances.log(), noise.log())
    want = dense(phi, y - phi @ mu, variances.diag(), noise)
    torch.testing.assert_close(log_marginal_likelihood(weights), want, rtol=1e-10, atol=0)
    precision = phi.mT @ phi / noise + (1.0 / variances).diag()
    mean = torch.linalg.solve(precision, phi.mT @ y / noise + mu / variances)
    torch.testing.assert_close(mu + weights.mean(), mean, rtol=1e-9, atol=1e-9)
