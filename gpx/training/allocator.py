"""Keep freed memory in the process, so that a training step reuses the pages of the step before.

By default glibc returns every large array to the operating system when it is freed, and the next
allocation faults its pages in again. On a CPU these page faults can take as long as the arithmetic.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Callable
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

MAX_KEPT_BYTES = (2**30, 2**25)
"""Larger arrays still go back to the operating system when they are freed. glibc before 2.35
refuses the first threshold, and accepts the second."""


def keep_freed_memory() -> bool:
    """Make glibc keep freed arrays for reuse; returns False where the C library is another.

    The process then holds the peak memory of its temporaries until it ends.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    kept = any(mallopt(M_MMAP_THRESHOLD, size) for size in MAX_KEPT_BYTES)
    return bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1)) and kept


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    """mallopt(3) of glibc; None with another C library. Finding the library starts a process."""
    if platform.libc_ver()[0] != "glibc":
        return None
    return getattr(ctypes.CDLL(ctypes.util.find_library("c")), "mallopt", None)
