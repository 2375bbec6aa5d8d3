"""Predictive laws under Laplace and Student-t noise: against the convolution on a fine grid."""

import numpy as np
import pytest
import torch
from scipy import stats

from gpx.errors import ConfigError
from gpx.likelihoods import Laplace, StudentT

NOISE = {
    "laplace": (lambda: Laplace(0.05), stats.laplace(scale=0.05)),
    "student_t, 3": (lambda: StudentT(0.05, 3.0), stats.t(3.0, scale=0.05)),
    "student_t, 4": (lambda: StudentT(0.05, 4.0), stats.t(4.0, scale=0.05)),
    "student_t, 60": (lambda: StudentT(0.05, 60.0), stats.t(60.0, scale=0.05)),
}


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("deviation", [0.01, 0.05, 0.2, 1.0])
def test_the_density_is_the_convolution(name, deviation):
    """Points of f in its place left teeth: 4 nats off at 20 times the scale of the noise."""
    make, noise = NOISE[name]
    y = np.linspace(-4.0 * deviation - 0.3, 4.0 * deviation + 0.3, 17)
    f = np.linspace(-9.0 * deviation, 9.0 * deviation, 160_001)
    weights = stats.norm.pdf(f, 0.0, deviation) * (f[1] - f[0])
    want = np.log([weights @ noise.pdf(at - f) for at in y])
    zeros = torch.zeros(len(y), dtype=torch.float64)
    found = make().double().predictive(zeros, torch.full_like(zeros, deviation**2))
    np.testing.assert_allclose(found.log_prob(torch.tensor(y)).detach(), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", NOISE)
def test_moments_and_far_tails_are_those_of_the_noise(name):
    make, noise = NOISE[name]
    mean, variance = torch.tensor([[0.7], [0.3]], dtype=torch.float64)
    found = make().double().predictive(mean, variance)
    assert found.mean.item() == pytest.approx(0.7, rel=1e-12)
    assert found.variance.item() == pytest.approx(0.3 + noise.var(), rel=1e-5)
    certain = make().double().predictive(mean, torch.zeros_like(variance))
    for far in (0.2, 0.6, 1.0):
        density = certain.log_prob(mean + far).item()
        assert density == pytest.approx(noise.logpdf(far), rel=1e-4)


def test_no_normals_are_refused():
    with pytest.raises(ConfigError, match="num_nodes=0 must be at least 1"):
        Laplace(num_nodes=0)
