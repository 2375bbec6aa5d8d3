"""Which kernels are sums of functions of distances, and that the parts add up to them."""

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Wendland,
)

PLAIN = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational_quadratic": RationalQuadratic,
}


def draw(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator, dtype=torch.float64)


def matrix(part):
    """A part by the kernel of its name at lengthscale one."""
    more = {} if part.shape is None else {"alpha": float(part.shape.detach())}
    kernel = PLAIN[part.profile](outputscale=None, **more).double()
    return part.scale * kernel.evaluate(part.z1, None if part.square else part.z2)


@pytest.mark.parametrize(
    ("kernel", "profiles"),
    [
        (RBF(3, [0.5, 1.0, 2.0], 1.4), ("rbf",)),
        (Matern12(None, 0.7, None, [2, 0]), ("matern12",)),
        (Matern52(3) + 2.0 * (Matern32(3, 1.3, 0.4) + RBF(3)), ("matern52", "matern32", "rbf")),
        (3.0 * RationalQuadratic(3, 0.8, alpha=0.6), ("rational_quadratic",)),
        (Periodic(3, 1.3, period=[2.0, 3.0, 5.0]), ("rbf",)),
    ],
)
def test_parts_add_up_to_the_kernel(kernel, profiles):
    kernel = kernel.double()
    assert kernel.radial_profiles == profiles
    x, z = draw(6), draw(4, seed=1)
    for other in (None, z):
        parts = kernel.radial_parts(x, other)
        assert tuple(p.profile for p in parts) == profiles
        assert all(p.square == (other is None) for p in parts)
        total = sum(matrix(p) for p in parts)
        torch.testing.assert_close(total, kernel.evaluate(x, other), rtol=1e-12, atol=1e-14)
    turned = [p.transposed() for p in kernel.radial_parts(x, z)]
    total = sum(matrix(p) for p in turned)
    torch.testing.assert_close(total, kernel.evaluate(z, x), rtol=1e-12, atol=1e-14)


def test_parts_are_differentiable_in_inputs_and_parameters():
    kernel, x = RationalQuadratic(3, [0.5, 1.0, 2.0], alpha=0.6).double(), draw(4).requires_grad_()
    (part,) = kernel.radial_parts(x)
    total = sum(t.sum() for t in (part.z1.square(), part.scale, part.shape))
    total.backward()
    assert all(t.grad.abs().max() > 0 for t in (x, *kernel.parameters()))


class Squared(RBF):
    """A profile of its own on the parent's name."""

    def of_squared_distance(self, r2):
        return 1.0 / (1.0 + r2).square()


@pytest.mark.parametrize(
    "kernel", [Squared(3), Wendland(3), Linear(3), RBF(3) * RBF(3), RBF(3) + Constant()]
)
def test_kernels_without_parts_say_so(kernel):
    kernel = kernel.double()
    assert kernel.radial_profiles == ()
    with pytest.raises(ConfigError, match=r"is no sum of RBF, Matern and rational quadratic"):
        kernel.radial_parts(draw(3))
