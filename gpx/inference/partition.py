"""A partition of the input space into the cells of centres: who shares a block with whom."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.data_sized import DataSized
from gpx.errors import ShapeError
from gpx.inducing.kmeans import KMeans, distance_unit, nearest_centre
from gpx.kernels.base import Kernel


class Partition(DataSized):
    """Every input belongs to the block of its nearest centre, training and test inputs alike.

    Distances are of inputs divided by ``unit``. Empty until ``place`` or a stored state fills it.

    Attributes:
        centres (K, d), unit (d,): in the units of the inputs.
    """

    data_sized = ("centres", "unit")
    centres: Tensor
    unit: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_data_sized()

    def place(self, centres: Tensor, unit: Tensor) -> None:
        """Take K centres (K, d) and the unit of distance of each input (d,)."""
        self.keep(centres, centres=centres, unit=unit)

    @torch.no_grad()
    def place_by_kmeans(
        self, x: Tensor, kernel: Kernel, num: int, *, generator: torch.Generator | None = None
    ) -> None:
        """The centres of ``num`` k-means clusters of x (n, d), at the kernel's lengthscales.

        Raises:
            DataError: more blocks than rows.
        """
        unit = distance_unit(x, kernel)
        self.place(KMeans()(x, kernel, num, generator=generator), unit)

    def labels(self, x: Tensor) -> Tensor:
        """Number of the block (n,) of each row of x (n, d). Cost: n K d; no n x K array.

        Raises:
            ShapeError: another number of inputs.
        """
        if x.shape[1] != len(self.unit):
            raise ShapeError(
                f"inputs have {x.shape[1]} columns and the blocks were made for {len(self.unit)}"
            )
        return nearest_centre(x.detach() / self.unit, self.centres / self.unit)

    def order(self, x: Tensor) -> tuple[Tensor, list[int]]:
        """Rows of x (n, d) in the order of their blocks.

        Returns:
            the order (n,), and the K + 1 places where blocks begin and end in it; empty blocks
            begin where they end.
        """
        labels = self.labels(x)
        counts = torch.bincount(labels, minlength=len(self.centres))
        ends: list[int] = counts.cumsum(0).tolist()
        return labels.argsort(stable=True), [0, *ends]
