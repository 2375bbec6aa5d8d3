"""Subset of data: an exact Gaussian process on chosen rows."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotAvailable, class_name
from gpx.inducing import Selector, Uniform
from gpx.inducing.base import describe_num_inducing, fill_with_random_rows, require_selector
from gpx.inducing.kmeans import distance_unit, nearest_centre
from gpx.inference.exact_posterior import ExactPosterior
from gpx.inference.leave_one_out import LeftOut
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise, training_noise
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.exact.exact_mll import exact_evidence
from gpx.tensor_checks import check_at_least


class SubsetOfData(Model):
    """Exact Gaussian process regression on M of n rows: the baseline of sparse methods.

    At given hyperparameters its variances are never below those of the full data. Hyperparameters
    learned from a badly chosen subset may still be overconfident.

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        num_points: M.
        num_data: n if it is known; caps M.
        selector: how ``initialise`` chooses rows, such as ``InformativeVectors``. If it returns
            points that are no rows (``KMeans``), the nearest row to each is taken. None:
            ``Uniform``.

    Attributes:
        rows (M,): the chosen rows of the training data; empty until ``initialise``.

    Cost: M^3 per evaluation, independent of n; prediction M^2 per row.
    """

    takes_row_noise = True
    data_sized: ClassVar[tuple[str, ...]] = ("rows",)
    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    rows: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_points: int = 1000,
        num_data: int | None = None,
        selector: Selector | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, num_points=num_points, num_data=num_data)
        self.kernel, self.mean, self.likelihood = kernel, mean, likelihood
        self.selector = Uniform() if selector is None else require_selector(selector, targets=True)
        self.num_points = num_points if num_data is None else min(num_points, num_data)
        self._asked = num_points
        self.register_buffer("rows", torch.zeros(0, dtype=torch.long))

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: M, if more rows were asked for than there are."""
        found = describe_num_inducing(self._asked, self.num_points)
        return {"num_points": found["num_inducing"]} if found else {}

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Choose the rows at the current hyperparameters. Cost: the selector's.

        Raises:
            DataError: fewer data than rows asked for.
            ConfigError: a selector of another number of points than rows asked for.
        """
        own = self.selector.fixed_number
        if own not in (None, self._asked):
            raise ConfigError(
                f"{class_name(self.selector)} gives {own} points and {self._asked:,} rows were "
                f"asked for: set num_points={own}"
            )
        selector = self.selector.given(y - self.mean(x), training_noise(self, x))
        selection = selector.select(x, self.kernel, self.num_points, generator=generator)
        rows = selection.indices
        if rows is None:
            unit = distance_unit(x, self.kernel)
            rows = nearest_centre(selection.points / unit, x / unit).unique()
            # two centres may have the same nearest row
            rows = fill_with_random_rows(rows, self.num_points, x, generator)
        self.rows = rows

    def condition(self, x: Tensor, y: Tensor) -> SubsetPosterior:
        """Posterior given the chosen rows of x (n, d) and y (n,).

        Raises:
            ConfigError: no rows have been chosen yet.
            DataError: targets that are not finite.
        """
        _check_chosen(self)
        posterior = self.new_posterior()
        if self.row_noise is not None:
            posterior.know_noise(self.row_noise.of(self.rows).like(x))
        posterior.condition_(x[self.rows], y[self.rows])
        return posterior

    def new_posterior(self) -> SubsetPosterior:
        """As in ``Model``."""
        return SubsetPosterior(self.kernel, self.mean, self.likelihood)


class SubsetPosterior(ExactPosterior):
    """Posterior process of ``SubsetOfData``."""

    def leave_one_out(self) -> LeftOut:
        """Refused: they would be predictions of the chosen rows only, in the order of choice.

        Raises:
            NotAvailable: always.
        """
        raise NotAvailable(
            "leave-one-out predictions of SubsetOfData would be of its own rows only: train with "
            "model=ExactGP() and solver=cholesky"
        )


@runtime_checkable
class SubsetModel(Protocol):
    """What ``SubsetEvidence`` needs of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    rows: Tensor


def _check_chosen(model: SubsetModel) -> None:
    """Raise ConfigError if there are no rows, whose posterior would be the prior."""
    if not len(model.rows):
        raise ConfigError(
            f"{class_name(model)}: its rows have not been chosen; call "
            "model.initialise(x, y, generator=torch.Generator().manual_seed(0)) before training"
        )


class SubsetEvidence(Objective[SubsetModel]):
    """Log marginal likelihood of the chosen rows alone; no estimate of that of all rows.

    Cost and source: ``log_marginal_likelihood`` of M rows.
    """

    batching = "full"
    takes_row_noise = True
    kind = "estimate"
    models = (SubsetModel,)
    made_for = "SubsetOfData"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self, model: SubsetModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Nats of the M rows, in float64; parts are those of ``LogDensityTerms``.

        Raises:
            ConfigError: no rows have been chosen yet.
        """
        _check_chosen(model)
        noise: RowNoise | None = getattr(model, "row_noise", None)
        chosen = None if noise is None else noise.of(model.rows)
        return exact_evidence(model, x[model.rows], y[model.rows], self.kind, chosen)
