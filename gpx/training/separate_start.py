"""Initial hyperparameters of models whose targets share nothing: a fit of each, made together."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.linalg.processes import sharing
from gpx.models import ExactGP, IndependentGP
from gpx.training.maximise import Say
from gpx.training.separate_lbfgsb import SeparateProblem
from gpx.training.several_fits import (
    REQUIRED_GAIN,
    SHORTER,
    explains,
    lengthen,
    noise_evidence,
    start_factors,
    with_lengthscales,
)

SAY_EVERY = 20
"""Evaluations between two lines for the user."""
FTOL, GTOL = 1e-7, 1e-4
"""Tolerances of these fits, as of ``gpx.training.maximise``."""


class Fits(NamedTuple):
    """Fits of a targets.

    Attributes:
        values (a, K): hyperparameters, rows of ``StackedParts``.
        reached (a,): log evidence plus log prior density per observation; -inf: there is no fit.
        explains (a,): whether the evidence is clearly above that of independent noise.
        begins_well (a,): whether it was so before the fit.
    """

    values: Tensor
    reached: Tensor
    explains: Tensor
    begins_well: Tensor


class SeparateStart:
    """Fits of all targets to some of their rows, from several lengthscales where one fails.

    What ``gpx.training.several_fits`` does for a single kernel, for every target by itself: a fit
    whose evidence is hardly above that of independent noise is followed by fits from other
    lengthscales, until one explains more; the best is taken.

    Args:
        model: set to the fits; stays as it is until ``run``.
        x (n, d), y (n, p): NaN where a target is missing or not to be used.
        max_evaluations: limit of evaluations of each target, from each start.
        num_starts: limit of the starts that are compared in any case.
        say: takes lines for the user.

    Fits are made in float64.
    """

    def __init__(
        self,
        model: IndependentGP,
        x: Tensor,
        y: Tensor,
        *,
        max_evaluations: int,
        num_starts: int,
        say: Say,
    ) -> None:
        self.model, self.x, self.y = model, x.double(), y.double()
        self.max_evaluations, self.num_starts, self.say = max_evaluations, num_starts, say
        self.own = copy.deepcopy(model).double()
        self.given = self.own.stacked().read().detach()

    @torch.no_grad()
    def run(self) -> None:
        """Fit the targets, and set the model's hyperparameters to the best fits.

        Raises:
            NotPositiveDefinite: a target has no evidence at the first start.
        """
        p = self.model.num_outputs
        first, further = [1.0], []
        if any(with_lengthscales(own.kernel) for own in self.own.parts):
            first = start_factors(self.num_starts, self.x.shape[1])
            longest = start_factors(2, self.x.shape[1])[1:]
            further = [*(longest if len(first) == 1 else []), *SHORTER]
        values, reached = self.given.cpu().clone(), torch.full((p,), -math.inf, dtype=torch.float64)
        explained = torch.zeros(p, dtype=torch.bool)
        for place, factor in enumerate([*first, *further]):
            left = range(p) if place < len(first) else (~explained).nonzero()[:, 0].tolist()
            if not left:
                break
            if place:
                which = f"of all {p} targets"
                if place >= len(first):
                    which = (
                        f"of {len(left)} of {p} targets, so far hardly better explained than by "
                        "noise alone,"
                    )
                self.say(f"init: another fit {which} from lengthscales {factor:.2f} times as long")
            found = self._fit(left, factor, again=place > 0)
            at = torch.tensor(left)
            taken = found.reached > reached[at]
            if place >= len(first):
                taken &= found.explains | found.begins_well
            values[at[taken]], reached[at[taken]] = found.values[taken], found.reached[taken]
            explained[at] |= found.explains
        # no process may go on from elsewhere
        sharing().broadcast([values])
        self.model.stacked().write(values)

    def _fit(self, targets: Sequence[int], factor: float, *, again: bool) -> Fits:
        """Fits of some targets from the given lengthscales times ``factor``.

        Args:
            again: whether these are not the first fits, which must not fail.
        """
        self.own.stacked().write(self.given)
        if factor != 1.0:
            for target in targets:
                lengthen(self.own.parts[target].kernel, factor)
        problem = SeparateProblem(self.own, self.x, self.y, priors=self.model.hyperpriors)
        searches = problem.searches(ftol=FTOL, gtol=GTOL)
        at = torch.tensor(targets)
        searches.only(targets)
        start = None
        for number in range(1, self.max_evaluations + 1):
            if not searches.active():
                break
            with torch.enable_grad():
                problem.advance(searches, may_fail=again)
            if start is None:
                start = problem.evidence(searches, targets)
            if number == 1 or number % SAY_EVERY == 0:
                shown = -float(searches.loss[at].mean())
                self.say(
                    f"init: exact GPs of {len(targets)} targets on at most "
                    f"{max(problem.cells.counts)} points, evaluation {number}, "
                    f"evidence/point {shown:+.4f}, {len(searches.active())} under way"
                )
        evidence = problem.evidence(searches, targets)
        noise = torch.tensor([self._noise_alone(target, problem) for target in targets]).double()
        gains = evidence - noise
        explained = [
            explains(self.own.parts[target].kernel, gain)
            for target, gain in zip(targets, gains.tolist(), strict=True)
        ]
        before = gains if start is None else start - noise
        return Fits(
            searches.point[at].clone(),
            -searches.loss[at],
            torch.tensor(explained),
            before > REQUIRED_GAIN if again else torch.zeros(len(targets), dtype=torch.bool),
        )

    def _noise_alone(self, target: int, problem: SeparateProblem) -> float:
        """Log density of a target's observations as independent noise around its mean."""
        own, rows = self.own.parts[target], problem.cells.rows(target)
        noise = self.own.likelihood.output(target)
        alone = ExactGP(kernel=own.kernel, mean=own.mean, likelihood=noise)
        known = problem.cells.known_of(target)
        if known is not None:
            alone.know_noise(known)
        return noise_evidence(alone, self.x[rows], self.y[rows, target])
