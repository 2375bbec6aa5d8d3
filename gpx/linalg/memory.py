"""How much memory a device can still give."""

from __future__ import annotations

from pathlib import Path

import torch


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
