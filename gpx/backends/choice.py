"""Which backend a kernel matrix gets, and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch

from gpx.backends.chunks import rows_per_chunk
from gpx.backends.dense import BUDGET_RATIO
from gpx.backends.entries import Entries
from gpx.backends.keops import keops_refusal, require_keops
from gpx.backends.triton.availability import slow_float64, triton_refusal
from gpx.errors import BackendUnavailable, ConfigError

logger = logging.getLogger(__name__)

BackendName = Literal["dense", "chunked", "keops", "triton"]

KEOPS_DIMENSIONS = 50
"""Largest number of inputs for which KeOps is chosen where the user names no backend: it keeps a
row of each input in registers, while the matrix product of the chunked backend gains with the
dimension."""


@dataclass(frozen=True)
class Choice:
    """A backend's name and the reason for choosing it, for logs and records."""

    name: BackendName
    reason: str


def choose_backend(
    entries: Entries, memory_budget: int, requested: BackendName | None = None
) -> Choice:
    """The requested backend, or one chosen by size, device and kernel; each choice is logged once.

    The default is dense when the matrix fits into 1 / ``BUDGET_RATIO`` of the budget; on CUDA,
    Triton if its kernels run and the kernel is a sum of profiles it supports; else KeOps if it is
    installed, the kernel has a formula and there are at most ``KEOPS_DIMENSIONS`` inputs; chunked
    otherwise. Triton and KeOps first compile a small test, once, and are skipped with a reason if
    it fails. On a CPU KeOps compiles for seconds and is no faster than chunks, so there it is only
    used on request.

    Raises:
        ConfigError: unknown backend, one that does not support the kernel, or a budget that is not
            positive.
        BackendUnavailable: KeOps or Triton requested and not available here.
    """
    choice = _requested(entries, requested) if requested else _automatic(entries, memory_budget)
    _log_once(choice)
    return choice


def _requested(entries: Entries, requested: BackendName) -> Choice:
    if requested not in get_args(BackendName):
        raise ConfigError(
            f"backend is {requested!r}; choose one of {', '.join(get_args(BackendName))}, or None "
            "to have it chosen"
        )
    kernel = entries.kernel
    if requested == "keops":
        if not kernel.has_formula:
            raise ConfigError(
                f"backend=keops needs a kernel made of stationary parts, and {kernel.name} is not; "
                "choose backend=chunked"
            )
        require_keops(entries.x1.device, entries.x1.dtype)
    if requested == "triton":
        if not kernel.radial_profiles:
            raise ConfigError(
                "backend=triton needs a sum of RBF, Matern and rational quadratic kernels, and "
                f"{kernel.name} is not; choose backend=chunked"
            )
        refusal = triton_refusal(entries)
        if refusal:
            raise BackendUnavailable(f"backend=triton: {refusal}; choose backend=chunked")
    return Choice(requested, "asked for")


def _automatic(entries: Entries, memory_budget: int) -> Choice:
    (n1, n2), x = entries.shape, entries.x1
    needed = BUDGET_RATIO * entries.bytes()
    size = f"{n1} x {n2} {str(x.dtype).removeprefix('torch.')}"
    slow = slow_float64(x.device) if x.dtype == torch.float64 else None
    remark = f"; {slow}" if slow else ""
    if rows_per_chunk(n1, needed // max(n1, 1), memory_budget) >= n1:
        return Choice("dense", f"{size} fits the memory budget{remark}")
    reason = f"{size} needs {needed >> 20} MiB of a budget of {memory_budget >> 20} MiB"
    if x.device.type != "cuda":
        return Choice("chunked", f"{reason}; not on a CUDA device")
    no_triton = triton_refusal(entries)
    if no_triton is None:
        return Choice("triton", f"{reason}; CUDA device, its Triton kernels compile{remark}")
    no_keops = _keops_refusal(entries)
    if no_keops is None:
        return Choice(
            "keops", f"{reason}; {no_triton}; CUDA device, pykeops compiles a formula{remark}"
        )
    return Choice("chunked", f"{reason}; {no_triton}; {no_keops}{remark}")


def _keops_refusal(entries: Entries) -> str | None:
    x = entries.x1
    if not entries.kernel.has_formula:
        return f"{entries.kernel.name} has no KeOps formula"
    if x.shape[-1] > KEOPS_DIMENSIONS:
        return f"{x.shape[-1]} inputs are too many for KeOps"
    return keops_refusal(x.device, x.dtype)


@lru_cache(maxsize=1024)
def _log_once(choice: Choice) -> None:
    logger.info("kernel matrix backend: %s (%s)", choice.name, choice.reason)
