"""Sources of tiles of kernel matrices, written into a buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from gpx.backends import Scratch, TileSource
from gpx.kernels.distances import distance_factors, distances_
from gpx.kernels.fused import Profile


class EvaluatedTiles:
    """Any kernel, by its ``evaluate``: each tile is evaluated and copied."""

    scale = None

    def __init__(
        self, evaluate: Callable[[Tensor, Tensor | None], Tensor], x1: Tensor, x2: Tensor | None
    ) -> None:
        self.evaluate, self.x1, self.x2 = evaluate, x1, x2

    def fill_(self, rows: slice, columns: slice, out: Tensor, scratch: Scratch) -> None:
        """As in ``TileSource``."""
        first = self.x1[rows]
        if self.x2 is None:
            second = None if rows == columns else self.x1[columns]
        else:
            second = self.x2[columns]
        out.copy_(self.evaluate(first, second))


class StationaryTiles:
    """A profile of squared distances: one thin matrix product, then in place.

    Args:
        z1, z2: centred, scaled inputs; ``z1 is z2`` makes the diagonal exact.
        scale (): outputscale.
        profile: phi.
    """

    def __init__(self, z1: Tensor, z2: Tensor, scale: Tensor, profile: type[Profile]) -> None:
        self.square, self.scale, self.profile = z1 is z2, scale, profile
        self.left, self.right = distance_factors(z1, z2, self.square)

    def fill_(self, rows: slice, columns: slice, out: Tensor, scratch: Scratch) -> None:
        """As in ``TileSource``; a tile with diagonal entries has rows == columns."""
        offset = 0 if self.square and rows == columns else None
        left, right, profile = self.left[rows], self.right[columns], self.profile
        distances_(left, right, profile.factor, offset, profile.bounds, out)
        work = scratch.take(*out.shape)
        self._finish(out, work)
        scratch.give(work)

    def _finish(self, out: Tensor, work: Tensor) -> None:
        self.profile.evaluate_(out, work, False)


class SumTiles:
    """Parts added, each with its scale."""

    scale = None

    def __init__(self, parts: Sequence[TileSource]) -> None:
        self.parts = parts

    def fill_(self, rows: slice, columns: slice, out: Tensor, scratch: Scratch) -> None:
        """As in ``TileSource``."""
        first, *others = self.parts
        first.fill_(rows, columns, out, scratch)
        if first.scale is not None:
            out.mul_(first.scale)
        for part in others:
            tile = scratch.take(*out.shape)
            part.fill_(rows, columns, tile, scratch)
            if part.scale is None:
                out.add_(tile)
            else:
                out.addcmul_(tile, part.scale)
            scratch.give(tile)


class ProductTiles:
    """Parts multiplied; the product of their scales is kept apart as ``scale``."""

    def __init__(self, parts: Sequence[TileSource]) -> None:
        self.parts = parts
        scales = [p.scale for p in parts if p.scale is not None]
        self.scale = reduce(torch.mul, scales) if scales else None

    def fill_(self, rows: slice, columns: slice, out: Tensor, scratch: Scratch) -> None:
        """As in ``TileSource``; float32 products too small for ordinary numbers become zero."""
        first, *others = self.parts
        first.fill_(rows, columns, out, scratch)
        for part in others:
            tile = scratch.take(*out.shape)
            part.fill_(rows, columns, tile, scratch)
            out.mul_(tile)
            scratch.give(tile)
        if out.dtype == torch.float32:
            # subnormal numbers are slow
            out.copy_(torch.hardshrink(out, torch.finfo(torch.float32).tiny))


class ScaledTiles:
    """A part times a scale."""

    def __init__(self, part: TileSource, scale: Tensor) -> None:
        self.part = part
        self.scale = scale if part.scale is None else scale * part.scale

    def fill_(self, rows: slice, columns: slice, out: Tensor, scratch: Scratch) -> None:
        """As in ``TileSource``."""
        self.part.fill_(rows, columns, out, scratch)
