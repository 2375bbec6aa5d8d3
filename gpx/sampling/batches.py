"""Row indices of mini-batches, as a function of seed and step only."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gpx.lazy_rows import LazyRows
from gpx.sampling.seeds import stream

RUNS_PER_BATCH = 8
"""Runs of consecutive rows in a scattered batch."""


class BatchOrder(Protocol):
    """The rows in the batch of each step."""

    batch_size: int
    per_epoch: int

    def rows(self, step: int) -> Tensor:
        """Row indices (batch_size,) of ``step``."""


def batch_order(x: Tensor | LazyRows, batch_size: int, seed: int) -> BatchOrder:
    """The batch order for rows in a tensor or in files.

    Args:
        x (n, d): training inputs.
        batch_size, seed: as for ``Batches``.
    """
    if isinstance(x, LazyRows):
        return ChunkedBatches(len(x), batch_size, seed, x.chunk_rows, x.buffer_rows)
    return Batches(x.shape[0], batch_size, seed, x.device)


def some_rows(x: Tensor | LazyRows, count: int, generator: torch.Generator | None) -> Tensor:
    """Indices of ``count`` different rows, drawn uniformly, on the device of x (n, d).

    Args:
        x (n, d): rows to choose from; for rows in files without a permutation, which would take 8
            bytes per row.
        count: at most n.
        generator: on the device of x.
    """
    total = x.shape[0]
    if not isinstance(x, LazyRows) or 2 * count > total:
        return torch.randperm(total, generator=generator, device=x.device)[:count]
    return _distinct(total, count, generator, x.device)


def _distinct(
    total: int, count: int, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """``count`` different integers below ``total``, in the order drawn."""
    chosen: dict[int, None] = {}  # repeated numbers are replaced by new draws
    while len(chosen) < count:
        drawn = torch.randint(total, (count,), generator=generator, device=device)
        chosen |= dict.fromkeys(drawn.tolist())
    return torch.tensor(list(chosen)[:count], device=device)


def scattered_batches(
    x: LazyRows, batch_size: int, count: int, generator: torch.Generator | None
) -> Tensor:
    """Rows (count, batch_size) of disjoint batches; fewer batches if there are not enough rows.

    Every batch consists of about eight runs of consecutive rows, at positions drawn without
    replacement. If neighbouring rows are alike, so are the batches of a ``ChunkedBatches``, which
    share a buffer, and their spread underestimates the error of their mean. These batches are
    practically independent, so that their spread estimates it. All rows are equally likely.

    Args:
        x (n, d): in files, at least one batch.
        generator: on the device of x.

    Cost: one block is read for each run.
    """
    total = x.shape[0]
    run = -(-batch_size // RUNS_PER_BATCH)
    each, num_runs = -(-batch_size // run), total // run
    count = min(count, num_runs // each)
    if 2 * count * each > num_runs:
        chosen = torch.randperm(num_runs, generator=generator, device=x.device)[: count * each]
    else:
        chosen = _distinct(num_runs, count * each, generator, x.device)
    start = torch.randint(total, (), generator=generator, device=x.device)
    rows = chosen[:, None] * run + torch.arange(run, device=x.device)
    return ((rows.view(count, each * run) + start) % total)[:, :batch_size]


class Batches:
    """Rows of step t: a slice of a new random permutation per epoch.

    Every batch has the same size (the remainder of an epoch is skipped), so each one is a uniform
    sample without replacement, as unbiased estimators need. The order depends on (seed, epoch)
    only: a resumed run draws the same batches without stored state.

    Args:
        num_data: n.
        batch_size: rows per batch; all n if there are fewer (the trainer reports this).
        seed: of the run.
        device: of the indices.

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
            # drawn on the CPU so that batches do not depend on the device
            generator = stream(self._seed, f"epoch {epoch}")
            self._order = torch.randperm(self.num_data, generator=generator).to(self._device)
            self._epoch = epoch
        start = position * self.batch_size
        return self._order[start : start + self.batch_size]


class ChunkedBatches:
    """Rows of step t for data in files, where consecutive rows are cheap to read together.

    An epoch cuts the rows, cyclically from a random one, into chunks of consecutive rows, collects
    the chunks in random order into buffers, and takes batches from each buffer after shuffling its
    rows; remainders are skipped. If one buffer holds all rows, a batch is a slice of a random
    permutation, as in ``Batches``.

    Every row is in the batch of a step with probability batch_size / n exactly, so that sums over a
    batch are unbiased estimates of sums over all rows. A batch is no simple random sample: its rows
    come from buffer_rows / chunk_rows chunks, and if the rows of a chunk are alike, a sum over the
    batch varies like one over so many independent rows. The order depends on (seed, epoch) only, as
    in ``Batches``.

    Args:
        num_data: n.
        batch_size: rows per batch; all n if there are fewer.
        seed: of the run.
        chunk_rows: rows per chunk.
        buffer_rows: rows per buffer; at least a batch.

    Cost: memory for one buffer of indices and one number per chunk; O(buffer_rows) per buffer.
    """

    def __init__(
        self, num_data: int, batch_size: int, seed: int, chunk_rows: int, buffer_rows: int
    ) -> None:
        self.num_data = num_data
        self.batch_size = min(batch_size, num_data)
        buffer_rows = max(buffer_rows, self.batch_size)
        whole_chunks = num_data // chunk_rows * chunk_rows
        # chunks must fill at least one batch
        chunked = buffer_rows < num_data and whole_chunks >= batch_size
        self.chunk_rows = chunk_rows if chunked else 1
        self.num_chunks = num_data // self.chunk_rows
        self.buffer_chunks = min(self.num_chunks, -(-buffer_rows // self.chunk_rows))
        self._per_buffer = self.buffer_chunks * self.chunk_rows // self.batch_size
        buffers, rest = divmod(self.num_chunks, self.buffer_chunks)
        self.per_epoch = buffers * self._per_buffer + rest * self.chunk_rows // self.batch_size
        self._seed = seed
        self._epoch, self._buffer = -1, -1
        self._start, self._order = 0, torch.empty(0, dtype=torch.int64)
        self._rows = self._order

    def rows(self, step: int) -> Tensor:
        """Row indices (batch_size,) of ``step``, on the CPU."""
        epoch, position = divmod(step, self.per_epoch)
        buffer, batch = divmod(position, self._per_buffer)
        if epoch != self._epoch:
            generator = stream(self._seed, f"epoch {epoch}")
            self._start = int(torch.randint(self.num_data, (), generator=generator))
            self._order = torch.randperm(self.num_chunks, generator=generator)
            self._epoch, self._buffer = epoch, -1
        if buffer != self._buffer:
            first = buffer * self.buffer_chunks
            chunks = self._order[first : first + self.buffer_chunks]
            rows = (chunks[:, None] * self.chunk_rows + torch.arange(self.chunk_rows)).view(-1)
            generator = stream(self._seed, f"epoch {epoch} buffer {buffer}")
            shuffled = torch.randperm(len(rows), generator=generator)
            self._rows = (rows[shuffled] + self._start) % self.num_data
            self._buffer = buffer
        return self._rows[batch * self.batch_size : (batch + 1) * self.batch_size]
