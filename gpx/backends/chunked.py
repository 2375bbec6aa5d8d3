"""The chunked backend: the kernel matrix is evaluated and used tile by tile, in cache."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gpx.backends.entries import Entries, Scratch, TileSource
from gpx.backends.tiles import GROUPS, MAX_SERIAL_ENTRIES, Tile, Tiling, run_groups, tiling
from gpx.linalg.replayed import refuse_recording
from gpx.linalg.thin_products import as_rows, row_count

CPU_TILE_BYTES = 2 << 20
"""Bytes of one tile on a CPU: with its scratch it stays in a core's share of the caches."""
GPU_TILE_BYTES = 256 << 20
"""Bytes of one tile elsewhere, where launches cost more than passes over memory."""
MAX_RECORDED_TILES = 64
"""Tiles of a product up to which a CUDA graph may record it: a graph of the many launches of a
large matrix would take seconds to make and save nothing."""
PRODUCT_TEMPORARIES = 2
"""Tiles in memory at once in every thread of a product."""
DERIVATIVE_TEMPORARIES = 8
"""Tiles in memory at once in every thread of a gradient."""


class Chunked:
    """Products and gradients tile by tile; the matrix is never stored.

    A square matrix evaluates each off-diagonal tile once for both triangles. Results do not depend
    on the number of threads.

    Cost: product O(n1 n2 (d + c)), gradient about four times that; at most ``memory_budget`` bytes
    (a few tiles per thread), besides inputs, results and, for a square matrix on a CPU, ``GROUPS``
    partial results (n, c); if those exceed the budget, both triangles are evaluated.

    Args:
        memory_budget: bytes that tiles and partial results may occupy.
    """

    def __init__(self, memory_budget: int) -> None:
        self.memory_budget = memory_budget

    def product(self, entries: Entries, right: Tensor, *, transposed: bool) -> Tensor:
        """K @ right (n2, c), or K^T @ right (n1, c); not differentiable."""
        if transposed:
            entries = entries.transposed()
        plan = self._product_plan(entries, row_count(right))
        x2 = None if entries.square else entries.x2
        with torch.no_grad():
            return entries.call(
                lambda kernel: _product(
                    kernel.tiles(entries.x1, x2), entries, right, plan, _threads(entries)
                )
            )

    def product_of(self, source: TileSource, entries: Entries, right: Tensor) -> Tensor:
        """Product with another matrix of the same shape and symmetry, given by its tiles."""
        plan = self._product_plan(entries, row_count(right))
        with torch.no_grad():
            return _product(source, entries, right, plan, _threads(entries))

    def matrix(self, entries: Entries) -> Tensor:
        """K itself, (n1, n2), written tile by tile; not differentiable."""
        tile = self._tile_entries(entries, PRODUCT_TEMPORARIES, CPU_TILE_BYTES)
        plan = tiling(entries.shape, tile, triangle=entries.square, groups=_groups(entries))
        x2 = None if entries.square else entries.x2
        with torch.no_grad():
            return entries.call(
                lambda kernel: _matrix(
                    kernel.tiles(entries.x1, x2), entries, plan, _threads(entries)
                )
            )

    def derivative(
        self, entries: Entries, left: Tensor, right: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradient of sum_c left_c^T K right_c for every tensor of ``entries``."""
        leaves = entries.leaves()
        plan = tiling(
            entries.shape,
            self._tile_entries(entries, DERIVATIVE_TEMPORARIES, 2 * CPU_TILE_BYTES),
            triangle=entries.square,
            groups=_groups(entries),
        )
        with torch.no_grad():
            found = leaves.call(
                lambda kernel: run_groups(
                    lambda g: _tile_gradients(kernel, leaves, plan.groups[g], left, right),
                    len(plan.groups),
                    threads=_threads(entries),
                )
            )
        totals = found[0] if found else [torch.zeros_like(t) for t in _wanted(leaves)]
        for part in found[1:]:
            for total, gradient in zip(totals, part, strict=True):
                total += gradient
        remaining = iter(totals)
        return tuple(next(remaining) if t.requires_grad else None for t in leaves.tensors)

    def _tile_entries(self, entries: Entries, temporaries: int, cpu_tile: int) -> int:
        """Entries per tile such that all threads together stay within the budget."""
        size = entries.x1.element_size()
        fitting = self.memory_budget // (temporaries * _threads(entries) * size)
        return max(1, min(fitting, (cpu_tile if entries.x1.is_cpu else GPU_TILE_BYTES) // size))

    def _product_plan(self, entries: Entries, columns: int) -> Tiling:
        tile = self._tile_entries(entries, PRODUCT_TEMPORARIES, CPU_TILE_BYTES)
        groups = _groups(entries)
        plan = tiling(entries.shape, tile, triangle=entries.square, groups=groups)
        partial = entries.shape[0] * columns * entries.x1.element_size()
        if len(plan.groups) > 1 and len(plan.groups) * partial > self.memory_budget:
            return tiling(entries.shape, tile, triangle=False, disjoint_rows=True, groups=groups)
        return plan


def _threads(entries: Entries) -> int:
    small = math.prod(entries.shape) <= MAX_SERIAL_ENTRIES
    return 1 if small or not entries.x1.is_cpu else torch.get_num_threads()


def _groups(entries: Entries) -> int:
    return GROUPS if entries.x1.is_cpu else 1


def _product(
    source: TileSource, entries: Entries, right: Tensor, plan: Tiling, threads: int
) -> Tensor:
    """The product by groups of tiles, with vectors as rows: the fast layout for thin products."""
    tiles = sum(map(len, plan.groups))
    if tiles > MAX_RECORDED_TILES:
        refuse_recording(f"a product in {tiles} tiles takes far longer than its launches")
    n1, vectors = entries.shape[0], as_rows(right)
    columns = len(vectors)
    symmetric = entries.square and not plan.disjoint_rows
    shared = vectors.new_zeros(columns, n1) if plan.disjoint_rows else None

    def group(g: int) -> Tensor:
        out = vectors.new_zeros(columns, n1) if shared is None else shared
        scratch = Scratch(vectors, plan.size)
        for rows, cols in plan.groups[g]:
            tile = scratch.take(rows.stop - rows.start, cols.stop - cols.start)
            source.fill_(rows, cols, tile, scratch)
            out[:, rows].addmm_(vectors[:, cols], tile.mT)
            if symmetric and rows != cols:
                out[:, cols].addmm_(vectors[:, rows], tile)
            scratch.give(tile)
        return out

    parts = run_groups(group, len(plan.groups), threads=threads)
    total = parts[0] if parts else vectors.new_zeros(columns, n1)
    if shared is None:
        for part in parts[1:]:
            total += part
    if source.scale is not None:
        total *= source.scale
    return total[: right.shape[1]].mT.contiguous()


def _matrix(source: TileSource, entries: Entries, plan: Tiling, threads: int) -> Tensor:
    values = entries.x1.new_empty(entries.shape)

    def group(g: int) -> None:
        scratch = Scratch(values, plan.size)
        for rows, cols in plan.groups[g]:
            tile = scratch.take(rows.stop - rows.start, cols.stop - cols.start)
            source.fill_(rows, cols, tile, scratch)
            if source.scale is not None:
                tile *= source.scale
            values[rows, cols] = tile
            if entries.square and rows != cols:
                values[cols, rows] = tile.mT
            scratch.give(tile)

    run_groups(group, len(plan.groups), threads=threads)
    return values


def _wanted(entries: Entries) -> list[Tensor]:
    return [t for t in entries.tensors if t.requires_grad]


def _tile_gradients(
    kernel: Any, entries: Entries, tiles: Iterable[Tile], left: Tensor, right: Tensor
) -> list[Tensor]:
    """Gradients of the wanted tensors, summed over a group of tiles; autograd sees one tile."""
    wanted = _wanted(entries)
    totals = {id(t): torch.zeros_like(t) for t in wanted}
    parameters = [t for t in entries.parameters if t.requires_grad]

    def leaf(x: Tensor, where: slice) -> Tensor:
        return x[where].detach().requires_grad_(x.requires_grad)

    for rows, columns in tiles:
        diagonal = entries.square and rows == columns
        x1 = leaf(entries.x1, rows)
        x2 = None if diagonal else leaf(entries.x1 if entries.square else entries.x2, columns)
        weights = left[rows] @ right[columns].mT
        if entries.square and not diagonal:
            weights.addmm_(right[rows], left[columns].mT)
        with torch.enable_grad():
            tile = kernel.evaluate(x1, x2)
        targets = [(t, totals[id(t)]) for t in parameters]
        if x1.requires_grad:
            targets.append((x1, totals[id(entries.x1)][rows]))
        if x2 is not None and x2.requires_grad:
            total = totals[id(entries.x1 if entries.square else entries.x2)]
            targets.append((x2, total[columns]))
        if not targets or not tile.requires_grad:
            continue
        found = torch.autograd.grad(tile, [t for t, _ in targets], weights, allow_unused=True)
        for (_, total), gradient in zip(targets, found, strict=True):
            if gradient is not None:
                total += gradient
    return [totals[id(t)] for t in wanted]
