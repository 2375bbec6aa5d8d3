"""The KeOps backend: the kernel as a symbolic formula that one compiled loop evaluates and sums."""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from gpx.backends.entries import Entries, gradients
from gpx.errors import BackendUnavailable
from gpx.linalg.replayed import refuse_recording

WIDTHS = (1, 2, 4, 8, 16)
"""Columns that one compiled formula multiplies. KeOps compiles anew for every width (seconds), so
blocks of vectors are padded with zeros to one of these."""


def keops_installed() -> bool:
    """Whether the optional package can be found; it is not imported."""
    return find_spec("pykeops") is not None


@lru_cache(maxsize=1)
def _lazy_tensor() -> Any:
    if not keops_installed():
        raise BackendUnavailable(
            "backend=keops needs the optional package pykeops, which is not installed; "
            "pip install 'gpx-torch[keops]', or choose backend=chunked"
        )
    try:
        from pykeops.torch import LazyTensor
    except Exception as error:  # it compiles during its import, and anything may be missing
        raise BackendUnavailable(
            f"pykeops is installed but cannot be imported ({type(error).__name__}: {error}); "
            "check its compiler, or choose backend=chunked"
        ) from error
    return LazyTensor


def require_keops() -> None:
    """Raises BackendUnavailable, in one sentence, when KeOps is missing or broken."""
    _lazy_tensor()


@lru_cache(maxsize=32)
def keops_refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why KeOps cannot run on a device, in one sentence; None where it can.

    One small formula is compiled and run there (seconds, once, then kept on disk by KeOps): its
    compiler may be missing although the package is not.
    """
    if not keops_installed():
        return "pykeops is not installed"
    try:
        z = torch.tensor([[0.0], [1.0]], dtype=dtype, device=device)
        found = (-squared_distance(z, z)).exp().sum(dim=1)
        error = float((found - (1.0 + math.exp(-1.0))).abs().max())
    except Exception as failure:  # a compiler may fail in any way
        words = " ".join(str(failure).split()) or "no reason given"
        return f"KeOps does not compile here ({type(failure).__name__}: {words[:200]})"
    return None if error < 1e-5 else f"KeOps is wrong here by {error:.1e}"


class KeOps:
    """Products and their gradients by KeOps; the kernel must have a ``formula``.

    Distances come from differences of coordinates, so close points are more accurate than by the
    matrix product of the other backends. Gradients are KeOps's own, of the same formula.

    Cost: O(n1 n2 (d + c)) time, O((n1 + n2)(d + c)) memory; each number of dimensions, dtype and
    width of ``WIDTHS`` compiles once (seconds) and is then kept on disk.
    """

    def product(self, entries: Entries, right: Tensor, *, transposed: bool) -> Tensor:
        """K @ right (n2, c), or K^T @ right (n1, c); not differentiable."""
        if transposed:
            entries = entries.transposed()
        with torch.no_grad():
            found = [_product(entries, block) for block in _blocks(right)]
        return torch.cat(found, dim=1) if found else right.new_zeros(entries.shape[0], 0)

    def derivative(
        self, entries: Entries, left: Tensor, right: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradient of sum_c left_c^T K right_c for every tensor of ``entries``."""
        leaves, blocks = entries.leaves(), list(zip(_blocks(left), _blocks(right), strict=True))
        totals = gradients(leaves, (), ())
        for ours, theirs in blocks:
            with torch.enable_grad():
                product = _product(leaves, theirs)
            found = gradients(leaves, (product,), (ours,))
            pairs = zip(totals, found, strict=True)
            totals = tuple(None if a is None or b is None else a + b for a, b in pairs)
        return totals


def _blocks(vectors: Tensor) -> tuple[Tensor, ...]:
    return vectors.split(WIDTHS[-1], dim=1) if vectors.shape[1] else ()


def _product(entries: Entries, right: Tensor) -> Tensor:
    """K @ right for at most ``WIDTHS[-1]`` columns, differentiable in ``entries``."""
    refuse_recording("KeOps launches its kernels by itself, on a stream of its own")
    n1, n2 = entries.shape
    columns = right.shape[1]
    if n1 == 0 or n2 == 0:
        return right.new_zeros(n1, columns)
    width = next(w for w in WIDTHS if w >= columns)
    padded = torch.nn.functional.pad(right, (0, width - columns)).contiguous()
    x2 = entries.x1 if entries.square else entries.x2
    formula = entries.call(lambda kernel: kernel.formula(squared_distance, entries.x1, x2))
    product: Tensor = (formula * _lazy_tensor()(padded[None])).sum(dim=1)
    return product[:, :columns]


def squared_distance(z1: Tensor, z2: Tensor) -> Any:
    """|z1_i - z2_j|^2 as a KeOps lazy tensor.

    Both arguments are made contiguous first: KeOps returns gradients of zero, or of other rows, for
    strided inputs.
    """
    lazy = _lazy_tensor()
    first, second = lazy(z1.contiguous()[:, None]), lazy(z2.contiguous()[None])
    return ((first - second) ** 2).sum(-1)
