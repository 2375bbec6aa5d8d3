"""Maxima of sampled functions in a box."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import NotAvailable, ShapeError
from gpx.sampling.paths import Functions, evaluate_each

FIRST_STEP = 0.05
"""Length of the first step of an ascent, as a fraction of the box's sides."""

ARMIJO = 1e-4
"""Fraction of the increase predicted by the gradient that a step must achieve."""

MEMORY = 5
"""A step must exceed the smallest of so many last values (nonmonotone line search)."""

MAX_STEP = 1e10
"""Largest step length, as a factor of the gradient, before projection onto the box."""

MIN_STEP = 1e-9
"""Ascents end when all steps are shorter than this fraction of the box's sides."""


class Maxima(NamedTuple):
    """The largest value found of every function.

    Attributes:
        x (num, d): their inputs.
        values (num,): the values.
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
    """Maximise each of num functions in a box, all at the same time.

    All functions are evaluated at common candidates (scrambled Sobol points). Independent projected
    gradient ascents with Barzilai-Borwein step lengths start from the best candidates of each
    function in different regions. The result is at least the function's best candidate; it may be a
    local maximum.

    Args:
        functions: x (n, d) -> (num, n), differentiable unless ``steps`` is 0.
        lower (d,), upper (d,): corners of the box.
        candidates: number of Sobol points.
        also (c, d): further candidates, such as the data's inputs; those outside are projected onto
            the box.
        starts: ascents per function.
        steps: largest number of evaluations per ascent; 0 returns the best candidates.
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
        x, found = _separate_starts(unit, values, starts)
    if steps:
        x, found = _ascend(functions, x, lower, sides, steps)
    largest = found.max(1)
    chosen = x[torch.arange(len(x), device=x.device), largest.indices]
    return Maxima(lower + sides * chosen, largest.values)


def _separate_starts(unit: Tensor, values: Tensor, starts: int) -> tuple[Tensor, Tensor]:
    """For every function the best candidates (num, r, d) in separate regions, and their values.

    Of candidates (C, d) with values (num, C), the C / (4 r) nearest neighbours of a chosen one are
    excluded: the best candidates are often neighbours, whose ascents end at the same maximum.
    """
    excluded = max(1, len(unit) // (4 * starts))
    remaining, chosen = values.clone(), []
    for _ in range(min(starts, len(unit) // excluded)):
        best = remaining.argmax(1)
        chosen.append(best)
        near = torch.cdist(unit[best], unit).topk(excluded, dim=1, largest=False).indices
        remaining.scatter_(1, near, -torch.inf)
        remaining.scatter_(1, best.unsqueeze(1), -torch.inf)
    rows = torch.stack(chosen, 1)
    return unit[rows], values.gather(1, rows)


def _ascend(
    functions: Functions, x: Tensor, lower: Tensor, sides: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Best points (num, r, d) and values (num, r) of ascents from x (num, r, d) in the unit box."""
    value, slope = _gradient(functions, x, lower, sides)
    length = FIRST_STEP / slope.abs().amax(2, keepdim=True).clamp_min(1.0 / MAX_STEP)
    best_x, best = x, value
    recent = value.unsqueeze(2).repeat(1, 1, MEMORY)
    for step in range(steps - 1):
        proposal = (x + length * slope).clamp(0.0, 1.0)
        change = proposal - x
        if float(change.abs().max()) < MIN_STEP:
            break
        new_value, new_slope = _gradient(functions, proposal, lower, sides)
        accepted = new_value >= recent.amin(2) + ARMIJO * (slope * change).sum(2)
        mask = accepted.unsqueeze(2)
        # the Barzilai-Borwein length if the curvature is negative, otherwise twice the last length
        curvature = -(change * (new_slope - slope)).sum(2, keepdim=True)
        spectral = change.square().sum(2, keepdim=True) / curvature
        longer = torch.where(curvature > 0.0, spectral, 2.0 * length).clamp_max(MAX_STEP)
        length = torch.where(mask, longer, 0.25 * length)
        x, slope = torch.where(mask, proposal, x), torch.where(mask, new_slope, slope)
        value = torch.where(accepted, new_value, value)
        recent[:, :, step % MEMORY] = value
        best_x = torch.where((value > best).unsqueeze(2), x, best_x)
        best = torch.maximum(value, best)
    return best_x, best


def _gradient(
    functions: Functions, x: Tensor, lower: Tensor, sides: Tensor
) -> tuple[Tensor, Tensor]:
    """Values (num, r) and gradients (num, r, d) at x (num, r, d) of the unit box."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        refused = NotAvailable(
            "these sampled functions have no derivatives with respect to their inputs; use "
            "only the best candidates, with steps=0 and more candidates"
        )
        try:
            values = evaluate_each(functions, lower + sides * x)
        except NotAvailable as error:
            raise refused from error
        if not values.requires_grad:
            raise refused
        (slope,) = torch.autograd.grad(values.sum(), x)
    return values.detach(), slope
