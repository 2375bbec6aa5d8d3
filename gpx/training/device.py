"""The device, precision and determinism a run asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import cast

import torch

from gpx.errors import BackendUnavailable, ConfigError, OutOfMemory
from gpx.linalg import total_memory
from gpx.linalg.matmul import Matmul, set_matmul
from gpx.linalg.memory import memory_wanted
from gpx.options.config import TrainerConfig
from gpx.training.allocator import keep_freed_memory

FIRST_TF32 = (8, 0)
"""Compute capability of the first GPUs with TF32."""
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve_device(name: str, option: str = "trainer.device") -> torch.device:
    """The torch device called ``name``; "auto" is CUDA if there is a device, otherwise the CPU.

    Args:
        name: auto, cpu, cuda or cuda:N.
        option: name of the option that gave it, for error messages.

    Raises:
        BackendUnavailable: the name is not such a device, or that CUDA device does not exist.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise BackendUnavailable(
            f"{option}={name} is not a device; use auto, cpu, cuda or cuda:0"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise BackendUnavailable(f"{option}={name} is not supported; use auto, cpu, cuda or cuda:0")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            f"{option}={name} but torch {torch.__version__} sees no CUDA device; "
            f"use {option}=auto or cpu, or install a CUDA build of torch"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BackendUnavailable(
            f"{option}={name} but there are {torch.cuda.device_count()} CUDA devices "
            "(counted from 0)"
        )
    return device


def configure_torch(config: TrainerConfig, device: torch.device) -> None:
    """Set threads, determinism and the precision of matrix products for the process."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if device.type == "cpu" and config.keep_freed_memory:
        keep_freed_memory()
    # always set: the environment may have TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which would make
    # distances silently inaccurate
    set_matmul(cast("Matmul | None", config.matmul))
    if device.type == "cuda":
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
        # filling every new array with NaN would cost one pass over it
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def require_matmul(asked: str | None, device: torch.device, *, refined: bool) -> None:
    """Refuse a ``trainer.matmul`` that this machine lacks or that would make results inaccurate.

    Args:
        asked: value of ``trainer.matmul``.
        device: of the run.
        refined: whether the run solves in float64 with matrix products in float32.

    Raises:
        BackendUnavailable: the device or package that it needs is missing.
        ConfigError: plain TF32 where ``refined`` is false.
    """
    if asked in (None, "ieee"):
        return
    way = "use trainer.matmul=ieee"
    if device.type != "cuda":
        raise BackendUnavailable(
            f"trainer.matmul={asked} uses the tensor cores of a GPU and this run is on {device}; "
            f"{way}"
        )
    if torch.cuda.get_device_capability(device) < FIRST_TF32:
        name = torch.cuda.get_device_name(device)
        raise BackendUnavailable(f"trainer.matmul={asked}: {name} has no TF32; {way}")
    if asked == "tf32x3" and find_spec("triton") is None:
        raise BackendUnavailable(
            "trainer.matmul=tf32x3 needs the Triton kernels, and triton is not installed; pip "
            f"install triton, or {way}"
        )
    if asked == "tf32" and not refined:
        raise ConfigError(
            "trainer.matmul=tf32 rounds to eleven bits, too few for distances, angles and Gram "
            "matrices; use it only for float64 solves with float32 products (approx=exact "
            f"approx.solver=iterative approx.iterative.product_dtype=float32); {way} or tf32x3"
        )


@contextmanager
def out_of_memory_said(device: torch.device, budget: int | None = None) -> Iterator[None]:
    """Inside, running out of memory raises an error that says what to change.

    Args:
        device: of the run.
        budget: ``trainer.memory_budget`` in bytes; None: not known yet, while data are loaded and
            the model is built.

    Raises:
        OutOfMemory: in place of the error of torch, NumPy or Python.
    """
    try:
        yield
    except (RuntimeError, ValueError, MemoryError) as error:
        wanted = memory_wanted(error)
        if wanted is None or isinstance(error, OutOfMemory):
            raise
        total = total_memory(device)
        has = "" if total is None else f", which has {total / 2**30:.1f} GiB in all"
        if budget is None:
            advice = "lower the sizes of data= and approx="
        else:
            advice = (
                f"lower trainer.memory_budget ({budget / 2**30:.2g}GiB here) or "
                "trainer.batch_size, use trainer.dtype=float32"
            )
        raise OutOfMemory(
            f"{device}{has}, is out of memory"
            + (f" (it needed {wanted} more)" if wanted else "")
            + f"; {advice}, or free the device from other processes"
        ) from error
