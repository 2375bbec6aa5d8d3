"""How much memory a device can still give, and how much of it one may hold."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from gpx.errors import ConfigError

UNITS = {"": 1, **{f"{p}iB": 2 ** (10 * k) for k, p in enumerate("KMGT", 1)}}
UNITS |= {f"{p}B": 10 ** (3 * k) for k, p in enumerate(("", "k", "M", "G", "T"))}
"""Bytes of a unit: binary (KiB, MiB, ...) and decimal (kB, MB, ...) ones."""
UNKNOWN = 2**30
"""Budget in bytes where nobody tells how much memory is free."""
LEAST = 2**26
"""Smallest budget in bytes that is chosen unasked."""


def budget_in_bytes(budget: int | str | None, free: int | None = None) -> int:
    """A memory budget as a number of bytes.

    Args:
        budget: bytes, or text such as "4GiB" or "500MB". None: a quarter of what is free, rounded
            down to a power of two, so that it is the same from run to run.
        free: bytes that can still be allocated; None where that is not known.

    Raises:
        ConfigError: none of these, or negative.
    """
    if budget is None:
        return UNKNOWN if free is None else max(LEAST, 1 << max(0, (free // 4).bit_length() - 1))
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([A-Za-z]*)\s*", str(budget))
    if isinstance(budget, bool) or found is None or found[2] not in UNITS:
        raise ConfigError(
            f"memory_budget is in bytes and cannot be {budget}; give a number, or text such as "
            "4GiB or 500MB"
        )
    return int(float(found[1]) * UNITS[found[2]])


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on ``device``, or None where nobody tells.

    On a CPU: the kernel's estimate (caches count as free), lowered by a container's limit.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    found: list[int] = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            used = int((group / "memory.current").read_text())
            found.append(max(int(limit) - used, 0))
    except (OSError, ValueError):
        pass  # no container, or one that keeps its limit to itself
    return min(found) if found else None
