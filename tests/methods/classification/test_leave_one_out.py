"""Leave-one-out densities of Laplace's approximation."""

import pytest
import torch

from gpx.inference.leave_one_out import LeftOut
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian, Ordinal, Softmax
from gpx.means import Constant
from gpx.methods.classification.leave_one_out import left_out_log_density
from gpx.models import LaplaceGP


def data(n=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator).double() * 3.0
    return x, (2.0 * x[:, 0]).sin() + 0.3 * torch.randn(n, generator=generator).double()


def model(likelihood):
    kernel = RBF(lengthscale=1.0, outputscale=2.0)
    return LaplaceGP(kernel=kernel, mean=Constant(0.2), likelihood=likelihood).double()


def test_of_gaussian_noise_it_is_the_closed_form():
    """Laplace's approximation is exact there."""
    x, y = data()
    made = model(Gaussian(0.09))
    covariance = made.kernel.evaluate(x, x).detach() + 0.09 * torch.eye(len(x)).double()
    want = LeftOut.of(torch.linalg.cholesky(covariance), y - 0.2).log_density()
    torch.testing.assert_close(left_out_log_density(made, x, y), want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["two", "ordered", "several"])
def test_of_classes_it_is_near_that_of_fits_without_the_row(kind):
    """Nearer than densities of rows that the fit has seen, more than twice."""
    x, f = data()
    if kind == "two":
        likelihood, y = Bernoulli(), torch.where(f > 0.0, 1.0, -1.0).double()
    else:
        likelihood = Ordinal(num_classes=3) if kind == "ordered" else Softmax(num_classes=3)
        y = (f > -0.4).double() + (f > 0.4).double()
    made = model(likelihood)
    found = left_out_log_density(made, x, y)
    want = []
    with torch.no_grad():
        for row in range(len(x)):
            others = torch.arange(len(x)) != row
            posterior = made.condition(x[others], y[others])
            left = posterior.predictive(x[row : row + 1], made.likelihood)
            want.append(left.log_prob(y[row : row + 1]))
        want = torch.cat(want)
        seen = made.condition(x, y).predictive(x, made.likelihood).log_prob(y)
    error, seen_error = ((each - want).abs().mean() for each in (found, seen))
    assert float(error) < 0.05
    assert float(seen_error) > 2.0 * float(error)
