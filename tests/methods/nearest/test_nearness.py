"""The prior variance that jitter is relative to."""

import pytest
import torch
from draws import draws

from gpx.kernels import RBF, Constant, Linear, Matern32, Warped
from gpx.kernels.base import Kernel
from gpx.kernels.warped import LinearWarp
from gpx.methods.nearest.nearness import mean_variance


class Growing(RBF):
    """A kernel that is stationary but for its variance."""

    def variance(self, x):
        return self.outputscale * x[:, 0].square()


SAME = {
    "stationary": lambda: RBF(2, outputscale=1.3),
    "sum": lambda: RBF(2, outputscale=1.3) + Matern32(2) + Constant(0.4),
    "product": lambda: RBF(2, outputscale=1.3) * Matern32(2, outputscale=0.7),
    "multiple": lambda: 2.0 * (RBF(2) + Matern32(2)),
}
CHANGING = {
    "own": lambda: Growing(2),
    "linear": lambda: Linear(2),
    "sum": lambda: RBF(2) + Linear(2),
    "multiple": lambda: 2.0 * Growing(2),
    "warped": lambda: Warped(Linear(2), LinearWarp(2)),
}


@pytest.mark.parametrize("name", SAME)
def test_a_variance_that_is_the_same_everywhere_is_computed_at_one_point(name, monkeypatch):
    kernel, z = SAME[name](), torch.randn(600, 2, generator=draws())
    want = kernel.diagonal(z).mean()
    asked, diagonal = set(), Kernel.diagonal

    def noted(self, x):
        asked.add(len(x))
        return diagonal(self, x)

    monkeypatch.setattr(Kernel, "diagonal", noted)
    torch.testing.assert_close(mean_variance(kernel, z), want)
    assert asked == {1}


@pytest.mark.parametrize("name", CHANGING)
def test_a_variance_that_changes_is_a_mean_over_many_points(name):
    kernel, z = CHANGING[name](), torch.rand(200, 2, generator=draws())
    z[0] = 0.0
    torch.testing.assert_close(mean_variance(kernel, z), kernel.diagonal(z).mean().detach())
