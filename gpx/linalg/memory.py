"""Memory budgets, and how much memory a device has and has left."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch

from gpx.errors import ConfigError
from gpx.linalg.processes import sharing

UNITS = {"": 1, **{f"{p}iB": 2 ** (10 * k) for k, p in enumerate("KMGT", 1)}}
UNITS |= {f"{p}B": 10 ** (3 * k) for k, p in enumerate(("", "k", "M", "G", "T"))}
"""Bytes of a unit: binary (KiB, MiB, ...) and decimal (kB, MB, ...) ones."""
FALLBACK_BUDGET = 2**30
"""Default budget in bytes where the operating system does not say how much memory is free."""
MIN_BUDGET = 2**26
"""Smallest default budget in bytes."""
ASKED_FROM = 2**23
"""Bytes from which ``require_memory`` asks how much is free; a process needs more to start."""
CGROUP = Path("/sys/fs/cgroup")
"""Where a container finds its limits."""

TOO_LARGE = (
    "CPUAllocator",
    "Storage size calculation overflowed",
    "array is too big",
    "Maximum allowed dimension exceeded",
)
"""Parts of errors of torch and NumPy that are of memory alone and have no class of their own."""

FAST_FLOAT64 = ((8, 0), (9, 0))
"""Compute capabilities of GPUs whose float64 products are as fast as those in float32."""

Result = TypeVar("Result")


def budget_in_bytes(
    budget: int | str | None, free: int | None = None, total: int | None = None
) -> int:
    """A memory budget as a number of bytes.

    Args:
        budget: bytes, or text such as "4GiB" or "500MB". None: a quarter of the whole memory,
            rounded down to a power of two, so that runs have the same chunks (and the same last
            bits of sums) whatever else is running; halved while less than twice of it is free.
        free: bytes that can still be allocated; None: unknown.
        total: bytes that the device has; None: unknown.

    Raises:
        ConfigError: none of these, not positive, or a fraction without a unit.
    """
    if budget is None:
        whole = free if total is None else total
        if whole is None:
            return FALLBACK_BUDGET
        found = 1 << max(0, (whole // 4).bit_length() - 1)
        while free is not None and found > free // 2:
            found //= 2
        return max(MIN_BUDGET, found)
    text = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([A-Za-z]*)\s*", str(budget))
    if isinstance(budget, bool) or text is None or text[2] not in UNITS:
        raise ConfigError(
            f"memory_budget={budget} is no number of bytes; give a number, or text such as "
            "4GiB or 500MB"
        )
    size = float(text[1]) * UNITS[text[2]]
    if not text[2] and size != int(size):
        raise ConfigError(
            f"memory_budget={budget} is a fraction of a byte: give the unit as well, such as "
            f"{budget}GiB"
        )
    if size < 1:
        raise ConfigError(f"memory_budget={budget} must be positive, for example 4GiB")
    return int(size)


def allowed_memory(budget: int | str | None, device: torch.device) -> tuple[int | None, str]:
    """Bytes that may be held on ``device``, None where there is no limit, and a text for messages.

    Args:
        budget: as for ``budget_in_bytes``; None: all free memory.

    Returns:
        the limit, and a text such as "memory_budget=2.0GiB may be held (6.1 GiB are free on cpu)".
    """
    free = available_memory(device)
    free_text = "" if free is None else f"{free / 2**30:,.1f} GiB are free on {device}"
    if budget is None:
        return free, free_text
    allowed = budget_in_bytes(budget)
    text = f"memory_budget={_in_words(allowed, '')} may be held"
    return allowed, text + (f" ({free_text})" if free_text else "")


def _in_words(size: int, space: str = " ") -> str:
    """Bytes in the largest of GiB and MiB of which there is one, else as their number."""
    for whole, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= whole:
            return f"{size / whole:,.1f}{space}{unit}"
    return f"{size:,} bytes" if space else str(size)


def require_memory(
    needed: int,
    device: torch.device,
    what: str,
    instead: str | Callable[[int], str],
    budget: int | str | None = None,
) -> None:
    """Raise ConfigError where an array that cannot be processed in parts does not fit into memory.

    Free memory is asked for from ``ASKED_FROM`` bytes on: the question reads files of the system,
    which the evidence of a hundred rows would notice.

    Args:
        needed: bytes.
        what: subject of the message: "sums of 5000 x 5000 numbers".
        instead: advice that ends the message, or a function of the allowed bytes that gives it.
        budget: as for ``allowed_memory``.
    """
    if budget is None and needed < ASKED_FROM:
        return
    allowed, limit = allowed_memory(budget, device)
    if allowed is not None and needed > allowed:
        advice = instead if isinstance(instead, str) else instead(allowed)
        raise ConfigError(f"{what} needs about {_in_words(needed)} and {limit}; {advice}")


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on ``device``, or None where unknown.

    On a CPU: the kernel's estimate (caches count as free), lowered by a container's limit.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    limit, used = _from_cgroup("memory.max"), _from_cgroup("memory.current")
    left = None if limit is None or used is None else max(limit - used + _cgroup_caches(), 0)
    return min((n for n in (_from_meminfo("MemAvailable:"), left) if n is not None), default=None)


def memory_for_all(device: torch.device) -> int | None:
    """The smallest ``available_memory`` among processes that share the work.

    All of them then take the same decisions.
    """
    free = available_memory(device)
    return None if free is None else -int(sharing().all_max(-float(free))[0])


def total_memory(device: torch.device) -> int | None:
    """Bytes that ``device`` has, or None where unknown; a container's limit counts."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    if device.type != "cpu":
        return None
    known = (_from_meminfo("MemTotal:"), _from_cgroup("memory.max"))
    return min((n for n in known if n is not None), default=None)


