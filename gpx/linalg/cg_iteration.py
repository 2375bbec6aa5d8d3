"""The recurrence of preconditioned conjugate gradients on blocks of right-hand sides."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.preconditioners.base import Preconditioner
from gpx.linalg.stopping import Residual, StoppingRule

Product = Callable[[Tensor], Tensor]

RECORDS = 64
"""Rows of a block of records."""


class Records:
    """Tensors of one shape, one a step, kept in blocks.

    Small tensors that are kept one by one between large temporaries split the holes that these
    leave on the heap: every step would then take fresh memory for its vectors.
    """

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, row: Tensor) -> None:
        """Keep a copy."""
        block, place = divmod(self._count, RECORDS)
        if block == len(self._blocks):
            self._blocks.append(row.new_empty(RECORDS, *row.shape))
        self._blocks[block][place].copy_(row)
        self._count += 1

    def truncate(self, count: int) -> None:
        """Forget all but the first ``count``."""
        self._count = min(self._count, count)

    def stacked(self) -> Tensor:
        """All of them, (t, ...), t at least one."""
        return torch.cat(self._blocks)[: self._count]


class CGIteration:
    """The vectors of the recurrence, which step by step queues device work and reads nothing back.

    Every right-hand side is scaled to entries below two, so that no inner product under- or
    overflows (a float32 column of norm 1e-20 would look solved by zero).
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
        self.measures = Records()
        self.actives = Records()
        self.curvatures = Records()
        self.step_sizes = Records()
        self.ratios = Records()

    def product(self, vectors: Tensor) -> Tensor:
        """K times vectors (..., n, c), counted; with a dense K, valid until the next product."""
        self.products += 1
        given = vectors.squeeze(-1) if self.is_vector else vectors
        out = self.matmul(given)
        if out.shape != given.shape:
            raise ShapeError(
                f"matmul returned {tuple(out.shape)} for vectors {tuple(given.shape)}; "
                "it must be the product with a square matrix"
            )
        return by_columns(out.unsqueeze(-1) if self.is_vector else out)

    def precondition(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors (..., n, c)."""
        if self.preconditioner is None:
            return vectors
        given = vectors.squeeze(-1) if self.is_vector else vectors
        out = self.preconditioner(given)
        if out.shape != given.shape:
            raise ShapeError(
                f"the preconditioner returned {tuple(out.shape)} for residuals "
                f"{tuple(given.shape)}; it must solve with a square matrix"
            )
        return by_columns(out.unsqueeze(-1) if self.is_vector else out)

    def begin(self) -> None:
        """Residual and direction at the start."""
        if self.from_zero:
            self.r = self.rhs.clone()
        else:
            self.r = self.rhs - self.product(self.x)
        s = self.precondition(self.r)
        self.gamma = (self.r * s).sum(-2)
        self.p = s.clone()  # a preconditioner may return its argument, or keep what it returns
        self.first = s.clone() if self.keep_first else None
        self.slope = self.gamma
        self.observe()
        self.measures.append(self.measure)

    def step(self, *, looking: bool = False) -> None:
        """One step of every side in motion.

        Args:
            looking: whether the caller looks at the host after it, so that this may: where no side
                goes on, no further direction is made.
        """
        if self.product_dtype == self.rhs.dtype:
            kp = self.product(self.p)
        else:
            kp = self.product(self.p.to(self.product_dtype)).to(self.rhs.dtype)
        curvature = (self.p * kp).sum(-2)
        # false for NaN, too
        moving = (curvature > 0.0).logical_and_(curvature < math.inf).logical_and_(self.active)
        size = torch.where(moving, self.slope / curvature, self.zero)
        self.x.addcmul_(size.unsqueeze(-2), self.p)
        self.r.addcmul_(size.unsqueeze(-2), kp, value=-1.0)
        if looking and self._all_met(moving):
            gamma = self._quadratic_form(self.r)
            ratio = torch.where(moving, gamma / self.gamma, self.zero)
        else:
            s = self.precondition(self.r)
            gamma = (self.r * s).sum(-2)
            ratio = torch.where(moving, gamma / self.gamma, self.zero)
            self.p.mul_(ratio.unsqueeze(-2)).add_(s)
        self.gamma = self.slope = gamma
        self.actives.append(self.active)
        self.curvatures.append(curvature)
        self.step_sizes.append(size)
        self.ratios.append(ratio)
        self.active = moving
        self.observe()
        self.measures.append(self.measure)

    def observe(self) -> None:
        """Judge the current residual and freeze the sides that are done, or broken by NaN."""
        self.measure = self._measure()
        going = (self.measure > self.stop.tolerance).logical_and_(self.gamma >= 0.0)
        self.active = going.logical_and_(self.active)

    def refresh(self, restart: bool) -> None:
        """Put the true residual in the place of the recurrence's for the sides in motion.

        The direction is kept unless ``restart``; its slope p^T r, which is gamma in an undisturbed
        recurrence, is taken anew so that the next step still ends at the minimum along it.
        """
        self._disturb()
        true = self.rhs - self.product(self.x)
        self.r = torch.where(self.active.unsqueeze(-2), true, self.r)
        s = self.precondition(self.r)
        self.gamma = (self.r * s).sum(-2)
        if restart:
            self.p = s.clone()
        self.slope = (self.p * self.r).sum(-2)
        self.observe()

    def verify(self) -> float:
        """Judge the true residual; wake the sides that fail the rule and return their worst."""
        stuck = self.flat() | self.broken()
        self.r = self.rhs - self.product(self.x)
        wanted = self.preconditioner is None or not self.stop.norm_alone
        if wanted or bool((self.gamma < 0.0).any()):
            self.gamma = (self.r * self.precondition(self.r)).sum(-2)
        self.measure = self._measure()
        self.active = ~(self.measure <= self.stop.tolerance) & ~stuck & (self.gamma >= 0.0)
        return float(torch.where(self.active, self.measure, 0.0).max())

    def restart(self) -> None:
        """Go on along the steepest descent from the current residual."""
        self._disturb()
        self.p = self.precondition(self.r).clone()
        self.gamma = self.slope = (self.r * self.p).sum(-2)

    def flat(self) -> Tensor:
        """Which sides met a direction of no positive (or no finite) curvature, (..., c)."""
        if not len(self.actives):
            return torch.zeros_like(self.active)
        return (self.actives.stacked() & ~_positive(self.curvatures.stacked())).any(0)

    def broken(self) -> Tensor:
        """Which sides ended in NaN or infinite values, or at r^T Q^-1 r < 0, (..., c)."""
        return ~(torch.isfinite(self.measure) & (self.gamma >= 0.0))

    def met_curvatures(self) -> Tensor:
        """All p^T K p of sides in motion, (k,)."""
        if not len(self.actives):
            return self.zero[:0].flatten()
        return self.curvatures.stacked()[self.actives.stacked()]

    def trim(self) -> int:
        """Drop the records of steps in which no side moved; the number of steps that count."""
        if not len(self.actives):
            return 0
        moved = self.actives.stacked().flatten(1).any(1)
        steps = int((moved * torch.arange(1, len(moved) + 1, device=moved.device)).max())
        self.measures.truncate(steps + 1)
        for records in (self.step_sizes, self.ratios, self.actives, self.curvatures):
            records.truncate(steps)
        return steps

    def history(self) -> Tensor:
        """The measures (t + 1, ..., c), each side's constant from its last step in motion on."""
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
        preconditioned = self.preconditioner is not None
        return self.stop.measure(
            Residual(
                self.r,
                self.gamma,
                self.rhs_norm,
                scale=self.scale,
                preconditioned=preconditioned,
            )
        )

    def _all_met(self, moving: Tensor) -> bool:
        """Whether a rule that needs no preconditioned residual holds for all sides in motion."""
        if self.preconditioner is None or not self.stop.norm_alone:
            return False
        return not bool((moving & (self._measure() > self.stop.tolerance)).any())

    def _quadratic_form(self, vectors: Tensor) -> Tensor:
        """v^T Q^{-1} v, (..., c), at less than a solve where the preconditioner knows how."""
        if isinstance(self.preconditioner, Preconditioner) and vectors.ndim == 2:
            return self.preconditioner.quadratic_form(vectors)
        return (vectors * self.precondition(vectors)).sum(-2)

    def _disturb(self) -> None:
        if self.undisturbed is None:
            self.undisturbed = len(self.step_sizes)


class DenseProduct:
    """Products with a dense matrix (n, n), all written into one buffer that lies by columns."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix.detach()
        self._cast: dict[torch.dtype, Tensor] = {self.matrix.dtype: self.matrix}
        self._buffer: Tensor | None = None

    def __call__(self, vectors: Tensor) -> Tensor:
        """K times vectors (n,) or (..., n, c), in their dtype; valid until the next call."""
        matrix = self._cast.get(vectors.dtype)
        if matrix is None:
            matrix = self._cast[vectors.dtype] = self.matrix.to(vectors.dtype)
        if matrix.ndim > 2 or vectors.ndim != 2:
            return matrix @ vectors
        if self._buffer is None or self._buffer.dtype != vectors.dtype:
            self._buffer = torch.empty_like(vectors.mT).mT
        return torch.mm(matrix, vectors, out=self._buffer)


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
