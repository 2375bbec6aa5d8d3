"""What every posterior has from its base class."""

import pytest
import torch

from gpx.errors import ConfigError, NotAvailable
from gpx.kernels import RBF, Kernel
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import Committee, ExactGP

X = torch.linspace(0.0, 1.0, 50, dtype=torch.float64)[:, None]
Y = torch.sin(6.0 * X[:, 0])


class Brownian(Kernel):
    """One without a spectrum."""

    def covariance(self, x1, x2):
        return torch.minimum(x1, x2.T)

    def variance(self, x):
        return x[:, 0]


def exact(kernel):
    return ExactGP(kernel=kernel, mean=Constant(), likelihood=Gaussian(0.01)).double()


@pytest.mark.parametrize("kernel", [RBF(lengthscale=0.3), Brownian()])
def test_draws_have_the_moments_of_the_joint_law(kernel):
    posterior = exact(kernel).condition(X[::5], Y[::5])
    draws = posterior.sample(X, 20_000, generator=torch.Generator().manual_seed(0))
    mean, variance = posterior.predict(X)
    covariance = posterior.joint_covariance(X)
    # five standard errors of each entry, and of the covariance's eigenvalues that rounding moves
    assert ((draws.mean(0) - mean).abs() <= 5.0 * (variance / 20_000).sqrt() + 1e-8).all()
    error = 5.0 * ((variance[:, None] * variance + covariance.square()) / 20_000).sqrt()
    assert ((draws.T.cov() - covariance).abs() <= error + 1e-8).all()


def test_draws_are_repeated_by_the_generator_and_counted():
    posterior = exact(RBF()).condition(X, Y)
    drawn = [posterior.sample(X[:4], 3, generator=torch.Generator().manual_seed(1)) for _ in "ab"]
    assert drawn[0].shape == (3, 4)
    assert torch.equal(*drawn)
    with pytest.raises(ConfigError, match="num"):
        posterior.sample(X, 0, generator=torch.Generator())


def test_a_posterior_without_a_joint_law_says_so():
    parts = {"kernel": RBF(), "mean": Constant(), "likelihood": Gaussian(0.01)}
    model = Committee(**parts).double()
    model.initialise(X, Y, generator=torch.Generator().manual_seed(0))
    posterior = model.condition(X, Y)
    with pytest.raises(NotAvailable, match="no joint covariance in closed form"):
        posterior.sample(X[:3], 2, generator=torch.Generator())
