"""Trials of compiled kernels on a small product, before they are used."""

from __future__ import annotations

from collections.abc import Callable

MAX_ERROR = 1e-5
"""Of a trial in float32 or float64, relative to numbers of about one."""


class Fault(str):
    """A sentence on a kernel that fails or is wrong here, although all that it needs is there."""


def fault(trial: Callable[[], float], what: str, fails: str = "does not run here") -> Fault | None:
    """Why a kernel cannot be used; None if its error is rounding.

    Args:
        trial: runs the kernel; gives its largest error.
        what: the kernel, for the sentence.
        fails: what is said if ``trial`` raises.
    """
    try:
        error = trial()
    except Exception as failure:  # a compiler may fail in any way
        reason = " ".join(str(failure).split()) or "no reason given"
        return Fault(f"{what} {fails} ({type(failure).__name__}: {reason[:200]})")
    return None if error < MAX_ERROR else Fault(f"{what} is wrong here by {error:.1e}")
