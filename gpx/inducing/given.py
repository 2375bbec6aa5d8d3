"""Inducing points of one's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.errors import DataError, ShapeError
from gpx.inducing.base import Selection, Selector
from gpx.kernels.base import Kernel


class Given(Selector):
    """These points, whatever the data: ``SVGP(..., selector=Given(z))``.

    They are placed by ``model.initialise`` and trained as those of any selector. SVGP, SGPR, CGLB
    and ``EffectivePrior`` have as many inducing points as are given, whatever their
    ``num_inducing``. Other models, ``SubsetOfData`` and ``ClusterBlocks`` must be asked for just
    this number, and refuse another. ``SubsetOfData`` takes the row nearest to each point.

    Args:
        points (M, d): in the unit of the model's inputs, with DKL in that of its features; need not
            be rows of the data. As a text, of which a config holds thousands of numbers more
            quickly: numbers of a point separated by blanks and points by semicolons, "0 1.5; 2 3".

    Raises:
        ShapeError: no matrix of at least one point. DataError: values that are not finite, or a
            text of something else than numbers.

    Cost: none.
    """

    def __init__(self, points: Tensor | Sequence[Sequence[float]] | str) -> None:
        if isinstance(points, str):
            points = _numbers(points)
        self.points = torch.as_tensor(points, dtype=torch.float64).detach().clone()
        if self.points.ndim != 2 or not len(self.points):
            raise ShapeError(
                f"inducing points must be a matrix (M, d), got {tuple(self.points.shape)}"
            )
        if not bool(self.points.isfinite().all()):
            raise DataError("inducing points hold NaN or infinite values")

    def construction(self) -> dict[str, str]:
        """As in ``Selector``: the points as a text."""
        return {"points": "; ".join(" ".join(map(repr, row)) for row in self.points.tolist())}

    @property
    def fixed_number(self) -> int:  # type: ignore[override]
        """M: that of the points."""
        return len(self.points)

    def select(
        self,
        x: Tensor,
        kernel: Kernel,
        num_inducing: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Selection:
        """The points, in the dtype and on the device of x (n, d)."""
        if x.shape[1] != self.points.shape[1]:
            raise ShapeError(
                f"the inducing points have {self.points.shape[1]} inputs and the data {x.shape[1]}"
            )
        return self._select(x, kernel, num_inducing, generator)

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        return Selection(points=self.points.to(x, copy=True))


def _numbers(text: str) -> Tensor:
    """The points (M, d) that a text lists."""
    try:
        rows = [[float(number) for number in row.split()] for row in text.split(";")]
    except ValueError as error:
        raise DataError(f"inducing points: {error} in the text of their values") from error
    if len({len(row) for row in rows}) > 1:
        raise ShapeError("inducing points: the points of a text differ in their number of inputs")
    return torch.tensor(rows, dtype=torch.float64)
