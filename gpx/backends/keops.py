"""The KeOps backend: the kernel as a symbolic formula, evaluated and summed in a compiled loop."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from gpx.backends.entries import Entries, gradients
from gpx.backends.trial import fault
from gpx.errors import BackendUnavailable
from gpx.linalg.replayed import refuse_recording

WIDTHS = (1, 2, 4, 8, 16)
"""Numbers of columns of a product. KeOps compiles again for every width (seconds), so vectors are
padded with zeros to one of these."""

TRIAL_CODE = "from gpx.backends.keops import trial_error; print(trial_error('{}', '{}'))"
TRIAL_SECONDS = 300.0
"""Most seconds that KeOps may take to compile its engine and a formula."""


def keops_installed() -> bool:
    """Whether the optional package is installed; it is not imported."""
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
    except Exception as error:  # pykeops compiles code on import, which can fail in any way
        # a process that was stopped while it wrote them leaves files that cannot be read
        damaged = isinstance(error, EOFError | pickle.UnpicklingError)
        what = "delete its files (~/.cache/keops*)" if damaged else "check its compiler"
        raise BackendUnavailable(
            f"pykeops is installed but cannot be imported ({type(error).__name__}: {error}); "
            f"{what}, or choose backend=chunked"
        ) from error
    return LazyTensor


def require_keops(device: torch.device, dtype: torch.dtype) -> None:
    """Raise BackendUnavailable if KeOps is missing or broken."""
    _lazy_tensor()
    if device.type == "cuda":  # elsewhere an error of KeOps can be caught when it appears
        refusal = keops_refusal(device, dtype)
        if refusal is not None:
            raise BackendUnavailable(f"{refusal}; choose backend=chunked")


@lru_cache(maxsize=32)
def keops_refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why KeOps cannot run on a device, in one sentence; None if it can.

    Compiles and runs a small formula there (seconds, once; KeOps keeps it on disk), since the
    compiler may be missing although the package is installed. On CUDA this runs in a process of
    its own: code that KeOps compiled ends its process on some errors of the driver.
    """
    if not keops_installed():
        return "pykeops is not installed"
    run = _error_in_a_process if device.type == "cuda" else trial_error
    return fault(lambda: run(str(device), str(dtype)), "KeOps", "does not run here")


def trial_error(device: str, dtype: str) -> float:
    """Error of a small sum of exponentials by KeOps; ``dtype`` as text, such as torch.float32."""
    z = torch.tensor([[0.0], [1.0]], dtype=getattr(torch, dtype.split(".")[-1]), device=device)
    found = (-squared_distance(z, z)).exp().sum(dim=1)
    return float((found - (1.0 + math.exp(-1.0))).abs().max())


def _error_in_a_process(device: str, dtype: str) -> float:
    """``trial_error``, computed where a crash does no harm.

    Raises:
        BackendUnavailable: it failed, with the last line that it wrote.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", TRIAL_CODE.format(device, dtype)],
        capture_output=True,
        text=True,
        timeout=TRIAL_SECONDS,
        env=environment,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = f": {lines[-1].strip()}" if lines else ""
        raise BackendUnavailable(f"a trial ended with status {done.returncode}{last}")
    return float(done.stdout.split()[-1])


class KeOps:
    """Products and their gradients by KeOps; the kernel must have a ``formula``.

    Distances are computed from differences of coordinates, so they are more accurate for close
    points than with the matrix product of the other backends. Gradients are those of KeOps.

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
        for left_block, right_block in blocks:
            with torch.enable_grad():
                product = _product(leaves, right_block)
            found = gradients(leaves, (product,), (left_block,))
            pairs = zip(totals, found, strict=True)
            totals = tuple(None if a is None or b is None else a + b for a, b in pairs)
        return totals


def _blocks(vectors: Tensor) -> tuple[Tensor, ...]:
    return vectors.split(WIDTHS[-1], dim=1) if vectors.shape[1] else ()


def _product(entries: Entries, right: Tensor) -> Tensor:
    """K @ right for at most ``WIDTHS[-1]`` columns, differentiable in ``entries``."""
    refuse_recording("KeOps launches its kernels itself, on its own stream")
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

    Both arguments are made contiguous first: for strided inputs KeOps returns gradients of zero or
    of other rows.
    """
    lazy = _lazy_tensor()
    first, second = lazy(z1.contiguous()[:, None]), lazy(z2.contiguous()[None])
    return ((first - second) ** 2).sum(-1)
