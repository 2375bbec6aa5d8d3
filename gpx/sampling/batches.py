"""Mini-batches as index draws on the device, a function of seed and step alone."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gpx.lazy_rows import LazyRows
from gpx.sampling.seeds import stream

PLACES = 8
"""Of the files that a scattered batch takes its rows from."""


class BatchOrder(Protocol):
    """Which rows are in the batch of a step."""

    batch_size: int
    per_epoch: int

    def rows(self, step: int) -> Tensor:
        """Row indices (batch_size,) of ``step``."""


def batch_order(x: Tensor | LazyRows, batch_size: int, seed: int) -> BatchOrder:
    """The order that suits where the rows lie: on the device of a tensor, or in files.

    Args:
        x (n, d): training inputs.
        batch_size, seed: as for ``Batches``.
    """
    if isinstance(x, LazyRows):
        return NearBatches(len(x), batch_size, seed, x.near, x.together)
    return Batches(x.shape[0], batch_size, seed, x.device)


def some_rows(x: Tensor | LazyRows, count: int, generator: torch.Generator | None) -> Tensor:
    """Numbers of ``count`` different rows, drawn uniformly, on the device of x (n, d).

    Args:
        x (n, d): rows to choose from; of rows in files no permutation is made, which would take 8
            bytes of every row.
        count: at most n.
        generator: on the device of x.
    """
    total = x.shape[0]
    if not isinstance(x, LazyRows) or 2 * count > total:
        return torch.randperm(total, generator=generator, device=x.device)[:count]
    return _different(total, count, generator, x.device)


def _different(
    total: int, count: int, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """``count`` different whole numbers below ``total``, in the order drawn."""
    chosen: dict[int, None] = {}  # a number drawn again is drawn anew
    while len(chosen) < count:
        drawn = torch.randint(total, (count,), generator=generator, device=device)
        chosen |= dict.fromkeys(drawn.tolist())
    return torch.tensor(list(chosen)[:count], device=device)


def scattered_batches(
    x: LazyRows, batch_size: int, count: int, generator: torch.Generator | None
) -> Tensor:
    """Rows (count, batch_size) of batches that have no place of the files in common; fewer batches
    where the rows do not suffice.

    Every batch is of some eight runs of rows that follow one another, at places drawn without
    replacement. Where rows that are near are alike, batches of a ``NearBatches`` are alike, too,
    since they share a buffer: their spread does not say how far their mean is from that of all.
    These are as good as independent, and their spread does. Every row is as likely as any other.

    Args:
        x (n, d): in files, a batch or more.
        generator: on the device of x.

    Cost: a block is read for each run.
    """
    total = x.shape[0]
    run = -(-batch_size // PLACES)
    each, pieces = -(-batch_size // run), total // run
    count = min(count, pieces // each)
    if 2 * count * each > pieces:
        chosen = torch.randperm(pieces, generator=generator, device=x.device)[: count * each]
    else:
        chosen = _different(pieces, count * each, generator, x.device)
    start = torch.randint(total, (), generator=generator, device=x.device)
    rows = chosen[:, None] * run + torch.arange(run, device=x.device)
    return ((rows.view(count, each * run) + start) % total)[:, :batch_size]


class Batches:
    """Rows of step t: a slice of a fresh random permutation per epoch.

    Every batch has the same size (a remainder at the end of an epoch is skipped), so each one alone
    is a uniform sample without replacement, as unbiased estimators need. The order depends on
    (seed, epoch) only: a resumed run draws the same batches without any stored state.

    Args:
        num_data: n.
        batch_size: rows per batch; all n where there are fewer (the trainer says so).
        seed: of the run.
        device: where the indices live.

    Cost: O(n) once per epoch, O(batch_size) per step.
    """

    def __init__(self, num_data: int, batch_size: int, seed: int, device: torch.device) -> None:
        self.num_data = num_data
        self.batch_size = min(batch_size, num_data)
        self.per_epoch = num_data // self.batch_size
        self._seed = seed
        self._device = device
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def rows(self, step: int) -> Tensor:
        """Row indices (batch_size,) of ``step``."""
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            # drawn on the CPU so that every device sees the same batches
            generator = stream(self._seed, f"epoch {epoch}")
            self._order = torch.randperm(self.num_data, generator=generator).to(self._device)
            self._epoch = epoch
        start = position * self.batch_size
        return self._order[start : start + self.batch_size]


class NearBatches:
    """Rows of step t where rows that are near each other are cheap to have together.

    An epoch cuts the rows, taken round in a circle from a random one, into pieces of ``near``
    rows, draws the pieces in random order into buffers of ``together`` rows, and cuts batches from
    each buffer after shuffling its rows; remainders are skipped. Where one buffer holds all rows,
    an epoch is a slice of a random permutation, as in ``Batches``.

    Every row is in the batch of a step with the same probability, batch_size / n exactly, so that
    sums over a batch estimate sums over all rows without bias. A batch is no simple random sample:
    its rows come from together / near places, and where rows that are near are alike, a sum over
    it varies like one over as many independent rows. The order depends on (seed, epoch) only, as
    in ``Batches``.

    Args:
        num_data: n.
        batch_size: rows per batch; all n where there are fewer.
        seed: of the run.
        near: rows of a piece.
        together: rows of a buffer; raised to a batch.

    Cost: memory for one buffer of indices and one number per piece; O(together) once per buffer.
    """

    def __init__(self, num_data: int, batch_size: int, seed: int, near: int, together: int) -> None:
        self.num_data = num_data
        self.batch_size = min(batch_size, num_data)
        together = max(together, self.batch_size)
        # pieces must fill at least one batch
        self.near = near if together < num_data and num_data // near * near >= batch_size else 1
        self.pieces = num_data // self.near
        self.pieces_together = min(self.pieces, -(-together // self.near))
        self._per_buffer = self.pieces_together * self.near // self.batch_size
        buffers, rest = divmod(self.pieces, self.pieces_together)
        self.per_epoch = buffers * self._per_buffer + rest * self.near // self.batch_size
        self._seed = seed
        self._epoch, self._buffer = -1, -1
        self._start, self._order = 0, torch.empty(0, dtype=torch.int64)
        self._rows = self._order

    def rows(self, step: int) -> Tensor:
        """Row indices (batch_size,) of ``step``, on the CPU."""
        epoch, position = divmod(step, self.per_epoch)
        buffer, place = divmod(position, self._per_buffer)
        if epoch != self._epoch:
            generator = stream(self._seed, f"epoch {epoch}")
            self._start = int(torch.randint(self.num_data, (), generator=generator))
            self._order = torch.randperm(self.pieces, generator=generator)
            self._epoch, self._buffer = epoch, -1
        if buffer != self._buffer:
            first = buffer * self.pieces_together
            pieces = self._order[first : first + self.pieces_together]
            rows = (pieces[:, None] * self.near + torch.arange(self.near)).view(-1)
            generator = stream(self._seed, f"epoch {epoch} buffer {buffer}")
            shuffled = torch.randperm(len(rows), generator=generator)
            self._rows = (rows[shuffled] + self._start) % self.num_data
            self._buffer = buffer
        return self._rows[place * self.batch_size : (place + 1) * self.batch_size]
