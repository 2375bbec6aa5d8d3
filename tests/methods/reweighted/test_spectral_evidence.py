"""The evidence in O(m^2) against the one in O(m^3), and its limits."""

import pytest
import torch

from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics
from gpx.methods.reweighted.orthogonal import OrthogonalForm
from gpx.methods.reweighted.spectral_evidence import spectral_evidence, spectral_prior
from gpx.methods.reweighted.statistics_evidence import covariance_evidence, log_marginal_likelihood
from gpx.methods.reweighted.weights import CovarianceForm


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem(n, m):
    phi, y = draw(n, m, seed=1), draw(n, seed=2)
    statistics = SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)
    return statistics, CompressedStatistics(statistics)


NOISE = torch.tensor(-1.2, dtype=torch.float64)


@pytest.mark.parametrize("size", [(40, 7), (12, 30), (60, 45)])
def test_equals_the_cubic_form_for_the_prior_it_started_from(size):
    statistics, compressed = problem(*size)
    logs = draw(size[1], seed=3)
    found = spectral_evidence(compressed, *spectral_prior(compressed, logs.exp()), NOISE)
    weights = CovarianceForm(statistics).weights(logs, NOISE)
    torch.testing.assert_close(found, log_marginal_likelihood(weights), rtol=1e-9, atol=0)
    root = draw(size[1], size[1], seed=4)
    found = spectral_evidence(compressed, *spectral_prior(compressed, root @ root.mT), NOISE)
    want = covariance_evidence(statistics, root, NOISE.exp())
    torch.testing.assert_close(found, want, rtol=1e-9, atol=0)


def test_without_a_rotation_it_is_the_orthogonal_form():
    _, compressed = problem(40, 7)
    logs = draw(7, seed=5)
    found = spectral_evidence(compressed, logs, logs.new_zeros(0, 7), NOISE)
    weights = OrthogonalForm(compressed).weights(logs - compressed.values.log(), NOISE)
    torch.testing.assert_close(found, log_marginal_likelihood(weights), rtol=1e-11, atol=0)


def test_small_eigenvalues_of_a_covariance_are_raised_relative_to_the_largest():
    _, compressed = problem(20, 6)
    covariance = torch.outer(draw(6), draw(6)) * 1e-6  # rank one
    logs, _ = spectral_prior(compressed, covariance + covariance.mT)
    assert logs.max() - logs.min() < 32.3  # -log 1e-14 and rounding
    assert logs.max() - logs.min() > 32.2


def test_gradient():
    _, compressed = problem(20, 6)
    arguments = (draw(6, seed=6), draw(5, 6, seed=7), NOISE.clone())
    arguments = tuple(a.requires_grad_() for a in arguments)
    assert torch.autograd.gradcheck(
        lambda a, b, c: spectral_evidence(compressed, a, b, c), arguments
    )
