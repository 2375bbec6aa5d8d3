"""The device that a benchmark runs on: its clock, and the memory that was held there."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import torch


def clock_of(device: str, on_cpu: Callable[[], float] = time.process_time) -> Callable[[], float]:
    """Seconds: by ``on_cpu`` on a CPU; elsewhere of the wall, once the device has done its work."""
    if torch.device(device).type != "cuda":
        return on_cpu

    def seconds() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return seconds


def peak_gib(device: str) -> float:
    """Most memory held so far: of the process, or of a CUDA device by torch."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
