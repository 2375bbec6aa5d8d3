"""Tilings of a matrix, with the tiles in groups for threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TypeVar

import torch

from gpx.backends.chunks import row_chunks

T = TypeVar("T")
Tile = tuple[slice, slice]

GROUPS = 8
"""Groups of tiles. Sums are taken within a group in order and then over groups in order, so that
results do not depend on the number of threads or on their timing."""

MAX_SERIAL_ENTRIES = 1 << 16
"""Matrices of up to so many entries are handled by one thread, which is faster than starting
others."""


@dataclass(frozen=True)
class Tiling:
    """Tiles that cover a matrix, or its upper triangle with the diagonal.

    Attributes:
        groups: tiles by group.
        size: entries of the largest tile.
        disjoint_rows: no two groups share rows, so that all may write into one result.
    """

    groups: tuple[tuple[Tile, ...], ...]
    size: int
    disjoint_rows: bool


def tiling(
    shape: tuple[int, int],
    entries: int,
    *,
    triangle: bool,
    disjoint_rows: bool = False,
    groups: int = GROUPS,
) -> Tiling:
    """Tiles of about ``entries`` entries, nearly square if the matrix allows.

    Args:
        shape: (n1, n2).
        entries: largest number of entries in a tile (but at least one row of one column).
        triangle: only tiles on and above the diagonal of a square matrix; diagonal tiles have
            equal row and column slices.
        disjoint_rows: give every group its own rows, even if there are then fewer groups.
        groups: largest number of groups.
    """
    n1, n2 = shape
    height = max(1, min(n1, math.isqrt(entries)))
    width = height if triangle else max(1, min(n2, entries // height))
    if not triangle:
        height = max(1, min(n1, entries // width))
    strips = list(row_chunks(n1, 1, height))
    columns = strips if triangle else list(row_chunks(n2, 1, width))
    if disjoint_rows:
        grouped = [
            [(r, c) for r in strips[g::groups] for c in columns]
            for g in range(min(groups, len(strips)))
        ]
    else:
        tiles = [
            (r, c) for i, r in enumerate(strips) for c in (columns[i:] if triangle else columns)
        ]
        grouped = [tiles[g::groups] for g in range(min(groups, len(tiles)))]
    return Tiling(tuple(map(tuple, grouped)), height * width, disjoint_rows)


def run_groups(work: Callable[[int], T], count: int, *, threads: int) -> list[T]:
    """``[work(0), ..., work(count - 1)]``, by ``threads`` threads of one core each.

    These threads synchronise only at the end; torch's own threads synchronise after every operation
    on every tile, which stalls them all whenever another program uses one of the cores. torch's
    number of threads is the same afterwards.
    """
    threads = min(threads, count)
    if threads <= 1:
        return [work(g) for g in range(count)]
    found: dict[int, T] = {}
    failed: list[BaseException] = []
    waiting, lock = iter(range(count)), Lock()
    inference = torch.is_inference_mode_enabled()

    def run() -> None:
        usual = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode(inference), torch.no_grad():
                while not failed:
                    with lock:
                        g = next(waiting, None)
                    if g is None:
                        return
                    found[g] = work(g)
        except BaseException as error:
            failed.append(error)
        finally:
            torch.set_num_threads(usual)

    helpers = [Thread(target=run) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if failed:
        raise failed[0]
    return [found[g] for g in range(count)]
