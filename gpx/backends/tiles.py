"""How a matrix is cut into tiles, and the tiles into groups that threads can take."""

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

SMALL = 1 << 16
"""Matrices of fewer entries are handled by one thread: starting another costs more than it
saves."""


@dataclass(frozen=True)
class Tiling:
    """Tiles that cover a matrix, or its upper triangle with the diagonal.

    Attributes:
        groups: tiles by group.
        size: entries of the largest tile.
        owned: no two groups share rows, so that all may write into one result.
    """

    groups: tuple[tuple[Tile, ...], ...]
    size: int
    owned: bool


def tiling(
    shape: tuple[int, int],
    entries: int,
    *,
    triangle: bool,
    owned: bool = False,
    groups: int = GROUPS,
) -> Tiling:
    """Tiles of about ``entries`` entries, nearly square where the matrix allows.

    Args:
        shape: (n1, n2).
        entries: of a tile, at most (but at least one row of one column).
        triangle: only tiles on and above the diagonal of a square matrix; diagonal tiles have
            equal row and column slices.
        owned: give every group its own rows, even when there are then fewer groups.
        groups: at most so many.
    """
    n1, n2 = shape
    height = max(1, min(n1, math.isqrt(entries)))
    width = height if triangle else max(1, min(n2, entries // height))
    if not triangle:
        height = max(1, min(n1, entries // width))
    strips = list(row_chunks(n1, 1, height))
    columns = strips if triangle else list(row_chunks(n2, 1, width))
    if owned:
        cut = [
            [(r, c) for r in strips[g::groups] for c in columns]
            for g in range(min(groups, len(strips)))
        ]
    else:
        tiles = [
            (r, c) for i, r in enumerate(strips) for c in (columns[i:] if triangle else columns)
        ]
        cut = [tiles[g::groups] for g in range(min(groups, len(tiles)))]
    return Tiling(tuple(map(tuple, cut)), height * width, owned)


def run_groups(work: Callable[[int], T], count: int, *, threads: int) -> list[T]:
    """``[work(0), ..., work(count - 1)]``, by ``threads`` threads that each use one core.

    Threads of whole tiles meet only at the end. torch's own threads meet after every operation on
    every tile, which stalls all of them whenever another program takes one core. The number of
    threads of the caller and of later threads is as before afterwards.
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
