"""L-BFGS-B for models whose targets share nothing: a search for each, evaluated together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpx.constraints import Positive
from gpx.errors import CheckpointError, ConfigError
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.independent.evidence import Cells, target_evidences
from gpx.methods.independent.parts import StackedParts, bounds_of_each
from gpx.models import IndependentGP
from gpx.objectives import IndependentMLL
from gpx.priors import Prior, Priors
from gpx.tensor_checks import check_at_least, check_not_negative
from gpx.training.bounds import checked_bounds
from gpx.training.separate_searches import GOING, SETTLED, STATIONARY, SeparateSearches


class SeparateLBFGSB(OwnSteps[IndependentGP]):
    """Limited-memory quasi-Newton for every target of an ``IndependentGP`` by itself.

    A step evaluates every target whose search has not ended, in batches where they have few rows,
    and moves each along its own line search. No target waits for another, none is stopped early by
    the others, and the result is that of p separate runs, whose searches end by the same criteria.
    A step limit is thus one of evaluations of each target. Resumed runs go on bit for bit.

    Args:
        memory: number of correction pairs.
        ftol: a search ends when the relative decrease of its loss (nats per observation) is below.
        gtol: or when the largest entry of its gradient is below this.
        max_line_search: limit of evaluations per line search.
        bounds: (name, lowest, largest) of positive parameters in natural units, as in
            ``[("kernel.lengthscale", 0.1, 10.0)]`` for all targets; of the second one alone it is
            ``targets.1.kernel.lengthscale``.

    Raises:
        ConfigError: a count below 1, a negative or infinite tolerance, or bounds that are not a
            name and two numbers, the second not below the first and positive.
    """

    unit = "evaluations of every target"
    purpose = "optimises every target of an IndependentGP by itself"
    advice = "use trainer.dtype=float64 or a larger likelihood.noise_variance"
    model_type = IndependentGP
    takes_priors = True

    def __init__(
        self,
        memory: int = 10,
        ftol: float = 1e-10,
        gtol: float = 1e-7,
        max_line_search: int = 20,
        bounds: Sequence[Any] = (),
    ) -> None:
        check_at_least(1, memory=memory, max_line_search=max_line_search)
        check_not_negative(finite=True, ftol=ftol, gtol=gtol)
        self.memory, self.ftol, self.gtol = memory, ftol, gtol
        self.max_line_search = max_line_search
        self.bounds = checked_bounds(bounds)
        self._of_each: dict[str, tuple[float, float]] = {}
        self.searches: SeparateSearches | None = None
        self._saved: Mapping[str, Any] = {}

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """As in ``Optimizer``: the objective must be the sum of the targets' evidences."""
        super().require_fit(model, objective, num_data, max_steps)
        if not isinstance(objective, IndependentMLL):
            raise ConfigError(
                f"optimizer={type(self).__name__}() maximises the evidence of every target, and "
                f"objective={type(objective).__name__}() is another: take optimizer=LBFGSB()"
            )
        assert isinstance(model, IndependentGP)  # ``check`` has passed
        self._of_each = bounds_of_each(self.bounds, model)
        model.stacked().limits(self.bounds)

    def bounds_of_values(self) -> dict[str, tuple[float, float]]:
        """As in ``Optimizer``: by the full name of every parameter they hold for."""
        return self._of_each

    def bind(self, model: IndependentGP, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``."""
        self.problem = SeparateProblem(
            model, x, self.session.y, bounds=self.bounds, priors=model.hyperpriors
        )
        self.searches = self.problem.searches(
            memory=self.memory,
            ftol=self.ftol,
            gtol=self.gtol,
            max_line_search=self.max_line_search,
        )
        if self._saved:
            if self._saved["point"].shape != self.searches.point.shape:
                raise CheckpointError(
                    "the searches of this checkpoint are of other targets or hyperparameters than "
                    "the model's: this run cannot go on, start it anew"
                )
            self.searches.load_state_dict(self._saved)

    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """One evaluation of every target under way; returns the best evidence so far.

        It includes the log density of priors, as the loss does.
        """
        assert self.searches is not None
        self.problem.advance(self.searches)
        return Evidence(self.problem.density(self.searches).sum(), "exact")

    @property
    def converged(self) -> bool:  # type: ignore[override]
        """Whether every search has ended."""
        return self.searches is not None and not self.searches.active()

    @property
    def outcome(self) -> str:
        """How many targets have converged."""
        if self.searches is None:
            return ""
        state = self.searches.state
        going = int((state == GOING).sum())
        text = f"{self._converged(self.searches)} of {len(state)} targets converged"
        return text + (f", {going} still under way" if going else "")

    def evidence_at_end(
        self,
        model: Model,
        objective: Objective,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator,
    ) -> Evidence:
        """As in ``Optimizer``, with the number of targets that have converged among the facts."""
        found = objective.full_evidence(model, x, y, batch_size=batch_size, generator=generator)
        if self.searches is None:  # training had ended before
            return found
        converged = self._converged(self.searches)
        return replace(found, facts={**found.facts, "targets_converged": converged})

    @staticmethod
    def _converged(searches: SeparateSearches) -> int:
        """Number of targets whose search has ended at a maximum."""
        state = searches.state
        return int(((state == STATIONARY) | (state == SETTLED)).sum())

    def state_dict(self) -> dict[str, Any]:
        """The state of all searches."""
        return {} if self.searches is None else self.searches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; used by ``bind``."""
        self._saved = state


class SeparateProblem:
    """The losses of all targets, minus log evidence and log prior density per observation.

    Args:
        model: changed in place by ``advance``.
        x (n, d), y (n, p): NaN where a target is missing.
        bounds: see ``SeparateLBFGSB``; None: those that the parameters remember.
        priors: of hyperparameters.
    """

    def __init__(
        self,
        model: IndependentGP,
        x: Tensor,
        y: Tensor,
        *,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        priors: Priors | None = None,
    ) -> None:
        self.parts: StackedParts = model.stacked()
        self.cells: Cells = model.cells(x, y)
        self.limits = self.parts.limits(bounds)
        self.counts = torch.tensor(self.cells.counts, dtype=torch.float64).clamp_min(1.0)
        self.priors = TargetPriors(priors, model, self.parts)

    def searches(self, **options: Any) -> SeparateSearches:
        """A search for every target, from where the model stands."""
        values = self.parts.read().detach()
        return SeparateSearches(values, self.parts.trained(), *self.limits, **options)

    def advance(self, searches: SeparateSearches, *, may_fail: bool = False) -> None:
        """Evaluate every target under way once, and set the model to the best points.

        Args:
            may_fail: whether a target without evidence at its start ends there, its loss infinite.

        Raises:
            NotPositiveDefinite: a target has no evidence where it starts.
        """
        active = searches.active()
        if not active:
            return
        tried = searches.trials(active)
        like = self.cells.y
        found = target_evidences(self.parts, self.cells, active, tried.to(like), gradient=True)
        for place, error in found.failed.items():
            if not may_fail and not bool(searches.begun[active[place]]):
                raise error
        assert found.gradient is not None
        density, by_prior = self.priors(searches.point, active, tried)
        counts = self.counts[active]
        together = torch.cat([found.total()[:, None], found.gradient.double()], 1).cpu()
        together += torch.cat([density[:, None], by_prior], 1)  # one transfer for all
        losses, gradients = (together / -counts[:, None]).split([1, together.shape[1] - 1], 1)
        searches.tell(active, losses[:, 0], gradients)
        self.parts.write(searches.point, active)

    def evidence(self, searches: SeparateSearches, targets: Sequence[int]) -> Tensor:
        """Log evidence (a,) of some targets where their searches stand, nats, without priors."""
        point = searches.point
        density, _ = self.priors(point, targets, point[list(targets)])
        return self.density(searches)[list(targets)] - density

    def density(self, searches: SeparateSearches) -> Tensor:
        """Log evidence and log prior density (p,) of the targets where the searches stand, nats."""
        return -searches.loss * self.counts


class _Columns(NamedTuple):
    """One prior of a parameter of some targets."""

    prior: Prior
    constraint: Positive | None
    targets: list[int]
    columns: slice
    shape: torch.Size


class TargetPriors:
    """Log prior densities of targets, those of all targets with one prior together.

    Args:
        priors: of the model; None: no priors.
        model, parts: whose hyperparameters they are.
    """

    def __init__(self, priors: Priors | None, model: IndependentGP, parts: StackedParts) -> None:
        self.each: list[_Columns] = []
        if priors is None:
            return
        places: dict[int, tuple[int | None, slice]] = {}
        for target, own in enumerate(parts.parameters):
            start = 0
            for parameter in own:
                places[id(parameter)] = target, slice(start, start + parameter.numel())
                start += parameter.numel()
        last = slice(parts.width - 1, parts.width)
        places[id(parts.noise.raw)] = None, last
        found: dict[tuple[Any, ...], _Columns] = {}
        for _, hyperparameter, prior in priors.of(model):
            own_target, columns = places[id(hyperparameter.raw)]
            if own_target is None:  # the noise of all of them
                every = list(range(len(parts.parameters)))
                shape = torch.Size(())
                self.each.append(_Columns(prior, hyperparameter.constraint, every, columns, shape))
                continue
            floor = None if hyperparameter.constraint is None else hyperparameter.constraint.floor
            key = columns.start, columns.stop, floor, type(prior), _written(prior)
            shape = hyperparameter.raw.shape
            made = _Columns(prior, hyperparameter.constraint, [], columns, shape)
            found.setdefault(key, made).targets.append(own_target)
        self.each += found.values()

    def __call__(
        self, point: Tensor, targets: Sequence[int], values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log densities (a,) and gradients (a, K) of some targets, in float64.

        Args:
            point (p, K): of all targets; values (a, K): of these.
        """
        every = point.clone()
        every[targets] = values.double()
        if not self.each:
            return every.new_zeros(len(targets)), torch.zeros_like(values)
        with torch.enable_grad():
            density, gradient = self._of_all(every.requires_grad_())
        return density[targets], gradient[targets]

    def _of_all(self, every: Tensor) -> tuple[Tensor, Tensor]:
        density = every.new_zeros(len(every))
        for prior, constraint, chosen, columns, shape in self.each:
            raw = every[chosen][:, columns].reshape(len(chosen), *shape)
            natural = raw if constraint is None else constraint(raw)
            own = prior.log_prob(natural).reshape(len(chosen), -1).sum(1)
            density = density.index_add(0, torch.tensor(chosen), own.to(density))
        (gradient,) = torch.autograd.grad(density.sum(), [every])
        return density.detach(), gradient


def _written(prior: Prior) -> tuple[Any, ...]:
    """What makes two priors the same."""
    values = vars(prior)
    plain = all(isinstance(value, (int, float)) for value in values.values())
    return tuple(sorted(values.items())) if plain else (id(prior),)
