"""Fits from several lengthscales, as a first one may take for noise what is faster than it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import scipy.optimize
import torch
from torch import Tensor, nn

from gpx.constraints import FLOOR, floor_of, positive_parameters, set_above_floor
from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.kernels.stationary import Stationary
from gpx.models import ExactGP
from gpx.training.maximise import Say

SHORTER = (1 / 4, 1 / 16)
"""Factors of lengthscales for fits that follow one which explains nothing."""
REQUIRED_GAIN = 3.0
"""A fit explains something if its evidence exceeds that of independent noise by these nats (odds of
20 to 1) and one for each learned hyperparameter of the kernel (Akaike 1974)."""


class Fit(NamedTuple):
    """Models fitted to some rows, one per output, which share a kernel.

    Attributes:
        value: evidence plus log density of the priors, per target.
        models: the models.
        gain: evidence minus that of independent noise, in nats.
        gain_at_start: the same before anything was fitted; -inf: not evaluated.
    """

    value: float
    models: Sequence[Any]
    gain: float
    gain_at_start: float = -math.inf

    @property
    def explains(self) -> bool:
        """Whether the evidence is clearly above that of independent noise."""
        return explains(self.models[0].kernel, self.gain)

    @property
    def begins_well(self) -> bool:
        """Whether it was so before the fit, which then has fitted no hyperparameter to noise.

        With as many lengthscales as rows ``explains`` asks for more than data can show.
        """
        return self.gain_at_start > REQUIRED_GAIN


def best_fit(
    fit: Callable[[float], Fit],
    kernel: nn.Module,
    num_inputs: int,
    say: Say,
    *,
    num_starts: int = 1,
) -> Fit:
    """The best of several fits, or of one if it explains more than noise.

    Args:
        fit: fits anew, from the lengthscales of the start times the factor that it is given.
        kernel: at the start.
        num_inputs: d.
        say: takes lines for the user.
        num_starts: limit of the starts that are compared in any case (``start_factors``).

    Raises:
        NotPositiveDefinite, DidNotConverge: of one of these fits; further ones that fail are told.
    """
    factors, further = [1.0], []
    if with_lengthscales(kernel):
        factors = start_factors(num_starts, num_inputs)
        longest = start_factors(2, num_inputs)[1:]
        further = [*(longest if len(factors) == 1 else []), *SHORTER]

    fits = []
    for factor in factors:
        if factor > 1.0:
            say(f"init: another fit, from lengthscales {factor:.2f} times as long")
        fits.append(fit(factor))
    gain = max(each.gain for each in fits)
    while further and not any(each.explains for each in fits):
        factor = further.pop(0)
        say(
            f"init: hardly better than noise alone (by {gain:.1f} nats); another fit, from "
            f"lengthscales {factor:.2f} times as long"
        )
        try:
            found = fit(factor)
        except (NotPositiveDefinite, DidNotConverge) as error:
            say(f"init: no fit from there: {error}")
            continue
        gain = max(gain, found.gain)
        fits += [found] * (found.explains or found.begins_well)
    best = max(fits, key=lambda each: each.value)
    if len(fits) > 1:
        listed = ", ".join(f"{each.value:+.4f}" for each in fits)
        say(f"init: evidence/point from {len(fits)} starts: {listed}; the best fit is used")
    return best


def start_factors(most: int, inputs: int) -> list[float]:
    """At most ``most`` factors of lengthscales, from 1 to sqrt(inputs) in equal ratios >= 2."""
    longest = math.sqrt(inputs)
    count = min(most, 1 + math.floor(math.log2(longest) + 1e-9))
    return [longest ** (k / (count - 1)) for k in range(count)] if count > 1 else [1.0]


def explains(kernel: nn.Module, gain: float) -> bool:
    """Whether a fitted kernel explains more than noise, by ``REQUIRED_GAIN``.

    Args:
        gain: evidence minus ``noise_evidence``, in nats, of all outputs.
    """
    return gain > REQUIRED_GAIN + sum(p.numel() for p in kernel.parameters() if p.requires_grad)


def with_lengthscales(kernel: nn.Module) -> list[Stationary]:
    """The parts of a kernel that have learned, positive lengthscales."""
    return [
        part
        for part in kernel.modules()
        if isinstance(part, Stationary)
        and any(
            c.name == "lengthscale" and c.raw.requires_grad
            for c in positive_parameters(part, below=False)
        )
    ]


@torch.no_grad()
def lengthen(kernel: nn.Module, factor: float) -> None:
    """Multiply every learned lengthscale by ``factor``, but keep it above its floor."""
    for part in with_lengthscales(kernel):
        set_above_floor(part, "lengthscale", factor * part.lengthscale)


@torch.no_grad()
def amplify(kernel: nn.Module, factor: float) -> None:
    """Multiply the learned outputscale of every part with learned lengthscales."""
    for part in with_lengthscales(kernel):
        learned = {c.name for c in positive_parameters(part, below=False) if c.raw.requires_grad}
        if "outputscale" in learned:
            set_above_floor(part, "outputscale", factor * part.outputscale)


@torch.no_grad()
def noise_evidence(model: ExactGP, x: Tensor, y: Tensor) -> float:
    """Log density of the targets, nats, if they were independent noise around the model's mean.

    The learned part of the variance is the most probable one not below the likelihood's floor;
    without known noise of rows it is the variance of the targets around the mean.

    Args:
        model: whose mean is used, and the noise of rows that it knows.
        x (n, d), y (n,): without missing targets.
    """
    floor = max(floor_of(model.likelihood, "noise_variance"), FLOOR)
    square = (y - model.mean(x)).square()
    if model.row_noise is None:
        variance = max(float(square.mean()), floor)
        return -0.5 * len(y) * (1.0 + math.log(2.0 * math.pi * variance))
    known = model.row_noise.like(square)
    log_floor = math.log(floor)

    def lacking(log_variance: float) -> float:
        each = known.variance(square.new_tensor(math.exp(log_variance)))
        return 0.5 * float((math.log(2.0 * math.pi) + each.log() + square / each).sum())

    # beyond what every row asks for the density falls
    learned = known.relative > 0.0
    asked = max([2.0 * floor, *(square / known.relative)[learned].tolist()])
    found = scipy.optimize.minimize_scalar(
        lacking, bounds=(log_floor, math.log(asked)), method="bounded"
    )
    return -min(float(found.fun), lacking(log_floor))
