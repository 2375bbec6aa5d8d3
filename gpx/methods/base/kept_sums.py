"""Sums over the data that a model keeps in place of its rows, so that rows can come and go."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.data_sized import InDoublePrecision
from gpx.errors import DataError
from gpx.methods.base.model import Model
from gpx.methods.base.trained_columns import TrainedColumns
from gpx.tensor_checks import check_inputs, check_targets


class KeptSums(InDoublePrecision):
    """A model or posterior with ``SufficientStatistics`` in its state; float64 buffers.

    Attributes:
        gram (m, m), projected (m,): Phi^T Phi and Phi^T r.
        totals (2 or more,): |r|^2, n, and further numbers of the module.
    """

    in_double: ClassVar[tuple[str, ...]] = ("totals",)

    gram: Tensor
    projected: Tensor
    totals: Tensor

    @property
    def statistics(self) -> SufficientStatistics:
        """Sums over the data; assigning sums that are not finite raises DataError."""
        squared, count = self.totals[:2].unbind()
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
        first = torch.stack([new.squared, new.squared.new_tensor(float(new.num_data))])
        self.totals = torch.cat([first, self.totals[2:].to(first)])
        self._forget_derived()


class SummedModel(TrainedColumns, KeptSums, Model):
    """A model that keeps sums over the data, so that rows can be added and removed.

    Subclasses define the functions Phi by ``sums``.
    """

    @abstractmethod
    def sums(self, x: Tensor, y: Tensor) -> SufficientStatistics:
        """Sums over the rows x (n, d), y (n,)."""

    @torch.no_grad()
    def add_rows(self, x: Tensor, y: Tensor) -> None:
        """Add data x (b, d), y (b,), at O(b m^2); what was learned stays, to be trained further.

        Raises:
            ShapeError, DTypeError: rows unlike those of ``initialise``.
            ConfigError: as ``check_rows``.
        """
        self.check_rows(x, y)
        self.statistics = self.statistics + self.sums(x, y)

    @torch.no_grad()
    def remove_rows(self, x: Tensor, y: Tensor) -> None:
        """Remove data x (b, d), y (b,) that were used before.

        Raises:
            ConfigError: more rows than there are, or as ``check_rows``.
            ShapeError, DTypeError: rows unlike those of ``initialise``.
        """
        self.check_rows(x, y)
        self.statistics = self.statistics - self.sums(x, y)

    def check_rows(self, x: Tensor, y: Tensor) -> None:
        """Raise ShapeError or DTypeError for rows that cannot be added or removed."""
        check_inputs(self, x, self.num_inputs or self.trained_columns)
        check_targets(self, x, y)
