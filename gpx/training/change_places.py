"""Places of change points from which training starts: those of the best of several short fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor, nn

from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.kernels import ChangePoints
from gpx.training.maximise import Say
from gpx.training.several_fits import SHORTER, Fit, lengthen, with_lengthscales

MAX_PLACES = 5
"""Most sets of places that are tried for the changes of one kernel."""
PLACING_ROWS, PLACING_EVALUATIONS = 200, 20
"""Rows and evaluations of the evidence of each short fit."""


def open_changes(kernel: nn.Module, num_inputs: int) -> list[int]:
    """Which of ``kernel.modules()`` are learned change points without places of their own."""
    return [
        number
        for number, part in enumerate(kernel.modules())
        if isinstance(part, ChangePoints)
        and part.searched
        and part.locations.requires_grad
        and part.axis < num_inputs
    ]


def place_changes(
    fit: Callable[[Callable[[nn.Module], None]], Fit],
    kernel: nn.Module,
    number: int,
    x: Tensor,
    say: Say,
) -> Fit | None:
    """The best of short fits from several places of the changes; None if all failed.

    A search cannot move a change over rows that the kernel of the wrong side explains badly: it
    widens the change, or takes these rows for noise. Kernels are also started from a quarter of
    their lengthscales, as a long one takes the faster side for noise.

    Args:
        fit: fits a copy of the kernel that it lets its argument change before.
        kernel: at the start.
        number: of its change points, as in ``open_changes``.
        x (n, d): rows.
        say: takes lines for the user.
    """
    changes = _part(kernel, number)
    factors = (1.0, SHORTER[0]) if with_lengthscales(kernel) else (1.0,)
    fits = []
    for places in _candidates(changes, x):
        for factor in factors:

            def change(copy: nn.Module, places: Tensor = places, factor: float = factor) -> None:
                with torch.no_grad():
                    _part(copy, number).locations.copy_(places)
                lengthen(copy, factor)

            try:
                fits.append(fit(change))
            except (NotPositiveDefinite, DidNotConverge):
                continue
    if not fits:
        return None
    best = max(fits, key=lambda each: each.value)
    found = _part(best.models[0].kernel, number).locations.tolist()
    listed = ", ".join(f"{place:.3g}" for place in found)
    say(
        f"init: changes start at {listed} of standardised input {changes.axis + 1}, by the best of "
        f"{len(fits)} short fits; locations= sets the start"
    )
    return best


def _part(kernel: nn.Module, number: int) -> ChangePoints:
    found = list(kernel.modules())[number]
    assert isinstance(found, ChangePoints)
    return found


def _candidates(kernel: ChangePoints, x: Tensor) -> Iterator[Tensor]:
    """Increasing places, at quantiles of the input in equal steps."""
    count = len(kernel.locations)
    steps = count + 1
    while math.comb(steps, count) <= MAX_PLACES:
        steps += 1
    shares = torch.arange(1, steps, dtype=x.dtype, device=x.device) / steps
    places = x[:, kernel.axis].quantile(shares).unique()
    for chosen in combinations(places, min(count, len(places))):
        if len(chosen) == count:
            yield torch.stack(chosen)
