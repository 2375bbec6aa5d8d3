"""KeOps against the dense matrix. Each formula compiles for seconds, so they share few."""

import pytest
import torch

from gpx.backends import keops_installed
from gpx.backends.keops import WIDTHS
from gpx.kernels import RBF, Constant, Matern32, Periodic

pytestmark = [
    pytest.mark.keops,
    pytest.mark.skipif(not keops_installed(), reason="pykeops is not installed"),
]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


def draw(*shape, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)


def matern():
    return Matern32(2, [0.8, 1.3], 1.4).double()


def composite():
    """Sum, product, multiple and constant in one formula, each part with its own columns."""
    product = RBF(None, 0.9, None, [0]) * Periodic(None, 1.1, None, [1], period=2.0)
    return (product * 1.7 + Constant(0.3)).double()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make_kernel", [matern, composite])
def test_products_of_any_shape_agree(make_kernel, device):
    kernel = make_kernel().to(device)
    x, z = draw(30, 2, device=device), draw(20, 2, seed=1, device=device)
    z[:3] = x[4:7]  # coincident points: square roots of zero
    for inputs in ((x, None), (x, z)):
        operator, dense = kernel(*inputs, backend="keops"), kernel.evaluate(*inputs).detach()
        assert (operator.backend, operator.choice.reason) == ("keops", "asked for")
        n = dense.shape[1]
        with torch.no_grad():
            wide = make_kernel is matern and inputs[1] is z  # each width compiles anew
            for shape in ((n, 2), (3, n, 5), (n, WIDTHS[-1] + 2)) if wide else ((n, 2),):
                right = draw(*shape, seed=2, device=device)
                torch.testing.assert_close(operator @ right, dense @ right, rtol=1e-6, atol=1e-6)
            left = draw(30, 2, seed=3, device=device)
            torch.testing.assert_close(operator.mT @ left, dense.mT @ left, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("square", [True, False])
def test_gradients_agree_also_for_inputs_that_are_not_contiguous(square, device):
    found = []
    for backend in ("keops", "chunked"):
        kernel = matern().to(device)
        base = draw(2, 60, device=device).requires_grad_()
        x = base.mT[::2]  # strided twice
        other = draw(2, 20, seed=1, device=device).requires_grad_()
        right = draw(2, 30 if square else 20, seed=2, device=device).requires_grad_()
        operator = kernel(x, None if square else other.mT, backend=backend)
        # a cosine gives every entry of the result its own weight, and the weights no contiguity
        (operator @ right.mT).cos().mT.sum().backward()
        leaves = [base, right, *kernel.parameters()] + ([] if square else [other])
        found.append([t.grad for t in leaves])
    for ours, reference in zip(*found, strict=True):
        assert reference.abs().max() > 1e-3
        torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-6)


def test_empty_matrices_need_no_formula():
    kernel, x, empty = matern(), draw(30, 2), draw(0, 2)
    assert (kernel(empty, x, backend="keops") @ draw(30, 2)).shape == (0, 2)
    assert (kernel(x, empty, backend="keops") @ draw(0, 2)).eq(0).all()
    assert (kernel(x, backend="keops") @ draw(30, 0)).shape == (30, 0)
