"""Whether the Triton kernels can run on a device, and in one sentence why not."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec

import torch
from torch import Tensor

from gpx.backends.entries import Entries
from gpx.backends.radial_parts import RadialPart, RadialProfile
from gpx.backends.triton.engine import MOST_COORDINATES, radial_parts, tried

logger = logging.getLogger(__name__)

OLDEST = (3, 6)
"""The oldest Triton that the kernels were compiled with."""
FIRST_GENERATION = (8, 0)
"""Compute capability of the first devices whose tensor cores take halves of float32 numbers."""
MOST_FOURIER_INPUTS = 64
"""Inputs up to which the passes over Fourier features keep tiles in registers."""
HALF_RATE_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
"""Compute capabilities of devices with half the rate of float32 in float64; others have a
sixty-fourth or so."""


def triton_installed() -> bool:
    """Whether the optional package can be found; it is not imported."""
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton was asked to run its kernels in NumPy on CPU tensors, for tests."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def triton_refusal(entries: Entries) -> str | None:
    """Why the kernels cannot run for this matrix, in one sentence; None where they can.

    What says no is asked from the cheapest to the dearest; at last one small product and its
    gradient are compiled and run for every part (seconds, once, then kept on disk by Triton).
    """
    device, dtype = entries.x1.device, entries.x1.dtype
    refusal = _without_package() or _of_device(device)
    if refusal is None and not entries.kernel.radial_profiles:
        refusal = "the kernel is no sum of RBF, Matern and rational quadratic ones"
    if refusal is None and dtype not in (torch.float32, torch.float64):
        refusal = f"the Triton kernels take float32 and float64, not {dtype}"
    if refusal is not None:
        return refusal
    parts = radial_parts(replace(entries, x1=entries.x1[:1], x2=entries.x1[:1], square=True))
    kinds = dict.fromkeys((part.profile, part.z1.shape[1]) for part in parts)
    return next(filter(None, (_of_trial(device, dtype, *kind) for kind in kinds)), None)


def triton_fourier(x: Tensor) -> bool:
    """Whether passes over Fourier features of x (n, d) run in Triton: on a CUDA device that can.

    The first call for a dtype and width compiles and tries something small (seconds, once); why
    not is logged once.
    """
    if not x.is_cuda or interpreted() or x.shape[-1] > MOST_FOURIER_INPUTS:
        return False
    return _pass_refusal("Fourier features", x.device, x.dtype, x.shape[-1]) is None


def triton_normals(rows: Tensor) -> bool:
    """Whether normals by address are made in Triton, on the device of their rows."""
    if not rows.is_cuda or interpreted():
        return False
    return _pass_refusal("Fourier features", rows.device, torch.float64, 1) is None


def triton_tree(root: Tensor) -> bool:
    """Whether products of eigenfunctions are formed in Triton, on the device of their root (n,)."""
    if not root.is_cuda or interpreted():
        return False
    return _pass_refusal("products of eigenfunctions", root.device, root.dtype, 1) is None


def slow_float64(device: torch.device) -> str | None:
    """A sentence on devices that are much slower in float64; None on others."""
    if device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip:
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability in HALF_RATE_FLOAT64:
        return None
    return (
        f"float64 runs at a small part of the rate of float32 on {_named(device)}: float32 inputs "
        "are many times faster where their rounding will do"
    )


def _without_package() -> str | None:
    if not triton_installed():
        return "triton is not installed (pip install 'gpx-torch[triton]')"
    try:
        found = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "triton cannot be used: it has no version"
    if tuple(int(p) for p in found.split(".")[:2] if p.isdigit()) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"triton {found} is older than {oldest}; a newer torch brings a newer one"
    return None


def _of_device(device: torch.device) -> str | None:
    if device.type == "cpu":
        return None if interpreted() else "Triton kernels run on CUDA devices and x is on the CPU"
    if device.type != "cuda" or torch.version.hip:
        return "the Triton kernels are written for CUDA devices"
    if interpreted():
        return "TRITON_INTERPRET is set, with which Triton runs on CPU tensors only; unset it"
    if not torch.cuda.is_available():
        return "Triton needs a CUDA device and torch finds none"
    if torch.cuda.get_device_capability(device) < FIRST_GENERATION:
        oldest = ".".join(map(str, FIRST_GENERATION))
        return (
            f"the Triton kernels need tensor cores of compute capability {oldest} or newer, and "
            f"this is {_named(device)}"
        )
    return None


def _named(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"


@lru_cache(maxsize=64)
def _pass_refusal(what: str, device: torch.device, dtype: torch.dtype, inputs: int) -> str | None:
    refusal = _without_package() or _of_device(device)
    if refusal is None and dtype not in (torch.float32, torch.float64):
        refusal = f"the Triton kernels take float32 and float64, not {dtype}"
    if refusal is None:
        trial = tried_fourier if what == "Fourier features" else tried_tree
        refusal = _tried(lambda: trial(device, dtype, inputs), what)
    if refusal is not None:
        logger.info("%s run as torch operations: %s", what, refusal)
    return refusal


@lru_cache(maxsize=256)
def _of_trial(
    device: torch.device, dtype: torch.dtype, profile: RadialProfile, coordinates: int
) -> str | None:
    if coordinates > MOST_COORDINATES:
        return (
            f"{coordinates} coordinates are more than the {MOST_COORDINATES} for which the Triton "
            "kernels keep tiles in registers"
        )

    def trial() -> float:
        z = torch.zeros(2, coordinates, dtype=dtype, device=device)
        one = torch.ones((), dtype=dtype, device=device)
        shape = one if profile == "rational_quadratic" else None
        right = torch.tensor([[1.0], [2.0]], dtype=dtype, device=device)
        return tried(RadialPart(profile, z, z, one, shape), right)

    return _tried(trial, profile)


def _tried(trial: Callable[[], float], what: str) -> str | None:
    """Why what was tried cannot be used; None where its error is rounding."""
    try:
        error = trial()
    except Exception as failure:  # a compiler may fail in any way
        words = " ".join(str(failure).split()) or "no reason given"
        return (
            f"the Triton kernel for {what} does not run here ({type(failure).__name__}: "
            f"{words[:200]})"
        )
    return None if error < 1e-5 else f"the Triton kernel for {what} is wrong here by {error:.1e}"


def tried_fourier(device: torch.device, dtype: torch.dtype, inputs: int) -> float:
    """Largest error of a small product and its transpose against their twins in torch."""
    from gpx.backends.triton import fourier

    made = fourier.MadeFrequencies(
        1, torch.arange(3, device=device), torch.ones(inputs, dtype=dtype, device=device)
    )
    frequencies = made.stored()
    x = torch.linspace(-1.0, 1.0, 2 * inputs, dtype=dtype, device=device).view(2, inputs)
    weights, directions = torch.ones_like(frequencies[None, :, :1]).expand(2, -1, -1), x[:, :1]
    pairs = (
        (fourier.fourier_product, fourier.plain_product, weights),
        (fourier.fourier_moments, fourier.plain_moments, directions),
    )
    errors = [
        (ours(x, frequencies, v) - twin(x, frequencies, v)).abs().max() for ours, twin, v in pairs
    ]
    return float(torch.stack(errors).max())


def tried_tree(device: torch.device, dtype: torch.dtype, inputs: int) -> float:
    """Largest error of a small tree of products and its gradient; ``inputs`` ratios."""
    from gpx.backends.triton.tree import plain_tree, tree, tree_gradients

    root = torch.tensor([1.0, 2.0], dtype=dtype, device=device, requires_grad=True)
    ratio = torch.full((inputs, 2), 3.0, dtype=dtype, device=device, requires_grad=True)
    parent, which = torch.tensor([[0, 0, 1], [0, 0, 0]], dtype=torch.int32, device=device)
    known = plain_tree(root, ratio, parent, which)
    expected = torch.autograd.grad(known, (root, ratio), torch.ones_like(known))
    with torch.no_grad():
        nodes = tree(root, ratio, parent, which)
        found = tree_gradients(ratio, parent, which, nodes, torch.ones_like(nodes))
    pairs = zip((nodes, *found), (known.detach(), *expected), strict=True)
    return float(torch.stack([(a - b).abs().max() for a, b in pairs]).max())
