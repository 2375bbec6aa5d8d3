"""Products over axes, dense metrics and warps against their formulas."""

import math

import pytest
import torch

from gpx.kernels import RBF, AxisProduct, Matern12, Matern32, Matern52, Periodic
from gpx.kernels.warped import LinearWarp, Warped

PROFILES = {
    "matern12": (Matern12, lambda r: torch.exp(-r)),
    "matern32": (Matern32, lambda r: (1 + math.sqrt(3) * r) * torch.exp(-math.sqrt(3) * r)),
    "matern52": (
        Matern52,
        lambda r: (1 + math.sqrt(5) * r + 5 / 3 * r * r) * torch.exp(-math.sqrt(5) * r),
    ),
}


def inputs(n=11, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("family", sorted(PROFILES))
def test_a_product_of_materns_is_that_and_not_the_radial_one(family):
    x, z = inputs(), inputs(7, seed=1)
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    kernel = AxisProduct(family, 3, lengthscale=scales.tolist(), outputscale=1.5).double()
    cls, profile = PROFILES[family]
    r = ((x[:, None] - z) / scales).abs()
    torch.testing.assert_close(
        kernel.evaluate(x, z), 1.5 * profile(r).prod(-1), rtol=1e-7, atol=1e-9
    )
    radial = cls(3, scales.tolist(), 1.5).double().evaluate(x, z)
    torch.testing.assert_close(
        radial, 1.5 * profile(r.square().sum(-1).sqrt()), rtol=1e-6, atol=1e-7
    )
    assert float((radial - kernel.evaluate(x, z)).detach().abs().max()) > 1e-2
    assert kernel.name == "AxisProduct"


def test_a_dense_metric():
    x, z = inputs(), inputs(7, seed=1)
    warp = LinearWarp(3).double()
    with torch.no_grad():
        warp.root.copy_(torch.tensor([[1.0, 9.0, 9.0], [0.4, 0.7, 9.0], [-0.3, 0.2, 1.2]]))
    kernel = Warped(RBF(None, 1.0, 2.0).double(), warp)
    root = warp.root.detach().tril()
    difference = x[:, None] - z
    r2 = torch.einsum("ijk,kl,ijl->ij", difference, root @ root.mT, difference)
    torch.testing.assert_close(
        kernel.evaluate(x, z), 2.0 * torch.exp(-0.5 * r2), rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(kernel.diagonal(x), kernel.evaluate(x).diagonal())
    assert float(torch.linalg.eigvalsh(kernel.evaluate(x).detach()).min()) > -1e-10
    kernel.evaluate(x, z).sum().backward()
    assert warp.root.grad.tril().abs().sum() > 0


def test_the_periodic_kernel_is_a_warped_rbf():
    class Circle(torch.nn.Module):
        def forward(self, x):
            angle = 2 * math.pi * x / 1.7
            return torch.cat([angle.cos(), angle.sin()], 1)

    x = inputs(d=1)
    periodic = Periodic(1, 0.8, 1.3, period=1.7).double()
    with torch.no_grad():
        periodic.period = torch.tensor([1.7], dtype=torch.float64)
    warped = Warped(RBF(2, 0.8, 1.3).double(), Circle())
    torch.testing.assert_close(periodic.evaluate(x), warped.evaluate(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        periodic.evaluate(x, x + 1.7), periodic.evaluate(x), rtol=1e-9, atol=1e-10
    )
