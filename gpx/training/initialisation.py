"""Initial hyperparameters: from an exact GP fitted to a subset, or the config's constants."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gpx.bounds import at_their_floor, bounds_of, remember_bounds
from gpx.constraints import is_trained
from gpx.errors import ConfigError
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg.processes import sharing
from gpx.methods.base.model import Hyperparameters
from gpx.models import ExactGP, ExpectationPropagationGP, IndependentGP, Model
from gpx.objectives import ExactMLL
from gpx.priors import Priors
from gpx.tensor_checks import check_at_least
from gpx.training.change_places import (
    PLACING_EVALUATIONS,
    PLACING_ROWS,
    open_changes,
    place_changes,
)
from gpx.training.exact_outputs import (
    draw_rows,
    exact_outputs,
    gaussian_parts,
    know_noise_of_outputs,
    rows_of_outputs,
    take_over,
)
from gpx.training.laplace_start import (
    has_laplace_start,
    laplace_rows,
    start_by_laplace,
    start_level,
)
from gpx.training.maximise import Say, maximise
from gpx.training.separate_start import SeparateStart
from gpx.training.several_fits import Fit, best_fit, lengthen, noise_evidence


class Initialisation(ABC):
    """Sets the initial hyperparameters of a model; a subclass writes ``__call__``."""

    @abstractmethod
    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator, say: Say
    ) -> None:
        """Set the hyperparameters of ``model`` in place.

        Args:
            model: on the device and in the dtype of the run.
            x (n, d), y (n,): training data, standardised.
            generator: of random draws.
            say: takes lines for the user.
        """


class ConstantInitialisation(Initialisation):
    """Keeps the hyperparameters of the config (``init=constants``)."""

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator, say: Say
    ) -> None:
        """Do nothing."""


class SubsetInitialisation(Initialisation):
    """Type-II maximum likelihood of an exact GP on random training rows (``init=subset``).

    The model's kernel, mean and noise variance take the fitted values; a noise variance that
    depends on the input starts at the fitted constant one. Models of classes, counts or positive
    targets with ``starts_by_laplace`` (``SVGP``, ``QSGP``, ``VNNGP``, ``LaplaceGP``) are fitted by
    Laplace's approximation on at most 500 rows (``gpx.training.laplace_start``). With other
    likelihoods the constants of the config stay, but a constant mean of
    ``ExpectationPropagationGP`` under counts or positive targets starts at their level. For several
    outputs the sum of their evidences is maximised, with a shared kernel and mean and separate
    noise variances.

    Known noise variances and weights of rows (``Model.know_noise``) hold in the fit, but by
    Laplace's approximation, which has none; of many rows it takes those that are drawn by their
    weights.

    With many inputs the config's lengthscales may make the kernel matrix nearly diagonal, where
    gradients vanish, so that fits from several lengthscales are compared by their evidence.

    The evidence has another maximum where the kernel explains nothing and all is noise, and a
    search from lengthscales far from those of the data ends there. A fit whose evidence is hardly
    above that of independent noise, or of a constant function where it is Laplace's, is therefore
    followed by fits from lengthscales times sqrt(d) (d >= 4), 1/4 and 1/16, until one explains more
    (``gpx.training.several_fits``); if none does, or none has a finite evidence, the first fit is
    kept.

    Change points whose locations are not given start where the best of some short fits on at most
    200 rows ends (``gpx.training.change_places``).

    Args:
        num_points: rows drawn; cost is cubic in it, and linear in the number of outputs.
        max_evaluations: limit of evaluations of the log marginal likelihood, from each start.
        num_starts: limit of starts. They are the lengthscales of the config times factors from 1 to
            sqrt(d) in equal ratios of at least two (d = 3: one start, 4: two, 16: three, 64: four).

    Raises:
        ConfigError: fewer than 2 points, 1 evaluation or 1 start.

    Source: Evans and Nair 2020 (QSGP), the initialisation of its benchmarks; the several starts are
    an addition.
    """

    def __init__(
        self, num_points: int = 1000, max_evaluations: int = 100, num_starts: int = 1
    ) -> None:
        if num_points < 2:
            raise ConfigError(
                f"num_points={num_points} must be at least 2; init=constants skips this fit"
            )
        check_at_least(1, max_evaluations=max_evaluations, num_starts=num_starts)
        self.num_points = num_points
        self.max_evaluations = max_evaluations
        self.num_starts = num_starts

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator, say: Say
    ) -> None:
        """Fit the subset in float64 and copy the hyperparameters into ``model``.

        Args:
            model: to initialise, in place.
            x (n, d), y (n,) or (n, p): all training data, NaN where one of p targets is missing.
            generator: draws the rows.
            say: takes progress lines.
        """
        if self._starts_by_laplace(model, x, y, generator, say):
            return
        own = model.hyperparameters()
        if own is not None and isinstance(model, ExpectationPropagationGP):
            start_level(own, y)
        if isinstance(model, IndependentGP):
            self._start_separately(model, x, y, generator, say)
            return
        parts, targets = gaussian_parts(model, say), model.start_targets(y)
        if parts is not None and targets is not None:
            rows = draw_rows(x, self.num_points, generator)
            known = None if model.row_noise is None else model.row_noise.of(rows)
            self._start(
                parts, x[rows].double(), targets[rows].double(), model.hyperpriors, say, noise=known
            )

    def _start(
        self,
        parts: Hyperparameters,
        x: Tensor,
        y: Tensor,
        priors: Priors | None,
        say: Say,
        *,
        noise: RowNoise | None = None,
    ) -> None:
        """Set the parts to the best fit on the rows x (n, d), y (n,) or (n, p).

        Args:
            noise: what is known of the noise of these rows.
        """
        if not any(each.requires_grad for each in exact_outputs(parts)[0].parameters()):
            return

        few = slice(0, PLACING_ROWS)

        def fit_placed(change: Callable[[nn.Module], None]) -> Fit:
            exact = exact_outputs(parts)
            know_noise_of_outputs(exact, y[few], None if noise is None else noise.of(few))
            change(exact[0].kernel)
            most = min(PLACING_EVALUATIONS, self.max_evaluations)
            return self._fit(exact, x[few], y[few], priors, lambda line: None, most=most)

        for number in open_changes(parts.kernel, x.shape[1]):
            placed = place_changes(fit_placed, parts.kernel, number, x, say)
            if placed is not None:
                take_over(placed.models, parts)

        def fit(factor: float) -> Fit:
            exact = exact_outputs(parts)
            know_noise_of_outputs(exact, y, noise)
            if factor != 1.0:
                lengthen(exact[0].kernel, factor)
            return self._fit(exact, x, y, priors, say, again=factor != 1.0)

        exact = best_fit(fit, parts.kernel, x.shape[1], say, num_starts=self.num_starts).models
        floored = (name for each in exact for name in at_their_floor(each, list(each.parameters())))
        for name in dict.fromkeys(floored):  # parameters of the shared kernel only once
            say(f"init: {name}, fitted to {len(x)} points, is at its lower limit")
        take_over(exact, parts)

    def _start_separately(
        self, model: IndependentGP, x: Tensor, y: Tensor, generator: torch.Generator, say: Say
    ) -> None:
        """Fit every target to at most ``num_points`` random rows in which it was observed."""
        order = torch.randperm(len(x), generator=generator, device=x.device)
        observed = ~y[order].isnan()
        few = torch.full_like(y, math.nan)
        few[order] = y[order].where(observed.cumsum(0) <= self.num_points, math.nan)
        if any(open_changes(own.kernel, x.shape[1]) for own in model.parts):
            self._start_in_turn(model, x, few, say)
            return
        SeparateStart(
            model,
            x,
            few,
            max_evaluations=self.max_evaluations,
            num_starts=self.num_starts,
            say=say,
        ).run()

    def _start_in_turn(self, model: IndependentGP, x: Tensor, y: Tensor, say: Say) -> None:
        """Fit one target after the other, with places for their change points."""
        cells, noise = model.cells(x, y), []
        bounds = bounds_of(model.likelihood, "noise_variance")
        for target in range(model.num_outputs):
            rows, own = cells.rows(target), model.parts[target]
            likelihood = model.likelihood.output(target)
            if bounds is not None:
                remember_bounds(likelihood, {"noise_variance": bounds})
            likelihood.requires_grad_(is_trained(model.likelihood, "noise_variance"))
            self._start(
                Hyperparameters(own.kernel, own.mean, likelihood),
                x[rows].double(),
                y[rows, target].double(),
                model.hyperpriors,
                say,
                noise=cells.known_of(target),
            )
            noise.append(likelihood.noise_variance.detach())
        model.likelihood.noise_variance = torch.stack(noise)

    def _starts_by_laplace(
        self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator, say: Say
    ) -> bool:
        """Fit by Laplace's approximation if the model is to start so; returns whether it did."""
        parts = model.hyperparameters() if model.starts_by_laplace else None
        if parts is None or not has_laplace_start(parts.likelihood):
            return False
        count = min(self.num_points, laplace_rows(parts.likelihood))
        if model.row_noise is not None and count < len(x):
            # the first arrivals of as many processes, whose rates are the weights
            relative = model.row_noise.relative
            arrivals = relative * torch.empty_like(relative).exponential_(generator=generator)
            rows = arrivals.topk(count, largest=False).indices
        else:
            rows = draw_rows(x, count, generator)
        drawn = x[rows].double(), y[rows].double()
        start_by_laplace(parts, *drawn, self.max_evaluations, model.hyperpriors, say)
        return True

    def _fit(
        self,
        exact: Sequence[ExactGP],
        x: Tensor,
        y: Tensor,
        priors: Priors | None,
        say: Say,
        *,
        again: bool = False,
        most: int | None = None,
    ) -> Fit:
        """Train ``exact``, one model per output, on y (n,) or (n, p), NaN where one is missing.

        An output without targets in these rows is left as it is. ``again`` also evaluates the gain
        at the start. ``most`` is the limit of evaluations, None: ``max_evaluations``.
        """
        objective = ExactMLL()
        parts = [
            (each, own_x, own_y)
            for each, (own_x, own_y) in zip(exact, rows_of_outputs(x, y), strict=True)
            if len(own_y)
        ]
        together, count = nn.ModuleList([each for each, _, _ in parts]), int((~y.isnan()).sum())

        def evidence() -> Tensor:
            return torch.stack([objective.evidence(*part).value for part in parts]).sum()

        what = f"exact GP on {len(x)} points"
        most = self.max_evaluations if most is None else most
        with torch.no_grad():
            before = evidence() if again else y.new_tensor(-math.inf)
        maximise(together, evidence, count, most, priors=priors, say=say, what=what)
        # evaluated where the search ended: its lowest loss may lie beyond a limit
        with torch.no_grad():
            reached = evidence()
            density = 0.0 if priors is None else priors.log_prob(together, all_known=False)
            value = (reached + density) / count
            noise = sum(noise_evidence(*part) for part in parts)
            gains = reached - noise, before - noise
        # which fits follow and which is taken depends on them: no process may decide otherwise
        sharing().broadcast([value, *gains])
        return Fit(float(value), exact, *map(float, gains))
