"""How much memory a device can still give, and how much of it one may hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch

from gpx.errors import ConfigError

UNITS = {"": 1, **{f"{p}iB": 2 ** (10 * k) for k, p in enumerate("KMGT", 1)}}
UNITS |= {f"{p}B": 10 ** (3 * k) for k, p in enumerate(("", "k", "M", "G", "T"))}
"""Bytes of a unit: binary (KiB, MiB, ...) and decimal (kB, MB, ...) ones."""
UNKNOWN = 2**30
"""Memory budget in bytes where the operating system does not say how much memory is free."""
LEAST = 2**26
"""Smallest memory budget in bytes that is chosen where the user gives none."""

FAST_FLOAT64 = ((8, 0), (9, 0))
"""Generations of GPUs whose float64 products are as fast as those in float32."""

Result = TypeVar("Result")


def budget_in_bytes(
    budget: int | str | None, free: int | None = None, total: int | None = None
) -> int:
    """A memory budget as a number of bytes.

    Args:
        budget: bytes, or text such as "4GiB" or "500MB". None: a quarter of the whole memory,
            rounded down to a power of two, whatever else runs: the same from run to run, since sums
            over other chunks differ in their last bits. Halved where less than twice it is free.
        free: bytes that can still be allocated; None where that is not known.
        total: bytes that the device has; None where that is not known.

    Raises:
        ConfigError: none of these, or negative.
    """
    if budget is None:
        whole = free if total is None else total
        if whole is None:
            return UNKNOWN
        found = 1 << max(0, (whole // 4).bit_length() - 1)
        while free is not None and found > free // 2:
            found //= 2
        return max(LEAST, found)
    text = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([A-Za-z]*)\s*", str(budget))
    if isinstance(budget, bool) or text is None or text[2] not in UNITS:
        raise ConfigError(
            f"memory_budget={budget} is no number of bytes; give a number, or text such as "
            "4GiB or 500MB"
        )
    return int(float(text[1]) * UNITS[text[2]])


def allowed_memory(budget: int | str | None, device: torch.device) -> tuple[int | None, str]:
    """Bytes that may be held on ``device``, None where there is no limit, and whose limit it is.

    Args:
        budget: as for ``budget_in_bytes``; None: what is free.

    Returns:
        the limit, and words for messages such as "memory_budget=2.0GiB may be held (6.1 GiB are
        free on cpu)".
    """
    free = available_memory(device)
    said = "" if free is None else f"{free / 2**30:,.1f} GiB are free on {device}"
    if budget is None:
        return free, said
    allowed = budget_in_bytes(budget)
    text = str(allowed)
    for size, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if allowed >= size:
            text = f"{allowed / size:.1f}{unit}"
            break
    return allowed, f"memory_budget={text} may be held" + (f" ({said})" if said else "")


def require_memory(
    needed: int, device: torch.device, what: str, instead: str | Callable[[int], str]
) -> None:
    """Raise ConfigError where an array that nothing can make smaller does not fit memory.

    A memory budget is for what can be done in parts; this asks what is free.

    Args:
        needed: bytes.
        what: takes them, the start of the sentence: "sums of 5000 x 5000 numbers".
        instead: what to do, the end of the sentence; it may depend on the bytes that are free.
    """
    free = available_memory(device)
    if free is not None and needed > free:
        advice = instead if isinstance(instead, str) else instead(free)
        raise ConfigError(
            f"{what} needs about {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free on "
            f"{device}; {advice}"
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on ``device``, or None where nobody tells.

    On a CPU: the kernel's estimate (caches count as free), lowered by a container's limit.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    limit, used = _of_container("memory.max"), _of_container("memory.current")
    left = None if limit is None or used is None else max(limit - used, 0)
    return min((n for n in (_of_machine("MemAvailable:"), left) if n is not None), default=None)


def total_memory(device: torch.device) -> int | None:
    """Bytes that ``device`` has, or None where nobody tells; a container's limit counts."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    if device.type != "cpu":
        return None
    told = (_of_machine("MemTotal:"), _of_container("memory.max"))
    return min((n for n in told if n is not None), default=None)


def _of_machine(name: str) -> int | None:
    """Bytes that Linux gives under a name; None on another system."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def _of_container(name: str) -> int | None:
    """Bytes in a file of the container; None where there is none, or no limit."""
    try:
        return int((Path("/sys/fs/cgroup") / name).read_text())
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=64)
def working_memory(device: torch.device) -> int:
    """Bytes that the temporaries of one pass may take on a GPU: a 32nd of what it has.

    Rounded down to a power of two and free of what else runs: chunks, and with them the last bits
    of sums, are the same from run to run. 4 GiB of 139; ``LEAST`` where nobody tells.
    """
    whole = total_memory(device)
    return LEAST if whole is None else max(LEAST, 1 << ((whole // 32).bit_length() - 1))


@lru_cache(maxsize=64)
def float64_is_free(device: torch.device) -> bool:
    """Whether matrix products in float64 take a GPU no longer than in float32.

    So it is with the tensor cores of A100 (8.0) and H100, H200 (9.0); other generations
    take 2 to 64 times as long.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_FLOAT64


def halved_until_it_fits(attempt: Callable[[int], Result], budget: int) -> Result:
    """``attempt(budget)``, with half the budget again while the device runs out of memory.

    What is free at the start of a run may be taken by then, by another process or by pieces that
    are too small. A computation that is cut into chunks goes on with smaller ones.

    Args:
        attempt: from bytes that temporaries may occupy to the result; changes nothing where it
            fails.
        budget: bytes to begin with.

    Raises:
        torch.OutOfMemoryError: that of the last attempt, once the budget is down to ``LEAST``.
    """
    while True:
        try:
            return attempt(budget)
        except torch.OutOfMemoryError:
            if budget <= LEAST:
                raise
        # outside of the handler, whose traceback holds the tensors of the failed attempt
        torch.cuda.empty_cache()
        budget = max(LEAST, budget // 2)
