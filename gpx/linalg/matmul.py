"""What float32 matrix products on a GPU may be rounded to, and where.

Tensor cores read eleven bits of a float32 factor ("tf32"). Measured by rounding operands, kernel
matrices from expanded distances are off by 2e-6 in IEEE float32, by 4e-6 with every factor split
into two such halves ("tf32x3"), and by 1.6e-2, no longer positive definite, in plain TF32. So
torch's own switch stays off, whatever an image or another library has set it to; split products are
taken inside compiled kernels, and plain TF32 only by products with a stored kernel matrix inside
conjugate gradients, whose residual is judged again in float64.

What a run asked for is a setting of the process, as torch's switches are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Matmul = Literal["ieee", "tf32x3", "tf32"]

_asked: Matmul | None = None


def set_matmul(asked: Matmul | None) -> None:
    """Take what a run asked for, and switch off torch's own TF32.

    Args:
        asked: "ieee", "tf32x3", "tf32"; None: tf32x3 in compiled kernels that have it, else IEEE.
    """
    global _asked
    _asked = asked
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def asked_matmul() -> Matmul | None:
    """What the run in this process asked for; None where it left the choice."""
    return _asked


def kernel_precision() -> Literal["ieee", "tf32x3"]:
    """Of float32 products inside compiled kernels, where distances and Gram matrices are made."""
    return "ieee" if _asked == "ieee" else "tf32x3"


@contextmanager
def rounded_products() -> Iterator[None]:
    """Inside, torch's float32 products on a GPU are TF32 where the run asked for it.

    For products whose error something else bounds, and for nothing that makes a matrix.
    """
    if _asked != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
