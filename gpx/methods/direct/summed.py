"""Regression from sums over the data, with a known or a discrete noise variance."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.data_sized import InDoublePrecision
from gpx.errors import DataError
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.model import Model
from gpx.methods.base.trained_columns import TrainedColumns
from gpx.methods.direct.grids import NoiseGrid, require_grid
from gpx.methods.direct.mean_field import (
    NoiseTerms,
    best_noise_logits,
    discrete_noise_terms,
    known_noise_terms,
)
from gpx.tensor_checks import check_inputs, check_targets


class SummedRegression(TrainedColumns, InDoublePrecision, Model):
    """A model that keeps sums over the data, so that rows can be added and removed.

    Subclasses define the functions Phi.

    Attributes:
        noise: possible noise variances and their prior; None: the noise variance stays as
            initialised.
        noise_logits (k_s,): of q(noise variance); empty if it is known.
        gram (m, m), projected (m,), totals (2,): Phi^T Phi and Phi^T r, |r|^2 and n.
    """

    in_double: ClassVar[tuple[str, ...]] = ("totals", "noise_logits")

    likelihood: Gaussian
    gram: Tensor
    projected: Tensor
    totals: Tensor

    def register_sums(self, noise: NoiseGrid | None) -> None:
        """Register buffers and noise logits; ConfigError if ``noise`` is not a NoiseGrid."""
        require_grid(noise, NoiseGrid, "noise")
        self.noise = noise
        empty = torch.zeros(0, dtype=torch.float64)
        self.noise_logits = nn.Parameter(empty if noise is None else noise.log_prior.clone())
        self.register_buffer("gram", empty.new_zeros(0, 0))
        for name, size in (("projected", 0), ("totals", 2)):
            self.register_buffer(name, empty.new_zeros(size))

    @abstractmethod
    def sums(self, x: Tensor, y: Tensor) -> SufficientStatistics:
        """Sums over the rows x (n, d), y (n,)."""

    @property
    def statistics(self) -> SufficientStatistics:
        """Sums over the data; assigning sums that are not finite raises DataError."""
        squared, count = self.totals.unbind()
        return SufficientStatistics(self.gram, self.projected, squared, int(count))

    @statistics.setter
    def statistics(self, new: SufficientStatistics) -> None:
        total = new.squared + new.projected.sum() + new.gram.diagonal().sum()
        if not bool(total.isfinite()):
            raise DataError(
                "the inputs or the targets hold NaN or infinite values, which would be in all sums "
                "over the rows; remove those rows or fill them in"
            )
        self.gram, self.projected = new.gram, new.projected
        self.totals = torch.stack([new.squared, new.squared.new_tensor(float(new.num_data))])

    @torch.no_grad()
    def add_rows(self, x: Tensor, y: Tensor) -> None:
        """Add data x (b, d), y (b,), at O(b m^2); q is kept as the start of further training.

        Raises:
            ShapeError, DTypeError: rows unlike those of ``initialise``.
        """
        self._check_rows(x, y)
        self.statistics = self.statistics + self.sums(x, y)

    @torch.no_grad()
    def remove_rows(self, x: Tensor, y: Tensor) -> None:
        """Remove data x (b, d), y (b,) that were added before.

        Raises:
            ConfigError: more rows than there are.
            ShapeError, DTypeError: rows unlike those of ``initialise``.
        """
        self._check_rows(x, y)
        self.statistics = self.statistics - self.sums(x, y)

    def _check_rows(self, x: Tensor, y: Tensor) -> None:
        check_inputs(self, x, self.num_inputs or self.trained_columns)
        check_targets(self, x, y)

    def with_noise_logits(self, *parameters: nn.Parameter) -> list[nn.Parameter]:
        """``parameters``, and the logits of the noise variance unless it is known."""
        return [*parameters, *([] if self.noise is None else [self.noise_logits])]

    def noise_terms(self) -> NoiseTerms:
        """Terms of the bound that depend on the noise; differentiable by its logits."""
        count = self.totals[1]  # stays on its device, so that the host does not wait for it
        if self.noise is None:
            return known_noise_terms(self.likelihood.noise_variance.detach().double(), count)
        return discrete_noise_terms(self.noise_logits.log_softmax(0), *self.noise_grid(), count)

    def noise_grid(self) -> tuple[Tensor, Tensor]:
        """Possible noise variances (k_s,) and their log prior (k_s,)."""
        assert self.noise is not None
        device = self.gram.device
        return self.noise.values.to(device), self.noise.log_prior.to(device)

    def best_noise_logits(self, fit: Tensor) -> Tensor:
        """Logits (k_s,) of the optimal q(noise variance).

        Args:
            fit (): -E |r - Phi w|^2 E 1/s / 2 at the present logits.
        """
        error = -2.0 * fit.detach() / self.noise_terms().precision.detach()
        return best_noise_logits(error, self.totals[1], *self.noise_grid())
