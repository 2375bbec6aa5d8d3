"""Whether the Triton kernels can run on a device, and in one sentence why not."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec

import torch

from gpx.backends.entries import Entries
from gpx.backends.radial_parts import RadialPart, RadialProfile
from gpx.backends.triton.engine import MOST_COORDINATES, radial_parts, tried

OLDEST = (3, 6)
"""The oldest Triton that the kernels were compiled with."""
FIRST_GENERATION = (8, 0)
"""Compute capability of the first devices whose tensor cores take halves of float32 numbers."""
FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
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


def slow_float64(device: torch.device) -> str | None:
    """A sentence on devices that are much slower in float64; None on others."""
    if device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip:
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability in FAST_FLOAT64:
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


@lru_cache(maxsize=256)
def _of_trial(
    device: torch.device, dtype: torch.dtype, profile: RadialProfile, coordinates: int
) -> str | None:
    if coordinates > MOST_COORDINATES:
        return (
            f"{coordinates} coordinates are more than the {MOST_COORDINATES} for which the Triton "
            "kernels keep tiles in registers"
        )
    try:
        z = torch.zeros(2, coordinates, dtype=dtype, device=device)
        one = torch.ones((), dtype=dtype, device=device)
        shape = one if profile == "rational_quadratic" else None
        right = torch.tensor([[1.0], [2.0]], dtype=dtype, device=device)
        error = tried(RadialPart(profile, z, z, one, shape), right)
    except Exception as failure:  # a compiler may fail in any way
        words = " ".join(str(failure).split()) or "no reason given"
        return (
            f"the Triton kernel for {profile} does not run here ({type(failure).__name__}: "
            f"{words[:200]})"
        )
    if not error < 1e-5:
        return f"the Triton kernel for {profile} is wrong here by {error:.1e}"
    return None
