"""A kernel matrix whose device is full, or whose run asked for a precision."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.backends import Choice
from gpx.kernels import RBF
from gpx.linalg.matmul import set_matmul
from gpx.operators import KernelMatrix

pytestmark = pytest.mark.usefixtures("float64_by_default")


class FullDevice(TorchDispatchMode):
    """A device that has no room for an array of more than ``numbers``."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.refused = numbers, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.numel() > self.numbers:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found


def test_products_and_gradients_go_on_in_smaller_chunks(monkeypatch):
    """What was free when the matrix was chosen dense is taken by another process since."""
    monkeypatch.setattr("gpx.linalg.memory.MIN_BUDGET", 2**10)
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vectors, kernel = x[:, :1].clone(), RBF(2).double()
    dense = kernel.evaluate(x, x)
    expected = dense @ vectors
    (vectors.mT @ expected).sum().backward()
    gradients = [p.grad.clone() for p in kernel.parameters()]
    kernel.zero_grad()
    matrix = KernelMatrix.of(kernel, x, memory_budget=2**24)
    assert matrix.backend == "dense"
    with FullDevice(300 * 100) as device:
        product = matrix @ vectors
        (vectors.mT @ product).sum().backward()
    assert device.refused > 0
    torch.testing.assert_close(product, expected, rtol=1e-12, atol=1e-12)
    for found, right in zip(kernel.parameters(), gradients, strict=True):
        torch.testing.assert_close(found.grad, right, rtol=1e-10, atol=1e-12)


def test_a_dense_matrix_asked_for_by_hand_is_not_replaced():
    x = torch.zeros(300, 2)
    matrix = KernelMatrix.of(RBF(2), x, memory_budget=2**24, backend="dense")
    with FullDevice(300 * 100), pytest.raises(torch.OutOfMemoryError):
        matrix @ x


@pytest.mark.parametrize(("asked", "precision"), [("ieee", "ieee"), (None, "tf32x3")])
def test_triton_kernels_take_the_precision_that_the_run_asked_for(asked, precision):
    matrix = KernelMatrix.of(RBF(2), torch.zeros(3, 2))
    matrix._choice = Choice("triton", "for this test")
    before = torch.get_float32_matmul_precision()
    try:
        set_matmul(asked)
        assert matrix.engine.precision == precision
    finally:
        set_matmul(None)
        torch.set_float32_matmul_precision(before)
