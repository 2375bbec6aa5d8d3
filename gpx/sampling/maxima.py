"""Where sampled functions are largest in a box."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import NotAvailable, ShapeError
from gpx.sampling.paths import Functions, each_at_its_own

FIRST_MOVE = 0.05
"""Length of a start's first step, as a share of the box's sides."""

SUFFICIENT = 1e-4
"""Share of the increase that the gradient promises, from which on a step is taken (Armijo)."""

MEMORY = 5
"""Of how many values the smallest must be exceeded: these step lengths are not monotone."""

LONGEST = 1e10
"""Largest step length, in units of the gradient's inverse: the box cuts it."""

LEAST_MOVE = 1e-9
"""An ascent whose next step is shorter than this share of the box's sides has arrived."""


class Maxima(NamedTuple):
    """The largest values found of every function.

    Attributes:
        x (num, d): where they are.
        values (num,): what they are.
    """

    x: Tensor
    values: Tensor


def maxima(
    functions: Functions,
    lower: Tensor,
    upper: Tensor,
    *,
    candidates: int = 1024,
    also: Tensor | None = None,
    starts: int = 4,
    steps: int = 60,
    seed: int = 0,
) -> Maxima:
    """Maximise every one of num functions in a box, all at the same time.

    All functions are evaluated at common candidates (scrambled Sobol points). From the best of
    each, in different regions, projected gradients with Barzilai and Borwein's step lengths ascend,
    every start by itself. What is found is never below a function's best candidate; whether it is
    the largest value of all nobody knows.

    Args:
        functions: x (n, d) -> (num, n), differentiable unless ``steps`` is 0.
        lower (d,), upper (d,): corners of the box.
        candidates: how many points are drawn.
        also (c, d): further candidates, such as the data's inputs; those outside are moved to the
            box's surface.
        starts: candidates from which a function's ascents start.
        steps: evaluations of an ascent, at most; 0: the best candidates are taken.
        seed: of the candidates.

    Raises:
        ShapeError: the box has no volume, or other dimensions than the candidates.
        NotAvailable: the functions have no derivatives.

    Cost: ``candidates`` values of all functions, and steps x starts values and gradients of each.

    Source: Wilson et al., "Efficiently sampling functions from Gaussian process posteriors", 2020,
    section 5; Birgin, Martinez and Raydan, "Nonmonotone spectral projected gradient methods", 2000.
    """
    sides = upper - lower
    if lower.ndim != 1 or lower.shape != upper.shape or not bool((sides > 0).all()):
        raise ShapeError(
            f"a box needs a lower end below the upper one for every input, got {lower.tolist()} "
            f"and {upper.tolist()}"
        )
    sobol = torch.quasirandom.SobolEngine(len(lower), scramble=True, seed=seed)
    unit = sobol.draw(candidates, dtype=torch.float64).to(lower)
    if also is not None:
        unit = torch.cat([unit, ((also - lower) / sides).clamp(0.0, 1.0)])

    with torch.no_grad():
        values = functions(lower + sides * unit)
        x, found = _best_apart(unit, values, starts)
    if steps:
        x, found = _ascended(functions, x, lower, sides, steps)
    largest = found.max(1)
    chosen = x[torch.arange(len(x), device=x.device), largest.indices]
    return Maxima(lower + sides * chosen, largest.values)


def _best_apart(unit: Tensor, values: Tensor, starts: int) -> tuple[Tensor, Tensor]:
    """For every function the best candidates (num, r, d) in regions of their own, and its values.

    Of candidates (C, d) with values (num, C), whoever is among the C / (4 r) nearest of one that
    was chosen is left out: the best are often neighbours, from which ascents end alike.
    """
    around = max(1, len(unit) // (4 * starts))
    left, chosen = values.clone(), []
    for _ in range(min(starts, len(unit) // around)):
        best = left.argmax(1)
        chosen.append(best)
        near = torch.cdist(unit[best], unit).topk(around, dim=1, largest=False).indices
        left.scatter_(1, near, -torch.inf)
        left.scatter_(1, best.unsqueeze(1), -torch.inf)
    rows = torch.stack(chosen, 1)
    return unit[rows], values.gather(1, rows)


def _ascended(
    functions: Functions, x: Tensor, lower: Tensor, sides: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Ends (num, r, d) and values (num, r) of ascents from x (num, r, d) in the unit box."""
    value, slope = _gradient(functions, x, lower, sides)
    move = FIRST_MOVE / slope.abs().amax(2, keepdim=True).clamp_min(1.0 / LONGEST)
    top, best = x, value
    recent = value.unsqueeze(2).repeat(1, 1, MEMORY)
    for step in range(steps - 1):
        there = (x + move * slope).clamp(0.0, 1.0)
        change = there - x
        if float(change.abs().max()) < LEAST_MOVE:
            break
        new_value, new_slope = _gradient(functions, there, lower, sides)
        taken = new_value >= recent.amin(2) + SUFFICIENT * (slope * change).sum(2)
        each = taken.unsqueeze(2)
        # Barzilai and Borwein's length where the function curves downwards, else twice the last
        curvature = -(change * (new_slope - slope)).sum(2, keepdim=True)
        length = change.square().sum(2, keepdim=True) / curvature
        longer = torch.where(curvature > 0.0, length, 2.0 * move).clamp_max(LONGEST)
        move = torch.where(each, longer, 0.25 * move)
        x, slope = torch.where(each, there, x), torch.where(each, new_slope, slope)
        value = torch.where(taken, new_value, value)
        recent[:, :, step % MEMORY] = value
        top = torch.where((value > best).unsqueeze(2), x, top)
        best = torch.maximum(value, best)
    return top, best


def _gradient(
    functions: Functions, x: Tensor, lower: Tensor, sides: Tensor
) -> tuple[Tensor, Tensor]:
    """Values (num, r) and gradients (num, r, d) at x (num, r, d) of the unit box."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        values = each_at_its_own(functions, lower + sides * x)
        if not values.requires_grad:
            raise NotAvailable(
                "these sampled functions have no derivatives with respect to their inputs; take "
                "the best of the candidates alone, with steps=0 and more candidates"
            )
        (slope,) = torch.autograd.grad(values.sum(), x)
    return values.detach(), slope
