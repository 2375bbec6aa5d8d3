"""Seconds and memory of pieces of work, measured the same way in every benchmark."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpx.runs.environment import peak_memory_mib

Work = Callable[[], object]


class Spent(NamedTuple):
    """Seconds of the clock, and of the processor on all threads together."""

    wall: float
    processor: float


def spent(work: Work, device: str = "cpu") -> Spent:
    """Seconds of one call; of a GPU until it has done what it was told."""
    began = time.perf_counter(), time.process_time()
    work()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return Spent(time.perf_counter() - began[0], time.process_time() - began[1])


def in_turns(
    work: Mapping[str, Work],
    repeats: int,
    device: str = "cpu",
    *,
    warm: int = 1,
    primed: bool = False,
) -> dict[str, list[Spent]]:
    """What each takes, by name. All take turns, so that other load on the machine hits all alike.

    Args:
        work: of what is compared.
        repeats: turns that count.
        device: that the work runs on.
        warm: turns before them that do not count: they fill caches and make buffers.
        primed: call each right before it is timed, so that it finds the caches as it left them.
    """
    found: dict[str, list[Spent]] = {name: [] for name in work}
    for turn in range(warm + repeats):
        for name, run in work.items():
            if primed:
                run()
            seconds = spent(run, device)
            if turn >= warm:
                found[name].append(seconds)
    return found


def middle(seen: Sequence[Spent]) -> Spent:
    """Medians of both clocks."""
    return Spent(*map(statistics.median, zip(*seen, strict=True)))


def least(seen: Sequence[Spent]) -> Spent:
    """Smallest of both clocks: what a machine that others use can still do."""
    return Spent(*map(min, zip(*seen, strict=True)))


def fair(seen: Sequence[Spent], device: str = "cpu", threads: int = 1) -> float:
    """Median seconds: of the processor on one thread, which other load leaves alone; else wall."""
    one = torch.device(device).type == "cpu" and threads == 1
    return middle(seen).processor if one else middle(seen).wall


def added_mib(work: Work, device: str = "cpu") -> float:
    """Growth of the peak over what was held before, in one call."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) / 2**20
    else:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak becomes what is held now
        before = peak_memory_mib(torch.device(device))
    work()
    return peak_memory_mib(torch.device(device)) - before


def tensors_mib(work: Work, device: str = "cpu") -> float:
    """Most that tensors made in one call hold at once; memory that torch keeps does not count."""
    gc.collect()
    if torch.device(device).type == "cuda":
        return added_mib(work, device)
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function`` of a script returns in a process of its own, whose memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def multiply_adds(dtype: torch.dtype, device: str, size: int = 1536, repeats: int = 6) -> float:
    """Multiply-adds per second of a square matrix product, the best of some runs."""
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    best = least(in_turns({"": lambda: left @ right}, repeats, device)[""])
    return size**3 / best.wall


def named(dtype: torch.dtype) -> str:
    """float32 or float64."""
    return str(dtype).removeprefix("torch.")
