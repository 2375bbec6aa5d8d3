"""The recurrence of preconditioned conjugate gradients on blocks of right-hand sides."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.preconditioners.base import Preconditioner
from gpx.linalg.step_records import Records
from gpx.linalg.stopping import Residual, StoppingRule
from gpx.linalg.thin_products import DenseProduct

Product = Callable[[Tensor], Tensor]

MAX_CACHED_ENTRIES = 2**18
"""On a CPU, inner products are summed over pieces of about this many entries, which stay in a
cache."""

MIN_SUMMED_ROWS = 1024
"""Smallest number of rows of such a piece, however many columns there are."""


class CGIteration:
    """State of the recurrence. A step queues device work and reads nothing back to the host.

    Blocks are stored by columns and keep their addresses from ``begin`` on. Beside the product and
    the preconditioner, a step allocates no block and makes twelve passes over one (fourteen with a
    preconditioner). Every right-hand side is scaled to entries below two, so that no inner product
    under- or overflows (a float32 column of norm 1e-20 would look solved by zero).

    A "side" is one right-hand side; it is active until it meets the stopping rule or breaks down.
    """

    def __init__(
        self,
        matmul: Product | Tensor,
        rhs: Tensor,
        preconditioner: Product | None,
        x0: Tensor | None,
        stop: StoppingRule,
        product_dtype: torch.dtype | None,
        keep_first: bool = False,
    ) -> None:
        self.is_vector = rhs.ndim == 1
        given = rhs.detach().unsqueeze(-1) if self.is_vector else rhs.detach()
        self.scale = column_scales(given)
        self.rhs = by_columns(given / self.scale.unsqueeze(-2))
        self.preconditioner, self.stop = preconditioner, stop
        self.product_dtype = self.rhs.dtype if product_dtype is None else product_dtype
        self.matmul = DenseProduct(matmul) if isinstance(matmul, Tensor) else matmul
        self.rhs_norm = torch.linalg.vector_norm(self.rhs, dim=-2)
        if x0 is None:
            self.x = torch.zeros_like(self.rhs)
        else:
            start = (x0.detach().unsqueeze(-1) if x0.ndim == 1 else x0.detach()).expand(given.shape)
            # K v = 0 has one solution, whatever the start; its relative residual is defined there
            zero = (self.rhs_norm == 0.0).unsqueeze(-2)
            self.x = by_columns(torch.where(zero, 0.0, start / self.scale.unsqueeze(-2)))
        self.from_zero = x0 is None
        self.keep_first = keep_first
        self.products = 0
        self.zero = torch.zeros_like(self.rhs_norm)
        self.active = torch.ones_like(self.rhs_norm, dtype=torch.bool)
        self.undisturbed: int | None = None
        self.measures = Records(self.zero)
        self.actives = Records(self.active)
        self.curvatures = Records(self.zero)
        self.step_sizes = Records(self.zero)
        self.ratios = Records(self.zero)
        self._residual = Residual(
            self.rhs,
            self.zero,
            self.rhs_norm,
            scale=self.scale,
            preconditioned=preconditioner is not None,
        )
        self._trim = 0  # number of steps after the last ``trim``
        self._room: dict[torch.dtype, Tensor] = {}
        self._narrow: Tensor | None = None
        self._work: Tensor | None = None

    def product(self, vectors: Tensor) -> Tensor:
        """K times vectors (..., n, c), counted; valid until the next product or solve."""
        self.products += 1
        given = vectors.squeeze(-1) if self.is_vector else vectors
        out = self.matmul(given)
        if out.shape != given.shape:
            raise ShapeError(
                f"matmul returned {tuple(out.shape)} for vectors {tuple(given.shape)}; "
                "it must be the product with a square matrix"
            )
        return self._by_columns(out)

    def precondition(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors (..., n, c); valid until the next product or solve."""
        if self.preconditioner is None:
            return vectors
        given = vectors.squeeze(-1) if self.is_vector else vectors
        out = self.preconditioner(given)
        if out.shape != given.shape:
            raise ShapeError(
                f"the preconditioner returned {tuple(out.shape)} for residuals "
                f"{tuple(given.shape)}; it must solve with a square matrix"
            )
        return self._by_columns(out)

    def begin(self) -> None:
        """Residual and direction at the start."""
        if self.from_zero:
            self.r = self.rhs.clone()
        else:
            self.r = self.rhs - self.product(self.x)
        s = self.precondition(self.r)
        self.gamma = self._inner(self.r, s)
        self.p = s.clone()  # a preconditioner may return its argument, or keep what it returns
        self.first = s.clone() if self.keep_first else None
        self.slope = self.gamma
        self.observe()
        self.measures.append(self.measure)

    def step(self, *, looking: bool = False) -> None:
        """One step of every active side.

        Args:
            looking: whether the caller synchronises with the host after this step, so that the step
                may do so too, to skip the next direction where no side remains active.
        """
        kp = self._product_of_direction()
        curvature = self._inner(self.p, kp, self.curvatures.room())
        # false for NaN, too
        moving = (curvature > 0.0).logical_and_(curvature < math.inf).logical_and_(self.active)
        self.curvatures.append(curvature)
        self.actives.append(self.active)
        size = self._where(moving, self.slope / curvature, self.step_sizes)
        spread = size.unsqueeze(-2)
        self.x.addcmul_(spread, self.p)
        self.r.addcmul_(spread, kp, value=-1.0)
        early = self.preconditioner is not None and self.stop.norm_alone
        going = self._judge(moving) if early else moving
        if early and looking and not bool(going.any()):
            gamma = self._quadratic_form(self.r)
            self._where(moving, gamma / self.gamma, self.ratios)
        else:
            s = self.precondition(self.r)
            gamma = self._inner(self.r, s)
            ratio = self._where(moving, gamma / self.gamma, self.ratios)
            torch.addcmul(s, ratio.unsqueeze(-2), self.p, out=self.p)
        self.gamma = self.slope = gamma
        if not early:
            going = self._judge(moving)
        self.measures.append(self.measure)
        self.active = self._sound(going)

    def observe(self) -> None:
        """Measure the current residual; sides that are done, or hold NaN, become inactive."""
        self.active = self._sound(self._judge(self.active))

    def refresh(self, restart: bool) -> None:
        """Replace the recurrence's residual by the true one for the active sides.

        The direction is kept unless ``restart``. Its slope p^T r (equal to gamma in an undisturbed
        recurrence) is recomputed, so that the next step still ends at the minimum along it.
        """
        self._disturb()
        true = self.rhs - self.product(self.x)
        torch.where(self.active.unsqueeze(-2), true, self.r, out=self.r)
        s = self.precondition(self.r)
        self.gamma = self._inner(self.r, s)
        if restart:
            self.p.copy_(s)
        self.slope = self._inner(self.p, self.r)
        self.observe()

    def verify(self) -> tuple[float, int]:
        """Measure the true residual and reactivate the sides that fail the rule.

        Returns:
            the largest measure among those, zero where there is none, and ``trim()``.
        """
        stuck = self.flat() | self.broken()
        torch.sub(self.rhs, self.product(self.x), out=self.r)
        wanted = self.preconditioner is None or not self.stop.norm_alone
        if wanted or bool((self.gamma < 0.0).any()):
            self.gamma = self._inner(self.r, self.precondition(self.r))
        self.measure = self._measure()
        self.active = ~(self.measure <= self.stop.tolerance) & ~stuck & (self.gamma >= 0.0)
        worst = torch.where(self.active, self.measure, 0.0).max()
        worst, steps = torch.stack([worst.double(), self._moved().double()]).tolist()
        return worst, self._trimmed(int(steps))

    def restart(self) -> None:
        """Restart with the steepest descent direction of the current residual."""
        self._disturb()
        self.p.copy_(self.precondition(self.r))
        self.gamma = self.slope = self._inner(self.r, self.p)

    def flat(self) -> Tensor:
        """Which sides met a direction whose curvature is not positive and finite, (..., c)."""
        if not len(self.actives):
            return torch.zeros_like(self.active)
        return (self.actives.stacked() & ~_positive(self.curvatures.stacked())).any(0)

    def broken(self) -> Tensor:
        """Which sides hold NaN or infinite values, or have r^T Q^-1 r < 0, (..., c)."""
        return ~(torch.isfinite(self.measure) & (self.gamma >= 0.0))

    def met_curvatures(self) -> Tensor:
        """All p^T K p of active sides, (k,)."""
        if not len(self.actives):
            return self.zero[:0].flatten()
        return self.curvatures.stacked()[self.actives.stacked()]

    def trim(self) -> int:
        """Drop the records after the last step in which a side moved; returns that step."""
        known = self._trim == len(self.actives)
        return self._trim if known else self._trimmed(int(self._moved()))

    def _moved(self) -> Tensor:
        """The last step in which a side moved, counted from one; ()."""
        if not len(self.actives):
            return self.active.new_zeros((), dtype=torch.long)
        moved = self.actives.stacked().flatten(1).any(1)
        return (moved * torch.arange(1, len(moved) + 1, device=moved.device)).max()

    def _trimmed(self, steps: int) -> int:
        if len(self.actives):
            self.measures.truncate(steps + 1)
        for records in (self.step_sizes, self.ratios, self.actives, self.curvatures):
            records.truncate(steps)
        self._trim = steps
        return steps

    def history(self) -> Tensor:
        """The measures (t + 1, ..., c); constant for each side after its last active step."""
        measures = self.measures.stacked()
        if not len(self.actives):
            return measures
        met = self.actives.stacked()
        place = torch.arange(1, met.shape[0] + 1, device=met.device)
        place = place.view(-1, *[1] * (met.ndim - 1))
        last = torch.where(met, place, 0).cummax(0).values
        return torch.cat([measures[:1], measures.gather(0, last)])

    def iterations(self) -> Tensor:
        """Steps taken by each side, (..., c)."""
        if not len(self.actives):
            return torch.zeros_like(self.active, dtype=torch.long)
        return self.actives.stacked().sum(0)

    def _measure(self) -> Tensor:
        return self.stop.measure(self._residual.now(self.r, self.gamma))

    def _judge(self, active: Tensor) -> Tensor:
        """Measure the current residual; returns which of these sides do not meet the rule yet.

        The result is written into the row of the next step's record.
        """
        self.measure = self._measure()
        unmet = self.measure > self.stop.tolerance
        return torch.logical_and(unmet, active, out=self.actives.room())

    def _sound(self, going: Tensor) -> Tensor:
        """Those of the sides whose r^T Q^{-1} r is not negative."""
        if self.preconditioner is None:  # gamma is a sum of squares; if NaN, so was the measure
            return going
        return going.logical_and_(self.gamma >= 0.0)

    def _product_of_direction(self) -> Tensor:
        """K p, computed in ``product_dtype``."""
        if self.product_dtype == self.rhs.dtype:
            return self.product(self.p)
        if self._narrow is None:
            self._narrow = torch.empty_like(self.p, dtype=self.product_dtype)
        return self._in_room(self.product(self._narrow.copy_(self.p)), self.rhs.dtype)

    def _by_columns(self, out: Tensor) -> Tensor:
        """The result of a product or a solve, as (..., n, c) with every column contiguous."""
        block = out.unsqueeze(-1) if self.is_vector else out
        return block if block.mT.is_contiguous() else self._in_room(block, block.dtype)

    def _in_room(self, block: Tensor, dtype: torch.dtype) -> Tensor:
        """A copy by columns, in a buffer that the next product or solve overwrites."""
        if dtype not in self._room:
            self._room[dtype] = torch.empty_like(self.rhs, dtype=dtype)
        return self._room[dtype].copy_(block)

    def _inner(self, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        """Inner products of the columns, (..., c)."""
        n, columns = left.shape[-2], self.zero.numel()
        rows = max(MIN_SUMMED_ROWS, MAX_CACHED_ENTRIES // max(1, columns)) if left.is_cpu else n
        if self._work is None:
            self._work = by_columns(left[..., :rows, :].clone())
        if rows >= n:
            torch.mul(left, right, out=self._work)
            return self._work.sum(-2) if out is None else torch.sum(self._work, -2, out=out)
        sums = []
        for start in range(0, n, rows):
            part = slice(start, start + rows)
            work = self._work[..., : min(rows, n - start), :]
            sums.append(torch.mul(left[..., part, :], right[..., part, :], out=work).sum(-2))
        total = torch.stack(sums).sum(0)
        return total if out is None else out.copy_(total)

    def _where(self, moving: Tensor, values: Tensor, records: Records) -> Tensor:
        """The values of the moving sides and 0 elsewhere, appended to ``records``."""
        found = torch.where(moving, values, self.zero, out=records.room())
        records.append(found)
        return found

    def _quadratic_form(self, vectors: Tensor) -> Tensor:
        """v^T Q^{-1} v, (..., c), cheaper than a solve where the preconditioner provides it."""
        if isinstance(self.preconditioner, Preconditioner) and vectors.ndim == 2:
            return self.preconditioner.quadratic_form(vectors)
        return self._inner(vectors, self.precondition(vectors))

    def _disturb(self) -> None:
        if self.undisturbed is None:
            self.undisturbed = len(self.step_sizes)


def column_scales(block: Tensor) -> Tensor:
    """A power of two per column of (..., n, c) with |entries| / scale < 2, (..., c); 1 for zeros.

    Dividing by it is exact. No host synchronisation.
    """
    if block.shape[-2] == 0:
        return torch.ones_like(block.sum(-2))
    largest = torch.linalg.vector_norm(block, float("inf"), dim=-2)
    power = largest / (2.0 * torch.frexp(largest).mantissa)
    return torch.where((largest > 0.0) & (largest < math.inf), power, 1.0)


def by_columns(block: Tensor) -> Tensor:
    """The same (..., n, c) with every column contiguous.

    Sums over n and products with one coefficient per column then run over contiguous memory, and
    BLAS multiplies a matrix by few such columns up to a third faster.
    """
    return block.mT.contiguous().mT


def _positive(curvature: Tensor) -> Tensor:
    return (curvature > 0.0) & (curvature < math.inf)
