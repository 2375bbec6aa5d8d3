"""Log marginal likelihoods of many targets at once, each with hyperparameters of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.errors import DataError, NotPositiveDefinite
from gpx.inference.dense_factor import warn_of_rounding
from gpx.inference.exact_density import log_marginal_likelihood
from gpx.inference.stacked_density import stacked_density
from gpx.inference.stacked_kernels import mapped, stacked_covariances
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.independent.parts import StackedParts

BATCH_BYTES = {"cpu": 2**22, "cuda": 2**29}
"""Bytes of the matrices of one batch of targets. On a CPU they stay in cache; targets of which
fewer than two fit (more than 512 rows in float64) gain nothing by it and are taken one after the
other, with a single matrix in memory."""


class TargetRows(NamedTuple):
    """Some targets with the rows in which each was observed, padded to one number m.

    Attributes:
        targets (b,): their numbers.
        rows (b, m): of the data; None: all of them, in order.
        mask (b, m): false at padding; None: there is none.
    """

    targets: list[int]
    rows: Tensor | None
    mask: Tensor | None


class Cells:
    """Targets of n rows, each observed in rows of its own.

    Args:
        x (n, d), y (n, p): NaN where a target is missing.
        noise: of the rows, or of each of their p targets; None: nothing is known.

    Attributes:
        counts: number of observed rows of each target.

    Cost: one transfer from the device.

    Raises:
        DataError: infinite targets, or a target that was never observed, of one row or more.
    """

    def __init__(self, x: Tensor, y: Tensor, noise: RowNoise | None = None) -> None:
        self.x, self.y, self._noise = x, y, noise
        missing = y.isnan()
        told = torch.cat([missing.logical_not().sum(0), y.isinf().sum().reshape(1)]).tolist()
        *self.counts, infinite = map(int, told)
        if infinite:
            row, target = y.isinf().nonzero()[0].tolist()
            raise DataError(
                f"{infinite} targets are infinite, the first in row {row} of target {target}; "
                "remove them, or make them NaN, which stands for a missing target"
            )
        if len(y) and 0 in self.counts:
            raise DataError(
                f"target {self.counts.index(0)} of {y.shape[1]} was never observed; leave it out"
            )
        self.missing = y.numel() - sum(self.counts)
        # observed rows first, in order
        self.order = missing.to(torch.int8).argsort(dim=0, stable=True) if self.missing else None

    def rows(self, target: int) -> Tensor | slice:
        """The rows in which a target was observed."""
        if self.order is None:
            return slice(None)
        return self.order[: self.counts[target], target]

    def batches(self, targets: Sequence[int], alike: bool) -> Iterator[TargetRows]:
        """The targets in batches of like numbers of rows; of one where they are taken alone."""
        limit = BATCH_BYTES.get(self.x.device.type, BATCH_BYTES["cpu"])
        waiting = sorted(targets, key=lambda target: -self.counts[target])
        while waiting:
            m = self.counts[waiting[0]]
            size = limit // max(1, m * m * self.x.element_size())
            if size < 2 or not alike:
                yield TargetRows([waiting.pop(0)], None, None)
                continue
            some, waiting = waiting[:size], waiting[size:]
            if self.order is None:
                yield TargetRows(some, None, None)
                continue
            rows = self.order[:m, some].mT
            mask = None
            if self.counts[some[-1]] < m:
                counts = torch.tensor([self.counts[target] for target in some])
                mask = (torch.arange(m) < counts[:, None]).to(self.x.device)
            yield TargetRows(some, rows, mask)

    def inputs(self, batch: TargetRows) -> Tensor:
        """Inputs (b, m, d) of a batch."""
        if batch.rows is None:
            return self.x.expand(len(batch.targets), *self.x.shape)
        return self.x[batch.rows]

    def targets(self, batch: TargetRows) -> Tensor:
        """Targets (b, m) of a batch; anything at padding."""
        chosen = self.y[:, batch.targets].mT
        return chosen if batch.rows is None else chosen.gather(1, batch.rows).nan_to_num()

    def noise(self, batch: TargetRows, learned: Tensor) -> Tensor:
        """Noise variances (b, 1) or (b, m) of a batch, for the learned ones (b,)."""
        if self._noise is None:
            return learned[:, None]
        known, relative = self._noise.columns(), self._noise.relative
        known = known.expand(len(self.x), self.y.shape[1])[:, batch.targets].mT
        if batch.rows is not None:
            known, relative = known.gather(1, batch.rows), relative[batch.rows]
        return known + relative * learned[:, None]

    def known_of(self, target: int) -> RowNoise | None:
        """What is known of the noise in the rows of one target."""
        if self._noise is None:
            return None
        return self._noise.of_target(target).of(self.rows(target))

    def own_noise(self, target: int, learned: Tensor) -> Tensor:
        """Noise variances () or (m,) of the rows of one target, for the learned one ()."""
        known = self.known_of(target)
        return learned if known is None else known.variance(learned)


class TargetEvidences(NamedTuple):
    """Terms of the log densities of some targets, in nats, float64.

    Attributes:
        fit, complexity, constant (a,): as ``LogDensityTerms``; NaN where ``failed``.
        gradient (a, K): with respect to the rows of ``StackedParts``; None: not asked for.
        jitter (a,): relative, of targets that were taken alone.
        failed: why a target's matrix has no Cholesky factor, by its place.
    """

    fit: Tensor
    complexity: Tensor
    constant: Tensor
    gradient: Tensor | None
    jitter: Tensor
    failed: dict[int, NotPositiveDefinite]

    def total(self) -> Tensor:
        """The log densities (a,)."""
        return self.fit + self.complexity + self.constant


def target_evidences(
    parts: StackedParts, cells: Cells, targets: Sequence[int], values: Tensor, *, gradient: bool
) -> TargetEvidences:
    """log N(r_j; 0, K_j + noise_j) of some targets j, and gradients in closed form.

    With a = C^{-1} r the derivative with respect to C = K + noise is (a a^T - C^{-1}) / 2. Targets
    of few rows are evaluated in batches, with their covariances, factors and inverses in arrays
    (b, m, m) (``BATCH_BYTES``); others, and those of kernels of several forms, one after the other
    by ``log_marginal_likelihood``, with one n x n array. A target whose matrix has no factor
    without jitter in its batch is evaluated alone as well, with reported jitter.

    Args:
        parts: of all targets.
        cells: their data.
        targets: numbers of those to evaluate.
        values (a, K): their rows of ``StackedParts``.

    Exactness: as ``log_marginal_likelihood``. Cost: n_j^3/3 multiply-adds each, n_j^3 with the
    gradient; four arrays of ``BATCH_BYTES``.
    """
    place = {target: i for i, target in enumerate(targets)}
    terms = torch.full((3, len(targets)), torch.nan, dtype=torch.float64, device=values.device)
    found = TargetEvidences(
        terms[0],
        terms[1],
        terms[2],
        values.new_zeros(values.shape) if gradient else None,
        torch.zeros(len(targets), dtype=torch.float64),
        {},
    )
    alone, checks = [], []
    for batch in cells.batches(targets, parts.alike):
        if len(batch.targets) == 1:
            alone += batch.targets
            continue
        info = _evaluate_batch(parts, cells, batch, values, place, found)
        checks.append((batch, info))
    if checks:  # one transfer for all batches
        infos = torch.cat([info for _, info in checks]).tolist()
        every = [target for batch, _ in checks for target in batch.targets]
        alone += [target for target, info in zip(every, infos, strict=True) if info]
    for target in alone:
        _evaluate_alone(parts, cells, target, values, place[target], found)
    return found


def _evaluate_batch(
    parts: StackedParts,
    cells: Cells,
    batch: TargetRows,
    values: Tensor,
    place: dict[int, int],
    found: TargetEvidences,
) -> Tensor:
    """Fill in the targets of a batch; returns whether each factorisation failed (b,)."""
    at = torch.tensor([place[target] for target in batch.targets], device=values.device)
    leaf = values[at].detach().requires_grad_(found.gradient is not None)
    x = cells.inputs(batch)
    with torch.set_grad_enabled(found.gradient is not None):
        stacks, learned = parts.stacks(leaf)
        covariances = stacked_covariances(parts.template.kernel, stacks, x)
        mean = mapped(parts.template.mean, stacks, lambda own, rows: own(rows), x)
        noise = cells.noise(batch, learned)
    with torch.no_grad():
        if x.dtype == torch.float32:
            largest = covariances.diagonal(dim1=1, dim2=2).max() / noise.min()
            warn_of_rounding(float(largest) * x.shape[1] * torch.finfo(x.dtype).eps)
        residual = cells.targets(batch) - mean
        wanted = found.gradient is not None
        density = stacked_density(covariances, residual, noise, batch.mask, gradient=wanted)
        found.fit[at], found.complexity[at] = density.fit, density.complexity
        counts = [cells.counts[target] for target in batch.targets]
        found.constant[at] = found.constant.new_tensor(counts) * (-0.5 * LOG_TWO_PI)
    if found.gradient is not None:
        found.gradient[at] = density.gradient(leaf, covariances, mean, noise)
    return density.info


def _evaluate_alone(
    parts: StackedParts,
    cells: Cells,
    target: int,
    values: Tensor,
    at: int,
    found: TargetEvidences,
) -> None:
    """Fill in one target, with jitter where it is needed."""
    rows = cells.rows(target)
    wanted = found.gradient is not None
    leaf = values[at].detach().requires_grad_(wanted)
    with torch.set_grad_enabled(wanted):
        own = parts.own(target, leaf)
        x = cells.x[rows]
        residual = cells.y[rows, target] - own.mean(x)
        noise = cells.own_noise(target, own.noise)
        try:
            terms, gradient, report = log_marginal_likelihood(
                own.kernel, x, residual, noise, gradient=wanted
            )
        except NotPositiveDefinite as error:
            found.failed[at] = error
            for part in (found.fit, found.complexity, found.constant):
                part[at] = torch.nan
            return
        found.fit[at], found.complexity[at], found.constant[at] = terms
        found.jitter[at] = report.relative
        if gradient is not None:
            value = gradient.attached(terms.total(), residual, noise)
            (found.gradient[at],) = torch.autograd.grad(value, [leaf])  # type: ignore[index]
