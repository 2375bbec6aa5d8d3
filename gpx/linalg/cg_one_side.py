"""The recurrence of conjugate gradients for one right-hand side on a CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gpx.linalg.cg_iteration import CGIteration


class Numbers:
    """``Records`` of one number per step, kept on the host.

    Args:
        like: a tensor of one entry: shape and dtype of ``stacked``'s rows.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._numbers: list[float] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def room(self) -> None:
        """No row to write into: records are Python numbers."""

    def append(self, number: Tensor | float) -> None:
        """Append one number."""
        self._numbers.append(float(number))

    def truncate(self, count: int) -> None:
        """Drop all but the first ``count`` records."""
        del self._numbers[count:]

    def stacked(self) -> Tensor:
        """All records, (t, ...); there must be at least one."""
        found = torch.tensor(self._numbers, dtype=torch.float64, device=self._like.device)
        return found.to(self._like.dtype).view(-1, *self._like.shape)


class OneSide(CGIteration):
    """The same recurrence with Python numbers as coefficients.

    On short vectors a step costs as much as the number of torch calls it makes: 10 here, 22 with
    one-entry tensors for the coefficients and for which sides move.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.measures: Any = Numbers(self.zero)
        self.actives: Any = Numbers(self.active)
        self.curvatures: Any = Numbers(self.zero)
        self.step_sizes: Any = Numbers(self.zero)
        self.ratios: Any = Numbers(self.zero)

    def step(self, *, looking: bool = False) -> None:
        """As in ``CGIteration``; the side is active, since the caller checks before every step."""
        kp = self._product_of_direction()
        curvature, gamma = self._inner(self.p, kp).item(), self.gamma.item()
        moving = 0.0 < curvature < math.inf  # false for NaN, too
        self.curvatures.append(curvature)
        self.actives.append(1.0)
        size = self._held(self.slope.item() / curvature) if moving else 0.0
        self.step_sizes.append(size)
        self.x.add_(self.p, alpha=size)
        self.r.add_(kp, alpha=-size)
        early = self.preconditioner is not None and self.stop.norm_alone
        going = moving
        if early:
            going = self._unmet() and moving
        if early and looking and not going:
            self.gamma = self._quadratic_form(self.r)
            self.ratios.append(_ratio(self.gamma.item(), gamma, moving))
        else:
            s = self.precondition(self.r)
            self.gamma = self._inner(self.r, s)
            ratio = self._held(_ratio(self.gamma.item(), gamma, moving))
            self.ratios.append(ratio)
            torch.add(s, self.p, alpha=ratio, out=self.p)
        self.slope = self.gamma
        if not early:
            going = self._unmet() and moving
        self.measures.append(self.measure)
        if self.preconditioner is not None:
            going = going and self.gamma.item() >= 0.0
        if not going:
            self.active = torch.zeros_like(self.active)

    def _held(self, number: float) -> float:
        """The number as the vectors' dtype would hold it: infinite beyond its range."""
        within = not abs(number) > torch.finfo(self.x.dtype).max  # true for NaN, too
        return number if within else math.copysign(math.inf, number)

    def _unmet(self) -> bool:
        self.measure = self._measure()
        return self.measure.item() > self.stop.tolerance


def _ratio(gamma: float, before: float, moving: bool) -> float:
    """The coefficient of the last direction in the next one."""
    if not moving:
        return 0.0
    return gamma / before if before else math.nan