def _from_meminfo(name: str) -> int | None:
    """Bytes under a name in Linux's /proc/meminfo; None on another system."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def _from_cgroup(name: str) -> int | None:
    """Bytes in a file of the container's cgroup; None where there is no file, or no limit."""
    try:
        return int((CGROUP / name).read_text())
    except (OSError, ValueError):
        return None


def _cgroup_caches() -> int:
    """Bytes of cached files in ``memory.current``, which the kernel drops at need."""
    try:
        lines = (CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(n.split()[1]) for n in lines if n.startswith(("inactive_file ", "active_file ")))


@lru_cache(maxsize=64)
def working_memory(device: torch.device) -> int:
    """Bytes that the temporaries of one pass may take: a 32nd of the memory. For a GPU only.

    Rounded down to a power of two and independent of what else is running, so that chunks, and the
    last bits of sums over them, are the same in every run. 4 GiB of 139; ``MIN_BUDGET`` where the
    memory is unknown.
    """
    whole = total_memory(device)
    return MIN_BUDGET if whole is None else max(MIN_BUDGET, 1 << ((whole // 32).bit_length() - 1))


@lru_cache(maxsize=64)
def float64_is_free(device: torch.device) -> bool:
    """Whether a GPU's matrix products in float64 are as fast as in float32.

    True for the tensor cores of A100 (8.0) and H100, H200 (9.0); others are 2 to 64 times slower.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_FLOAT64


def memory_wanted(error: BaseException) -> str | None:
    """How much memory the failed request of an out-of-memory error asked for, as "2.50 GiB".

    Those of torch on a GPU, of torch on a CPU (a RuntimeError like any other), NumPy and Python are
    recognised, and sizes that no machine could address.

    Returns:
        the size; empty if the error does not give it, None if it is another error.
    """
    text = str(error)
    said = isinstance(error, (RuntimeError, ValueError)) and any(part in text for part in TOO_LARGE)
    if not said and not isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return None
    size = re.search(r"(?i)tried to allocate ([\d.]+) (\w+)|unable to allocate ([\d.]+ \w+)", text)
    if size is None:
        return ""
    return size[3] or (_in_words(int(size[1])) if size[2] == "bytes" else f"{size[1]} {size[2]}")


def halved_until_it_fits(attempt: Callable[[int], Result], budget: int) -> Result:
    """``attempt(budget)``, repeated with half the budget while the device runs out of memory.

    Memory that was free at the start of a run may since be taken by another process or be
    fragmented. A computation in chunks then continues with smaller ones.

    Args:
        attempt: from bytes that temporaries may occupy to the result; must change nothing where it
            fails.
        budget: bytes of the first attempt.

    Raises:
        torch.OutOfMemoryError: that of the last attempt, once the budget is down to ``MIN_BUDGET``.
    """
    while True:
        try:
            return attempt(budget)
        except torch.OutOfMemoryError:
            if budget <= MIN_BUDGET:
                raise
        # outside the handler: its traceback holds the tensors of the failed attempt
        torch.cuda.empty_cache()
        budget = max(MIN_BUDGET, budget // 2)
