"""Whether the Triton kernels can run on a device, and if not, why."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module, metadata
from importlib.util import find_spec

import torch
from torch import Tensor

from gpx.backends.entries import Entries
from gpx.backends.radial_parts import RadialPart, RadialProfile
from gpx.backends.trial import Fault, fault
from gpx.backends.triton.engine import MAX_COORDINATES, radial_parts, trial_error

logger = logging.getLogger(__name__)

MIN_VERSION = (3, 6)
"""The oldest Triton that the kernels were compiled with."""
MIN_CAPABILITY = (8, 0)
"""Compute capability of the first devices whose tensor cores take tf32."""
MAX_FOURIER_INPUTS = 64
"""Inputs up to which the passes over Fourier features keep tiles in registers."""
HALF_RATE_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
"""Compute capabilities of devices with half the float32 rate in float64; others have about 1/64."""


def triton_installed() -> bool:
    """Whether the optional package is installed; it is not imported."""
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton is set to run its kernels in NumPy on CPU tensors, for tests."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def triton_refusal(entries: Entries) -> str | None:
    """Why the kernels cannot run for this matrix, in one sentence; None if they can.

    Checks run from the cheapest to the most expensive; the last compiles and runs a small product
    and its gradient for every part (seconds, once; Triton keeps them on disk).
    """
    device, dtype = entries.x1.device, entries.x1.dtype
    refusal = _package_refusal() or _device_refusal(device)
    if refusal is None and not entries.kernel.radial_profiles:
        refusal = "the kernel is no sum of RBF, Matern and rational quadratic ones"
    refusal = refusal or _dtype_refusal(dtype)
    if refusal is not None:
        return refusal
    parts = radial_parts(replace(entries, x1=entries.x1[:1], x2=entries.x1[:1], square=True))
    kinds = dict.fromkeys((part.profile, part.z1.shape[1]) for part in parts)
    return next(filter(None, (_profile_refusal(device, dtype, *kind) for kind in kinds)), None)


def triton_fourier(x: Tensor) -> bool:
    """Whether passes over Fourier features of x (n, d) run in Triton: on CUDA devices that can.

    The first call for a dtype and width compiles and runs a small test (seconds, once); a failure
    is logged once.
    """
    if not x.is_cuda or interpreted() or x.shape[-1] > MAX_FOURIER_INPUTS:
        return False
    return _pass_refusal("Fourier features", x.device, x.dtype, x.shape[-1]) is None


def triton_normals(rows: Tensor) -> bool:
    """Whether counter-based normals are generated in Triton, on the device of their rows."""
    if not rows.is_cuda or interpreted():
        return False
    return _pass_refusal("Fourier features", rows.device, torch.float64, 1) is None


def triton_tree(root: Tensor) -> bool:
    """Whether products of eigenfunctions are computed in Triton, on the device of root (n,)."""
    if not root.is_cuda or interpreted():
        return False
    return _pass_refusal("products of eigenfunctions", root.device, root.dtype, 1) is None


def slow_float64(device: torch.device) -> str | None:
    """A warning for devices that are much slower in float64; None for others."""
    if device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip:
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability in HALF_RATE_FLOAT64:
        return None
    return (
        f"float64 runs at a small part of the rate of float32 on {_named(device)}: float32 inputs "
        "are many times faster where their rounding will do"
    )


def _package_refusal() -> str | None:
    if not triton_installed():
        return "triton is not installed (pip install 'gpx-torch[triton]')"
    try:
        found = metadata.version("triton")
    except metadata.PackageNotFoundError:  # some builds of torch bring it under another name
        try:
            found = str(import_module("triton").__version__)
        except Exception as failure:  # an installation may be broken in any way
            return f"triton cannot be imported ({type(failure).__name__}: {failure})"
    if tuple(int(p) for p in found.split(".")[:2] if p.isdigit()) < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        return f"triton {found} is older than {oldest}; a newer torch brings a newer one"
    return None


def _dtype_refusal(dtype: torch.dtype) -> str | None:
    if dtype in (torch.float32, torch.float64):
        return None
    return f"the Triton kernels take float32 and float64, not {dtype}"


def _device_refusal(device: torch.device) -> str | None:
    if device.type == "cpu":
        return None if interpreted() else "Triton kernels run on CUDA devices and x is on the CPU"
    if device.type != "cuda" or torch.version.hip:
        return "the Triton kernels are written for CUDA devices"
    if interpreted():
        return "TRITON_INTERPRET is set, with which Triton runs on CPU tensors only; unset it"
    if not torch.cuda.is_available():
        return "Triton needs a CUDA device and torch finds none"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        oldest = ".".join(map(str, MIN_CAPABILITY))
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
    refusal = _package_refusal() or _device_refusal(device) or _dtype_refusal(dtype)
    if refusal is None:
        trial = fourier_trial_error if what == "Fourier features" else tree_trial_error
        refusal = _trial_refusal(lambda: trial(device, dtype, inputs), what)
    if refusal is not None:
        logger.info("%s run as torch operations: %s", what, refusal)
    return refusal


@lru_cache(maxsize=256)
def _profile_refusal(
    device: torch.device, dtype: torch.dtype, profile: RadialProfile, coordinates: int
) -> str | None:
    if coordinates > MAX_COORDINATES:
        return (
            f"{coordinates} coordinates are more than the {MAX_COORDINATES} for which the Triton "
            "kernels keep tiles in registers"
        )

    def trial() -> float:
        # two points that are apart by one to two: where they coincide every profile is one
        spread = torch.linspace(-1.0, 1.0, 2 * coordinates, dtype=dtype, device=device)
        z = spread.view(2, coordinates) / math.sqrt(coordinates)
        one = torch.ones((), dtype=dtype, device=device)
        # both branches of the logarithm in a rational quadratic
        shapes = (one, 100.0 * one) if profile == "rational_quadratic" else (None,)
        right = torch.tensor([[1.0], [2.0]], dtype=dtype, device=device)
        errors = [trial_error(RadialPart(profile, z, z, one, shape), right) for shape in shapes]
        return float(torch.tensor(errors).max())  # NaN if one is

    return _trial_refusal(trial, profile)


def _trial_refusal(trial: Callable[[], float], what: str) -> Fault | None:
    """Why a tested kernel cannot be used; None if its error is rounding."""
    # asked from within autograd functions and inference mode, where nothing has a gradient
    with torch.inference_mode(False), torch.enable_grad():
        return fault(trial, f"the Triton kernel for {what}")


def fourier_trial_error(device: torch.device, dtype: torch.dtype, inputs: int) -> float:
    """Largest error of a small product and its transpose against their versions in torch."""
    from gpx.backends.triton import fourier

    seeded = fourier.SeededFrequencies(
        1, torch.arange(3, device=device), torch.ones(inputs, dtype=dtype, device=device)
    )
    frequencies = seeded.materialise()
    x = torch.linspace(-1.0, 1.0, 2 * inputs, dtype=dtype, device=device).view(2, inputs)
    weights, directions = torch.ones_like(frequencies[None, :, :1]).expand(2, -1, -1), x[:, :1]
    pairs = (
        (fourier.fourier_product, fourier.plain_product, weights),
        (fourier.fourier_moments, fourier.plain_moments, directions),
    )
    errors = [
        (kernel(x, frequencies, v) - plain(x, frequencies, v)).abs().max()
        for kernel, plain, v in pairs
    ]
    return float(torch.stack(errors).max())


def tree_trial_error(device: torch.device, dtype: torch.dtype, inputs: int) -> float:
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
