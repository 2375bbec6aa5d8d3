"""Prior variances of eigenvectors: dense algebra along them, and the optimum that is known."""

import pytest
import torch
from linear_features import (
    assert_evidence_and_gradient,
    expected_information,
    features_and_targets,
    position,
)

from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics
from gpx.methods.reweighted.orthogonal import OrthogonalForm


def problem(n, m):
    phi, y = features_and_targets(n, m)
    statistics = SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)
    return phi, y, CompressedStatistics(statistics)


@pytest.mark.parametrize("size", [(40, 7), (12, 30), (30, 30)])
def test_evidence_and_gradient_equal_dense_algebra(size):
    phi, y, compressed = problem(*size)
    u, s = position(compressed.rank)
    found = OrthogonalForm(compressed).weights(u, s)
    assert_evidence_and_gradient(found, phi @ compressed.vectors, y, u, s)


def test_expected_information_is_that_of_the_dense_covariance():
    phi, _, compressed = problem(12, 5)
    turned, (u, s) = phi @ compressed.vectors, position(5)
    noise = s.exp() * torch.eye(12, dtype=torch.float64)
    slopes = [u[i].exp() * torch.outer(turned[:, i], turned[:, i]) for i in range(5)]
    want = expected_information(turned * u.exp() @ turned.mT + noise, [*slopes, noise])
    found = OrthogonalForm(compressed).weights(u, s).fisher()
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)


def test_features_keep_their_length():
    """Along what the data see, and the square of the rest."""
    phi, _, compressed = problem(6, 11)
    found = OrthogonalForm(compressed).at(phi)
    assert found.shape == (6, 7)
    torch.testing.assert_close(found[:, :-1] @ compressed.vectors.mT, phi)
    assert float(found[:, -1].abs().max()) < 1e-12  # training inputs have no rest
    other = torch.linspace(-1.0, 1.0, 11, dtype=torch.float64)[None]
    seen = OrthogonalForm(compressed).at(other)[0]
    torch.testing.assert_close(seen[:-1].square().sum() + seen[-1], other.square().sum())


def test_the_optimum_is_known():
    """Ascent finds g~ = max(0, b^2 - s) for functions of unit norm, lambda g in ours."""
    _, _, compressed = problem(40, 7)
    form = OrthogonalForm(compressed)
    noise = torch.tensor(0.4, dtype=torch.float64)
    u = torch.zeros(7, dtype=torch.float64)
    for _ in range(4000):
        u = u + form.weights(u, noise.log()).weight_gradient()
    want = (compressed.targets.square() - noise).clamp_min(0.0)
    assert 0 < int((want > 0).sum()) < 7  # both kinds are there
    torch.testing.assert_close(compressed.values * u.exp(), want, rtol=0, atol=2e-3)
    inner = want > 0
    torch.testing.assert_close(
        (compressed.values * u.exp())[inner], want[inner], rtol=1e-6, atol=1e-6
    )
