"""The recurrence of preconditioned conjugate gradients on blocks of right-hand sides."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.stopping import Residual, StoppingRule

Product = Callable[[Tensor], Tensor]


class CGIteration:
    """The vectors of the recurrence; every method queues device work and reads nothing back."""

    def __init__(
        self,
        matmul: Product,
        rhs: Tensor,
        preconditioner: Product | None,
        x0: Tensor | None,
        stop: StoppingRule,
        product_dtype: torch.dtype | None,
    ) -> None:
        self.is_vector = rhs.ndim == 1
        self.rhs = by_columns(rhs.detach().unsqueeze(-1) if self.is_vector else rhs.detach())
        self.matmul, self.preconditioner, self.stop = matmul, preconditioner, stop
        self.product_dtype = self.rhs.dtype if product_dtype is None else product_dtype
        if x0 is None:
            self.x = torch.zeros_like(self.rhs)
        else:
            start = x0.detach().unsqueeze(-1) if x0.ndim == 1 else x0.detach()
            self.x = by_columns(start.expand(self.rhs.shape)).clone()
        self.from_zero = x0 is None
        self.products = 0
        self.rhs_norm = torch.linalg.vector_norm(self.rhs, dim=-2)
        sides = self.rhs_norm.shape
        device = self.rhs.device
        self.active = torch.ones(sides, dtype=torch.bool, device=device)
        self.flat = torch.zeros_like(self.active)
        self.broken = torch.zeros_like(self.active)
        self.iterations = torch.zeros(sides, dtype=torch.long, device=device)
        self.steps = torch.zeros((), dtype=torch.long, device=device)  # with any side in motion
        self.curvature = torch.zeros_like(self.rhs_norm)
        self.undisturbed: int | None = None
        self.history: list[Tensor] = []
        self.step_sizes: list[Tensor] = []
        self.ratios: list[Tensor] = []

    def product(self, vectors: Tensor) -> Tensor:
        """K times vectors (..., n, c), counted."""
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
        out = self.preconditioner(vectors.squeeze(-1) if self.is_vector else vectors)
        return out.unsqueeze(-1) if self.is_vector else out

    def begin(self) -> None:
        """Residual and direction at the start."""
        if self.from_zero:
            self.r = self.rhs.clone()
        else:
            self.r = self.rhs - self.product(self.x)
        s = self.precondition(self.r)
        self.gamma = (self.r * s).sum(-2)
        self.p = s.clone() if s is self.r else s
        self.slope = self.gamma
        self.observe()
        self.history.append(self.measure)

    def step(self) -> None:
        """One step of every side in motion."""
        if self.product_dtype == self.rhs.dtype:
            kp = self.product(self.p)
        else:
            kp = self.product(self.p.to(self.product_dtype)).to(self.rhs.dtype)
        curvature = (self.p * kp).sum(-2)
        positive = (curvature > 0.0) & (curvature < math.inf)  # false for NaN, too
        moving = self.active & positive
        self.flat = self.flat | (self.active & ~positive)
        self.curvature = torch.where(self.active, curvature, self.curvature)
        size = torch.where(moving, self.slope / curvature, 0.0)
        self.x.addcmul_(size.unsqueeze(-2), self.p)
        self.r.addcmul_(size.unsqueeze(-2), kp, value=-1.0)
        s = self.precondition(self.r)
        gamma = (self.r * s).sum(-2)
        ratio = torch.where(moving, gamma / self.gamma, 0.0)
        self.p.mul_(ratio.unsqueeze(-2)).add_(s)
        self.gamma = self.slope = gamma
        self.iterations += self.active
        self.steps += self.active.any()
        self.step_sizes.append(size)
        self.ratios.append(ratio)
        self.active = moving
        self.observe()
        self.history.append(torch.where(moving, self.measure, self.history[-1]))

    def observe(self) -> None:
        """Judge the current residual and freeze the sides that are done."""
        self.measure = self._measure()
        self.broken = self.broken | (
            self.active & ~(torch.isfinite(self.measure) & (self.gamma >= 0.0))
        )
        self.active = self.active & ~(self.measure <= self.stop.tolerance) & ~self.broken

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
            self.p = s.clone() if s is self.r else s
        self.slope = (self.p * self.r).sum(-2)
        self.observe()

    def verify(self) -> float:
        """Judge the true residual; wake the sides that fail the rule and return their worst."""
        self.r = self.rhs - self.product(self.x)
        self.gamma = (self.r * self.precondition(self.r)).sum(-2)
        self.measure = self._measure()
        met = self.measure <= self.stop.tolerance
        self.active = ~met & ~self.flat & ~self.broken
        return float(torch.where(self.active, self.measure, 0.0).max())

    def restart(self) -> None:
        """Go on along the steepest descent from the current residual."""
        self._disturb()
        s = self.precondition(self.r)
        self.p = s.clone() if s is self.r else s
        self.slope = self.gamma

    def trim(self) -> int:
        """Drop the records of steps in which no side moved; the number of steps that count."""
        steps = int(self.steps)
        del self.history[steps + 1 :], self.step_sizes[steps:], self.ratios[steps:]
        return steps

    def _measure(self) -> Tensor:
        preconditioned = self.preconditioner is not None
        return self.stop.measure(
            Residual(self.r, self.gamma, self.rhs_norm, preconditioned=preconditioned)
        )

    def _disturb(self) -> None:
        if self.undisturbed is None:
            self.undisturbed = len(self.step_sizes)


def by_columns(block: Tensor) -> Tensor:
    """The same (..., n, c) with every column contiguous.

    Sums over n and products with one coefficient per column then run over contiguous memory, and
    BLAS multiplies a matrix by few such columns up to a third faster.
    """
    return block.mT.contiguous().mT
