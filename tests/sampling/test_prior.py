"""Functions drawn from the prior: their covariance is the kernel's, and they are functions."""

import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF, Linear, Matern32
from gpx.sampling.prior import prior_functions


@pytest.mark.parametrize("name", [RBF, Matern32])
def test_covariance_over_draws_is_the_kernel(name):
    """3000 draws of 1000 waves: five standard errors of both sums."""
    kernel = name(2, (0.7, 1.3), 1.7).double()
    generator = torch.Generator().manual_seed(0)
    functions = prior_functions(kernel, 3000, 2, generator=generator, num_frequencies=1000)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    values = functions(x)
    with torch.no_grad():
        want = kernel.evaluate(x)
    found = values.mT @ values / 3000
    error = 1.7 * (math.sqrt(2.0 / 3000) + math.sqrt(0.5 / 1000))
    assert float((found - want).abs().max()) < 5 * error
    assert float(values.mean(0).abs().max()) < 5 * math.sqrt(1.7 / 3000)
    assert torch.equal(functions(x[2:4]), values[:, 2:4])  # wherever they are asked


def test_what_cannot_be_drawn_is_explained():
    generator = torch.Generator()
    with pytest.raises(ConfigError, match="at least one function must be drawn, got 0"):
        prior_functions(RBF(2), 0, 2, generator=generator)
    with pytest.raises(ConfigError):
        prior_functions(Linear(2), 1, 2, generator=generator)
