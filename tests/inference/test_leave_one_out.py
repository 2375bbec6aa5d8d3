"""Leave-one-out densities from one factorisation against a model fitted without each row."""

import pytest
import torch
from torch.distributions import Normal

from gpx.inference.leave_one_out import LeftOut
from gpx.kernels import Matern32

pytestmark = pytest.mark.usefixtures("float64_by_default")


def test_each_is_the_density_given_all_other_rows():
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 2, generator=draws), torch.randn(12, generator=draws)
    kernel, noise = Matern32(lengthscale=0.7, outputscale=1.3).double(), 0.2
    covariance = kernel.evaluate(x, x).detach() + noise * torch.eye(12)
    factor = torch.linalg.cholesky(covariance)
    left, found = LeftOut.of(factor, y), LeftOut.of(factor, y).log_density()
    torch.testing.assert_close(LeftOut.of(factor.mT, y, upper=True), left)
    for i in range(12):
        rest = torch.arange(12) != i
        weights = torch.linalg.solve(covariance[rest][:, rest], covariance[rest, i])
        mean, variance = weights @ y[rest], covariance[i, i] - weights @ covariance[rest, i]
        assert left.residual[i].item() == pytest.approx((y[i] - mean).item())
        assert left.variance[i].item() == pytest.approx(variance.item())
        assert found[i].item() == pytest.approx(Normal(mean, variance.sqrt()).log_prob(y[i]).item())
