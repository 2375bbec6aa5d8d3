"""The device, precision and determinism a run asked for."""

from __future__ import annotations

import os

import torch

from gpx.errors import BackendUnavailable
from gpx.training.allocator import keep_freed_memory
from gpx.training.config import TrainerConfig

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve_device(name: str, option: str = "trainer.device") -> torch.device:
    """The torch device of that name; "auto": CUDA where there is one.

    Args:
        name: as given.
        option: what it was given as, for error messages.

    Raises:
        BackendUnavailable: CUDA was asked for and is not there, or the name means nothing.
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
    """Set threads and determinism for the process."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if device.type == "cpu" and config.keep_freed_memory:
        keep_freed_memory()
    if device.type == "cuda":
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
