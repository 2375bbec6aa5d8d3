"""Precision of float32 matrix products on a GPU.

Tensor cores read eleven bits of a float32 factor ("tf32"). Kernel matrices from expanded distances
are off by 2e-6 in IEEE float32, by 4e-6 with every factor split into two such halves ("tf32x3"),
and by 1.6e-2, no longer positive definite, in plain TF32. Therefore torch's own TF32 switch is
turned off; compiled kernels use split products; and plain TF32 is used only for products with a
stored kernel matrix inside conjugate gradients, which check the residual in float64.

The choice of a run is a setting of the process, as torch's switches are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Matmul = Literal["ieee", "tf32x3", "tf32"]

_asked: Matmul | None = None


def set_matmul(asked: Matmul | None) -> None:
    """Set the precision for this process, and switch off torch's own TF32.

    Args:
        asked: "ieee", "tf32x3", "tf32"; None: tf32x3 in compiled kernels that have it, else IEEE.
    """
    global _asked
    _asked = asked
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def asked_matmul() -> Matmul | None:
    """The precision passed to ``set_matmul``; None: the default."""
    return _asked


def kernel_precision() -> Literal["ieee", "tf32x3"]:
    """Precision of float32 products in compiled kernels (distances and Gram matrices)."""
    return "ieee" if _asked == "ieee" else "tf32x3"


@contextmanager
def rounded_products() -> Iterator[None]:
    """Inside, torch's float32 products on a GPU are TF32 if the run asked for "tf32".

    For products whose error is controlled otherwise; never to compute a kernel matrix.
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
