"""Many small minimisations in step with each other, each with a quasi-Newton search of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

DECREASE = 1e-3
"""Share of the decrease by the slope that a step must reach (Armijo)."""
CURVATURE = 0.9
"""Share of the slope above which a step is too short (Wolfe)."""
LONGEST = 4.0
"""Factor by which a step that is too short grows at most."""
MARGIN = 0.1
"""Share of a bracket in which no step is tried, at either of its ends."""

GOING, STATIONARY, SETTLED, STUCK = 0, 1, 2, 3
"""State of a search: under way, the gradient vanished, the loss no longer falls, no lower value was
found along the gradient."""


class SeparateSearches:
    """L-BFGS with projection onto bounds, for p functions of K variables each.

    Every search has its own direction, step and end, as if it were alone; only their evaluations
    are asked for together, so that these can be one batch. All arithmetic is elementwise over the p
    searches, in float64 on the CPU.

    A line search ends at a point with sufficient decrease and a slope of at most ``CURVATURE``
    times that at its start (weak Wolfe conditions), by cubic interpolation within a bracket.
    Variables at a bound that would leave it are kept out of the direction; trial points are
    projected.

    Args:
        start (p, K): where they begin, within the bounds.
        trained (p, K): bool, variables that move.
        lower, upper (p, K): bounds; infinite where there are none.
        memory: number of correction pairs.
        ftol: end when the relative decrease of the loss is below this.
        gtol: end when the largest entry of the projected gradient is below this.
        max_line_search: limit of evaluations per line search.

    Attributes:
        point (p, K), loss (p,), gradient (p, K): where the searches stand.
        state (p,): ``GOING``, or how the search ended.

    Source: Nocedal and Wright 2006, algorithms 7.4 and 7.5; the bracketing of weak Wolfe steps by
    Lewis and Overton 2013, algorithm 2.6; the projection by Bertsekas 1982.
    """

    NAMES = (
        "point",
        "loss",
        "gradient",
        "state",
        "moves",
        "changes",
        "pairs",
        "direction",
        "step",
        "tries",
        "begun",
        "low",
        "high",
        "low_loss",
        "low_slope",
        "low_point",
        "low_gradient",
    )

    def __init__(
        self,
        start: Tensor,
        trained: Tensor,
        lower: Tensor,
        upper: Tensor,
        *,
        memory: int = 10,
        ftol: float = 1e-10,
        gtol: float = 1e-7,
        max_line_search: int = 20,
    ) -> None:
        p, k = start.shape
        self.trained = trained.cpu()
        self.lower = torch.where(self.trained, lower.cpu(), -math.inf)
        self.upper = torch.where(self.trained, upper.cpu(), math.inf)
        self.ftol, self.gtol, self.max_line_search = ftol, gtol, max_line_search
        self.point = start.detach().cpu().double().clamp(self.lower, self.upper)
        zeros = torch.zeros(p, dtype=torch.float64)
        self.loss, self.gradient = zeros + math.inf, torch.zeros_like(self.point)
        self.state = torch.where(self.trained.any(1), GOING, STATIONARY)
        # correction pairs, the newest last; unused ones are zero
        self.moves = torch.zeros(p, memory, k, dtype=torch.float64)
        self.changes = torch.zeros_like(self.moves)
        self.pairs = torch.zeros(p, dtype=torch.long)
        self.direction, self.step = torch.zeros_like(self.point), zeros.clone()
        self.tries = torch.zeros(p, dtype=torch.long)
        self.begun = torch.zeros(p, dtype=torch.bool)
        # ends of the bracket: the best step so far, and the shortest known to be too long
        self.low, self.high = zeros.clone(), zeros + math.inf
        self.low_loss, self.low_slope = zeros.clone(), zeros.clone()
        self.low_point, self.low_gradient = self.point.clone(), self.gradient.clone()

    def active(self) -> list[int]:
        """Numbers of the searches that are under way."""
        found: list[int] = (self.state == GOING).nonzero().squeeze(1).tolist()
        return found

    def only(self, searches: Sequence[int]) -> None:
        """Leave all other searches where they are."""
        others = torch.ones(len(self.state), dtype=torch.bool)
        others[list(searches)] = False
        self.state[others] = STATIONARY

    def trials(self, searches: list[int]) -> Tensor:
        """Points (a, K) at which these searches ask for losses and gradients."""
        at = torch.tensor(searches)
        tried = self.point[at] + self.step[at, None] * self.direction[at]
        return tried.clamp(self.lower[at], self.upper[at])

    def tell(self, searches: list[int], losses: Tensor, gradients: Tensor) -> None:
        """Take losses (a,) and gradients (a, K) at ``trials``; where not finite there is none."""
        at = torch.tensor(searches)
        tried = self.trials(searches)
        losses, gradients = losses.detach().cpu().double(), gradients.detach().cpu().double()
        gradients = gradients * self.trained[at]
        good = losses.isfinite() & gradients.isfinite().all(1)
        losses = torch.where(good, losses, math.inf)
        gradients = torch.where(good[:, None], gradients, 0.0)
        first = ~self.begun[at]
        self._begin(at[first], losses[first], gradients[first])
        rest = ~first
        self._advance(at[rest], tried[rest], losses[rest], gradients[rest])

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next step needs."""
        return {name: getattr(self, name) for name in self.NAMES}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``."""
        for name in self.NAMES:
            setattr(self, name, state[name].clone())

    def _begin(self, at: Tensor, losses: Tensor, gradients: Tensor) -> None:
        self.loss[at], self.gradient[at], self.begun[at] = losses, gradients, True
        self._turn(at)

    def _advance(self, at: Tensor, tried: Tensor, losses: Tensor, gradients: Tensor) -> None:
        """Judge a step of each line search."""
        if not len(at):
            return
        moved = tried - self.point[at]
        step = self.step[at]
        expected = (self.gradient[at] * moved).sum(1)  # of the loss, by the slope at the start
        # a decrease that rounding hides is one where the slope has fallen as well
        enough = losses <= self.loss[at] + DECREASE * expected
        slope = (gradients * moved).sum(1)
        full = self.point[at] + step[:, None] * self.direction[at]
        clipped = (full != tried).any(1)
        flat = (slope >= CURVATURE * expected) | clipped
        self.tries[at] += 1
        taken = enough & flat
        self._take(at[taken], tried[taken], losses[taken], gradients[taken])

        longer, shorter = ~taken & enough, ~enough
        by_step = slope / step  # along the direction
        upto = self._next_step(at, step, losses, by_step, shorter)
        low = at[longer]
        self.low[low], self.low_loss[low] = step[longer], losses[longer]
        self.low_slope[low] = by_step[longer]
        self.low_point[low], self.low_gradient[low] = tried[longer], gradients[longer]
        self.high[at[shorter]] = step[shorter]
        going = ~taken
        self.step[at[going]] = upto[going]
        narrow = self.high[at] - self.low[at] <= 1e-14 * self.high[at].nan_to_num(posinf=0.0)
        spent = going & ((self.tries[at] >= self.max_line_search) | narrow)
        self._give_up(at[spent])

    def _next_step(
        self, at: Tensor, step: Tensor, losses: Tensor, slopes: Tensor, shorter: Tensor
    ) -> Tensor:
        """The next step to try, from the cubic through the bracket's better end and this step."""
        low, high = self.low[at], torch.where(shorter, step, self.high[at])
        left_loss, left_slope = self.low_loss[at], self.low_slope[at]
        width = step - low
        third = left_slope + slopes - 3.0 * (losses - left_loss) / width
        inner = third.square() - left_slope * slopes
        root = inner.clamp_min(0.0).sqrt() * width.sign()
        cubic = step - width * (slopes + root - third) / (slopes - left_slope + 2.0 * root)
        usable = cubic.isfinite() & (inner >= 0.0)
        least = torch.where(shorter, low, step)
        bounded = high.isfinite()
        middle = 0.5 * (least + high)
        inside = torch.where(usable, cubic, middle)
        gap = MARGIN * (high - least)
        inside = torch.maximum(torch.minimum(inside, high - gap), least + gap)
        beyond = torch.where(usable, cubic, 2.0 * step)
        beyond = torch.maximum(torch.minimum(beyond, LONGEST * step), (1.0 + MARGIN) * step)
        return torch.where(bounded, inside, beyond)

    def _give_up(self, at: Tensor) -> None:
        """End line searches without a step that satisfies both conditions."""
        lower = self.low[at] > 0.0
        some = at[lower]  # a decrease was found, at least
        self._take(some, self.low_point[some], self.low_loss[some], self.low_gradient[some])
        none = at[~lower]
        again = self.pairs[none] > 0
        self.state[none[~again]] = STUCK
        self._forget(none[again])
        self._turn(none[again])

    def _take(self, at: Tensor, point: Tensor, loss: Tensor, gradient: Tensor) -> None:
        """Move to a point; ends searches that have arrived."""
        if not len(at):
            return
        move, change = point - self.point[at], gradient - self.gradient[at]
        curved = (move * change).sum(1) > torch.finfo(torch.float64).eps * change.square().sum(1)
        kept = at[curved]
        self.moves[kept] = torch.cat([self.moves[kept, 1:], move[curved, None]], 1)
        self.changes[kept] = torch.cat([self.changes[kept, 1:], change[curved, None]], 1)
        self.pairs[kept] += 1
        scale = torch.maximum(self.loss[at].abs(), loss.abs()).clamp_min(1.0)
        settled = self.loss[at] - loss <= self.ftol * scale
        self.point[at], self.loss[at], self.gradient[at] = point, loss, gradient
        self.state[at[settled]] = SETTLED
        self._turn(at[~settled])

    def _forget(self, at: Tensor) -> None:
        self.moves[at], self.changes[at], self.pairs[at] = 0.0, 0.0, 0

    def _turn(self, at: Tensor) -> None:
        """Begin a line search along a new direction, or end where the gradient has vanished."""
        point, gradient = self.point[at], self.gradient[at]
        left = (point - gradient).clamp(self.lower[at], self.upper[at]) - point
        arrived = (left.abs() * self.trained[at]).amax(1) <= self.gtol
        self.state[at[arrived]] = STATIONARY
        at = at[~arrived]
        if not len(at):
            return
        point, gradient = self.point[at], self.gradient[at]
        held = (point <= self.lower[at]) & (gradient > 0.0)
        held |= (point >= self.upper[at]) & (gradient < 0.0)
        free = (self.trained[at] & ~held).double()
        direction = self._quasi_newton(at, free)
        slope = (gradient * direction).sum(1)
        down = slope < 0.0
        steepest = -gradient * free
        self._forget(at[~down])
        direction = torch.where(down[:, None], direction, steepest)
        slope = torch.where(down, slope, (gradient * steepest).sum(1))
        first = 1.0 / direction.norm(dim=1).clamp_min(1e-300)
        self.direction[at] = direction
        self.step[at] = torch.where(self.pairs[at] > 0, 1.0, first.clamp_max(1.0))
        self.tries[at], self.low[at], self.high[at] = 0, 0.0, math.inf
        self.low_loss[at], self.low_slope[at] = self.loss[at], slope

    def _quasi_newton(self, at: Tensor, free: Tensor) -> Tensor:
        """Minus the approximate inverse Hessian times the gradient, among free variables."""
        moves, changes = self.moves[at] * free[:, None], self.changes[at] * free[:, None]
        products, squares = (moves * changes).sum(2), changes.square().sum(2)
        used = products > torch.finfo(torch.float64).eps * squares  # not those that are zero
        inverse = torch.where(used, 1.0 / torch.where(used, products, 1.0), 0.0)
        found = self.gradient[at] * free
        shares = torch.zeros_like(products)
        scale = torch.ones(len(at), dtype=torch.float64)
        for place in reversed(range(moves.shape[1])):
            shares[:, place] = inverse[:, place] * (moves[:, place] * found).sum(1)
            found = found - shares[:, place, None] * changes[:, place]
        for place in range(moves.shape[1]):  # the newest pair that is used comes last
            each = products[:, place] / torch.where(used[:, place], squares[:, place], 1.0)
            scale = torch.where(used[:, place], each, scale)
        found = scale[:, None] * found
        for place in range(moves.shape[1]):
            back = inverse[:, place] * (changes[:, place] * found).sum(1)
            found = found + (shares[:, place] - back)[:, None] * moves[:, place]
        return -found * free
