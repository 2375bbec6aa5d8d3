"""The observed targets of several outputs as one list, and matrices of them in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import DataError

Places = slice | Tensor


class Piece(NamedTuple):
    """A piece of a matrix of targets (N, N) over a block of rows of a matrix of inputs (n, n).

    Attributes:
        i, j: the outputs, i >= j.
        of_targets: view of the piece, transposed where the targets of j are in the block's rows.
        of_inputs: index of its entries within the block of rows.
        symmetric: whether it lies on the diagonal, both halves of it.
        transposed: whether the targets of j, not of i, are in the block's rows.
    """

    i: int
    j: int
    of_targets: Tensor
    of_inputs: tuple[Places, Places]
    symmetric: bool
    transposed: bool

    def entries(self, block: Tensor) -> Tensor:
        """The piece's entries of a block of rows: a view where all of its targets are there."""
        return block[self.of_inputs]

    def add_to(self, block: Tensor, factor: Tensor) -> None:
        """Add ``factor`` () times the piece to its entries of a block of rows."""
        found = self.entries(block)
        found.addcmul_(self.of_targets, factor)
        if any(isinstance(places, Tensor) for places in self.of_inputs):
            block[self.of_inputs] = found


class ObservedTargets:
    """The N targets that are not missing, as one list, those of an output next to each other.

    Args:
        y (n, p): NaN where a target is missing.
        some_empty: whether outputs may have no target at all.

    Attributes:
        rows (N,), outputs (N,): their indices in y.
        counts: targets of each output.

    Cost: one transfer from the device.

    Raises:
        DataError: an output, or all of them, have no target, of one row or more.
    """

    def __init__(self, y: Tensor, *, some_empty: bool = False) -> None:
        present = (~y.isnan()).cpu()
        counts = present.sum(0).tolist()
        if len(y) and not any(counts):
            raise DataError("every target is missing: y holds nothing but NaN")
        if len(y) and not all(counts) and not some_empty:
            raise DataError(
                f"output {counts.index(0)} of {y.shape[1]} has no target in any row; leave it out"
            )
        outputs, rows = present.mT.nonzero(as_tuple=True)
        self.rows, self.outputs = rows.to(y.device), outputs.to(y.device)
        self._rows = rows.split(counts)
        self._starts = [sum(counts[:output]) for output in range(len(counts))]
        self._complete = [count == len(y) for count in counts]
        self.count, self.counts = len(rows), counts

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs and number of the output of every target (N, d + 1), for x (n, d)."""
        return torch.cat([x[self.rows], self.outputs.to(x)[:, None]], 1)

    def noise(self, noise: Tensor) -> Tensor:
        """Noise variances (N,) of the targets, from those of outputs (p,) or of cells (n, p)."""
        return noise[self.outputs] if noise.ndim == 1 else noise[self.rows, self.outputs]

    def of_output(self, output: int) -> slice:
        """The places of an output's targets in the list."""
        start = self._starts[output]
        return slice(start, start + len(self._rows[output]))

    def pieces(self, matrix: Tensor, rows: slice) -> Iterator[Piece]:
        """The lower triangle of a matrix of targets over some rows of that of the inputs.

        Every entry of the lower triangle of ``matrix``, and the upper half of blocks on the
        diagonal, is in a piece of one of the blocks of rows that cover 0 ... n.

        Args:
            matrix (N, N): symmetric.
            rows: of the inputs; the block is that of the columns 0 ... rows.stop.
        """
        before, past = slice(0, rows.start), slice(0, rows.stop)
        for i in range(len(self._rows)):
            for j in range(i):
                yield self._piece(matrix, i, j, rows, past)
                if rows.start:
                    yield self._piece(matrix, i, j, before, rows, transposed=True)
            if rows.start:
                yield self._piece(matrix, i, i, rows, before)
            yield self._piece(matrix, i, i, rows, rows, symmetric=True)

    def _piece(
        self,
        matrix: Tensor,
        i: int,
        j: int,
        left: slice,
        right: slice,
        *,
        transposed: bool = False,
        symmetric: bool = False,
    ) -> Piece:
        own, at = self._within(i, left)
        other, to = self._within(j, right)
        view, start = matrix[own, other], left.start
        if transposed:
            view, start, at, to = view.mT, right.start, to, at
        at = at - start if isinstance(at, Tensor) else slice(None)
        if isinstance(at, Tensor) and isinstance(to, Tensor):
            at = at[:, None]
        return Piece(i, j, view, (at, to), symmetric, transposed)

    def _within(self, output: int, rows: slice) -> tuple[slice, Places]:
        """Targets of an output in some rows: their places in the list, and their rows."""
        start = self._starts[output]
        if self._complete[output]:
            return slice(start + rows.start, start + rows.stop), rows
        ends = torch.searchsorted(self._rows[output], torch.tensor([rows.start, rows.stop]))
        first, last = ends.tolist()
        places = slice(start + first, start + last)
        return places, self.rows[places]
