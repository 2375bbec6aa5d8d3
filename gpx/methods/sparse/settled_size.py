"""A default number of inducing points serves small data too, and says so."""

from __future__ import annotations

from typing import Any


def settled_size(asked: int, size: int) -> dict[str, tuple[Any, str]]:
    """What ``Model.settle`` says of ``size`` inducing points where ``asked`` were asked for."""
    if asked == size:
        return {}
    return {"num_inducing": (size, f"one per training point, {asked:,} were asked for")}
