"""Initial hyperparameters: from the likelihood of targets given their nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.bounds import at_their_floor
from gpx.errors import ConfigError
from gpx.inference.neighbour_likelihood import neighbour_log_likelihood, neighbours
from gpx.likelihoods import Gaussian
from gpx.likelihoods.row_noise import training_noise
from gpx.models import Model
from gpx.tensor_checks import check_at_least
from gpx.training.exact_outputs import exact_outputs, take_over
from gpx.training.initialisation import SubsetInitialisation
from gpx.training.maximise import Say, maximise


class NeighbourInitialisation(SubsetInitialisation):
    """Maximum of sum_i log p(y_i | its neighbours) over random rows (``init=neighbours``).

    The evidence of a random subset cannot tell what happens between its sparse points, so noise
    and lengthscales may be wrong. Here the neighbours come from all rows. The fit starts from that
    of a subset, whose lengthscales define which rows are near. With at most ``num_points`` training
    rows only the subset is fitted, as its evidence is then exact.

    For a model with inducing points, lengthscales much shorter than the distance between inducing
    points are useless. ``num_candidates`` limits the rows among which neighbours are looked for, so
    that their density is that of the inducing points.

    Args:
        num_points, max_evaluations: of the subset fit (``SubsetInitialisation``).
        num_rows: r, number of rows whose targets are predicted.
        num_neighbours: k, number of neighbours for each.
        neighbour_evaluations: limit of evaluations of this likelihood.
        num_candidates: number of random rows among which neighbours are looked for; None: all.

    Raises:
        ConfigError: an option out of range.

    Cost: that of the subset, then r k^3 / 3 operations and r k^2 kernel entries per evaluation.
    Source: see ``neighbour_log_likelihood``.
    """

    def __init__(
        self,
        num_points: int = 1000,
        max_evaluations: int = 60,
        num_rows: int = 400,
        num_neighbours: int = 256,
        neighbour_evaluations: int = 30,
        num_candidates: int | None = None,
    ) -> None:
        super().__init__(num_points, max_evaluations)
        if num_neighbours < 1:
            raise ConfigError(
                f"num_neighbours={num_neighbours} must be at least 1; init=subset needs none"
            )
        check_at_least(1, num_rows=num_rows, neighbour_evaluations=neighbour_evaluations)
        check_at_least(2, num_candidates=num_candidates)
        self.num_rows = num_rows
        self.num_neighbours = num_neighbours
        self.neighbour_evaluations = neighbour_evaluations
        self.num_candidates = num_candidates

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator, say: Say
    ) -> None:
        """Fit the subset, then the likelihood given neighbours, in float64."""
        super().__call__(model, x, y, generator=generator, say=say)
        n, parts = x.shape[0], model.hyperparameters()
        if parts is None or not isinstance(parts.likelihood, Gaussian):
            return
        most = n if self.num_candidates is None else min(n, self.num_candidates)
        if most <= max(self.num_points, 2):
            return
        (fitted,) = exact_outputs(parts)
        known = model.row_noise
        drawn = torch.randperm(n, generator=generator, device=x.device)
        if most + self.num_rows < n:
            drawn = drawn[: most + self.num_rows]
            inputs, targets = x[drawn].double(), y[drawn].double()
            known = None if known is None else known.of(drawn)
            chosen = torch.arange(self.num_rows, device=x.device)
        else:
            inputs, targets, chosen = x.double(), y.double(), drawn[: self.num_rows]
        count = min(self.num_neighbours, most - 1)
        if known is not None:
            fitted.know_noise(known)
        near = neighbours(fitted.kernel, inputs, chosen, count)
        groups = torch.cat([near, chosen[:, None]], 1)

        def log_density() -> Tensor:
            noise = training_noise(fitted, targets)
            residual = targets - fitted.mean(inputs)
            return neighbour_log_likelihood(fitted.kernel, noise, inputs, residual, groups)

        maximise(
            fitted,
            log_density,
            len(chosen),
            self.neighbour_evaluations,
            ftol=1e-6,
            gtol=1e-3,
            priors=model.hyperpriors,
            say=say,
            what=f"{len(chosen)} rows given {count} neighbours each",
            measure="log probability/row",
        )
        for name in at_their_floor(fitted, list(fitted.parameters())):
            say(f"init: {name} is at its lower limit")
        take_over([fitted], parts)
