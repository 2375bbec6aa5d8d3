"""Evidence with hyper-priors: density, gradient, and type-II inference."""

import math

import pytest
import torch
from linear_features import draw, features_and_targets
from torch.distributions import LogNormal as Reference

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.evidence import joint_density
from gpx.methods.reweighted.orthogonal import OrthogonalForm
from gpx.methods.reweighted.weights import CompressedStatistics, CovarianceForm
from gpx.models import HyperPriors, InverseGamma, LogNormal

PRIORS = HyperPriors(LogNormal(1.0, 100.0), LogNormal(0.1, 0.04))
STUDENT = HyperPriors(InverseGamma(0.7, 3.0), LogNormal(0.1, 0.04))


def statistics(n=30, m=5):
    phi, y = features_and_targets(n, m)
    return SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


def test_prior_is_a_log_normal_density_in_the_logarithm():
    """p(u) = p(theta) theta: the reference density times the Jacobian."""
    u = draw(6, seed=3)
    found = joint_density(CovarianceForm(statistics()), PRIORS, u)
    want = 0.0
    parts = (PRIORS.weight, u[:-1]), (PRIORS.noise, u[-1:])
    for prior, part in parts:
        scale = math.sqrt(prior.log_variance)
        law = Reference(torch.tensor(prior.log_mean).double(), torch.tensor(scale).double())
        want = want + (law.log_prob(part.exp()) + part).sum()
    torch.testing.assert_close(found.prior, want, rtol=1e-7, atol=0)


@pytest.mark.parametrize("priors", [PRIORS, STUDENT, None])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_gradient_equals_central_differences(priors, orthogonal):
    sums = statistics()
    form = OrthogonalForm(CompressedStatistics(sums)) if orthogonal else CovarianceForm(sums)
    u = draw(6, seed=4)
    found = joint_density(form, priors, u)
    for i in range(6):
        move = torch.zeros(6, dtype=torch.float64)
        move[i] = 1e-5
        up, down = (joint_density(form, priors, u + sign * move) for sign in (1, -1))
        slope = float(up.likelihood + up.prior - down.likelihood - down.prior) / 2e-5
        assert slope == pytest.approx(float(found.gradient[i]), rel=1e-5, abs=1e-6)


def test_parts_add_up():
    u = draw(6, seed=5)
    found = joint_density(CovarianceForm(statistics()), PRIORS, u)
    total = found.fit + found.complexity + found.constant
    torch.testing.assert_close(total, found.likelihood, rtol=1e-12, atol=0)
