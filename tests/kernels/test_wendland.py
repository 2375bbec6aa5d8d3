"""Wendland's kernels: the closed form, exact zeros, positive definite as far as they say."""

import pytest
import torch

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import Wendland

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n, d):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0))


def test_the_closed_form_in_three_inputs():
    kernel, x = Wendland(3, [0.9, 2.0, 3.0], 1.3), inputs(12, 3)
    r = torch.cdist(x / kernel.lengthscale.detach(), x / kernel.lengthscale.detach())
    want = 1.3 * (1.0 - r).clamp_min(0.0) ** 4 * (4.0 * r + 1.0)
    found = kernel.evaluate(x).detach()
    torch.testing.assert_close(found, want, rtol=1e-7, atol=1e-12)
    assert bool((r > 1.0).any())
    assert bool((found[r > 1.0] == 0.0).all())


@pytest.mark.parametrize("d", [1, 3, 4, 8])
def test_it_is_positive_definite_in_its_inputs(d):
    dense = Wendland(d, 2.0 * d**0.5).evaluate(inputs(120, d)).detach()
    assert 0.01 < float((dense == 0.0).double().mean()) < 0.95
    assert float(torch.linalg.eigvalsh(dense)[0]) > 0.0


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match="max_inputs=2 of a Wendland kernel must be at least 3"):
        Wendland(3, max_inputs=2)
    with pytest.raises(ShapeError, match="positive definite in 3 inputs and got 4; set max_inp"):
        Wendland().evaluate(inputs(5, 4))
    Wendland(max_inputs=4).evaluate(inputs(5, 4))
