"""Measurement of time and memory, the same in every benchmark."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpx.runs.environment import peak_memory_mib

Work = Callable[[], object]


def command_line(
    doc: str | None, *, threads: int, repeats: int | None = None
) -> argparse.ArgumentParser:
    """The options of every benchmark: threads, device, and turns where there are ``repeats``.

    Args:
        doc: of the script; its first line is the description.
        threads, repeats: defaults.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=threads, help="of the processor")
    parser.add_argument("--device", default="cpu")
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats)
    return parser


class Spent(NamedTuple):
    """Wall-clock seconds, and processor seconds of all threads together."""

    wall: float
    processor: float


def spent(work: Work, device: str = "cpu") -> Spent:
    """Seconds of one call; on a GPU, until the device has finished."""
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
    """Name -> times. The functions alternate, so that other load slows all of them alike.

    Args:
        work: name -> function to time.
        repeats: number of timed calls.
        device: on which the functions run.
        warm: untimed calls before, which fill caches and allocate buffers.
        primed: call each function right before it is timed too, so that its data are in the
            caches.
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
    """Medians of wall-clock and processor seconds."""
    return Spent(*map(statistics.median, zip(*seen, strict=True)))


def least(seen: Sequence[Spent]) -> Spent:
    """Smallest wall-clock and processor seconds, least affected by other load."""
    return Spent(*map(min, zip(*seen, strict=True)))


def fair(seen: Sequence[Spent], device: str = "cpu") -> float:
    """Median seconds: of the processor for one CPU thread, unaffected by other load; else wall."""
    one = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return middle(seen).processor if one else middle(seen).wall


def fair_in_turns(
    work: Mapping[str, Work], repeats: int, device: str = "cpu", **options: Any
) -> dict[str, float]:
    """Name -> ``fair`` seconds of functions timed ``in_turns``; arguments as there."""
    found = in_turns(work, repeats, device, **options)
    return {name: fair(each, device) for name, each in found.items()}


def added_mib(work: Work, device: str = "cpu") -> float:
    """MiB by which one call raises the peak memory above the memory in use before."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) / 2**20
    else:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the peak to current use
        before = peak_memory_mib(torch.device(device))
    work()
    return peak_memory_mib(torch.device(device)) - before


def tensors_mib(work: Work, device: str = "cpu") -> float:
    """Largest memory of tensors made in one call, in MiB, without the cache of torch."""
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
    """Call ``function`` of a script in a new process, so that its memory can be measured."""
    # a worker that cannot start raises here, where multiprocessing.Pool would start it for ever
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def multiply_adds(dtype: torch.dtype, device: str, size: int = 1536, repeats: int = 6) -> float:
    """Multiply-adds per second of a square matrix product, in the fastest of several runs.

    Seconds are those of ``fair``.
    """
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    seen = in_turns({"": lambda: left @ right}, repeats, device)[""]
    return size**3 / min(fair([each], device) for each in seen)


def named(dtype: torch.dtype) -> str:
    """float32 or float64."""
    return str(dtype).removeprefix("torch.")
