"""Indices of operators, checked once: integers, slices, lists, masks and positions."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpx.errors import IndexOutOfRange, ShapeError

WHOLE = slice(None)


def checked_index(index: Any, shape: torch.Size, device: torch.device | None) -> tuple[Any, ...]:
    """One entry per dimension: a slice, a non-negative integer or non-negative int64 positions.

    Masks become positions, negative integers count from the end, an ellipsis is filled in.

    Raises:
        ShapeError: too many indices, a mask of the wrong length, an entry of another type.
        IndexOutOfRange: an integer or position beyond the dimension.

    Cost: one host synchronisation per tensor of positions on CUDA (its range; a mask's length).
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    dots = [at for at, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1 or len(entries) - len(dots) > len(shape):
        raise ShapeError(
            f"{len(entries)} indices ({len(dots)} of them an ellipsis) do not fit an operator of "
            f"shape {tuple(shape)}"
        )
    missing = len(shape) - (len(entries) - len(dots))
    at = dots[0] if dots else len(entries)
    entries[at : at + len(dots)] = [WHOLE] * missing
    return tuple(
        entry if isinstance(entry, slice) else _entry(entry, dim, shape, device)
        for dim, entry in enumerate(entries)
    )


def _entry(entry: Any, dim: int, shape: torch.Size, device: torch.device | None) -> int | Tensor:
    size = shape[dim]
    if isinstance(entry, (list, range, np.ndarray)):
        entry = torch.as_tensor(list(entry) if isinstance(entry, range) else entry, device=device)
        entry = entry if entry.numel() else entry.long()
    if isinstance(entry, Tensor) and entry.ndim and not entry.is_floating_point():
        return positions(entry, size, f"dimension {dim} of an operator of shape {tuple(shape)}")
    try:
        if isinstance(entry, bool):
            raise TypeError
        number = operator.index(entry)
    except TypeError:
        raise ShapeError(
            f"{type(entry).__name__} is no index for dimension {dim} of an operator of shape "
            f"{tuple(shape)}: use integers, slices, masks or integer positions (and unsqueeze for "
            "a new dimension)"
        ) from None
    if not -size <= number < size:
        raise IndexOutOfRange(
            f"index {number} is out of range for dimension {dim} of an operator of shape "
            f"{tuple(shape)}"
        )
    return number % size


def positions(index: Tensor, size: int, name: str) -> Tensor:
    """Non-negative int64 positions from a mask (size,) or from integers of -size .. size - 1.

    Raises:
        ShapeError: a mask of the wrong length. IndexOutOfRange: a position out of range.
    """
    if index.dtype == torch.bool:
        if index.shape != (size,):
            raise ShapeError(f"the mask of {name} is {tuple(index.shape)}; expected ({size},)")
        return index.nonzero().squeeze(-1)
    index = index.long()
    if index.numel() == 0:
        return index
    low, high = (int(value) for value in index.aminmax())
    if low < -size or high >= size:
        raise IndexOutOfRange(
            f"{name} has positions from {low} to {high}; expected {-size} to {size - 1}"
        )
    return torch.where(index < 0, index + size, index) if low < 0 else index


def as_positions(index: Any, size: int, device: torch.device | None) -> Tensor | None:
    """Positions of a checked slice or tensor; None for everything."""
    if isinstance(index, slice):
        return None if index == WHOLE else torch.arange(*index.indices(size), device=device)
    assert isinstance(index, Tensor)
    return index


def common_batch(*shapes: torch.Size, what: str) -> torch.Size:
    """The batch shape that all broadcast to.

    Raises:
        ShapeError: there is none.
    """
    if all(shape == shapes[0] for shape in shapes):  # nearly always, and far cheaper
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        found = ", ".join(str(tuple(shape)) for shape in shapes)
        raise ShapeError(f"the shapes {found} of {what} do not broadcast") from None
