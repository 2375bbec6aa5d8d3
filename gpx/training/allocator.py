"""Keep freed memory in the process: on CPUs, fresh pages cost more than the arithmetic on them.

glibc hands every large array to the operating system on release and faults its pages in again at
the next allocation. A training step allocates the same large temporaries over and over; with the
pages kept, a QSGP step of 1e4 of 1e5 basis functions takes 49 ms in place of 80 (two cores).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""

LARGEST = 2**30
"""Arrays up to this many bytes are served from kept memory."""


def keep_freed_memory() -> bool:
    """Let glibc serve large arrays from memory it keeps; False where the C library is another.

    The process keeps its peak of temporaries until it ends; nothing else changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = getattr(ctypes.CDLL(ctypes.util.find_library("c")), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
