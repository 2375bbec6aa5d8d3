"""Local Kriging: every snapshot of a gappy field is a Gaussian process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gpx.kernels.base import Kernel
from gpx.methods.grid.model import GridGP


class Independent(Kernel):
    """k = 1 at equal points and 0 elsewhere: values at different points are independent.

    Args:
        active_dims: the columns that must be equal (a snapshot's time); compared exactly.
    """

    def __init__(self, active_dims: Sequence[int]) -> None:
        super().__init__(active_dims)

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return (x1.unsqueeze(1) == x2.unsqueeze(0)).all(2).to(x1)

    def variance(self, x: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return x.new_ones(x.shape[0])


def local_kriging(kernel: Kernel, snapshot: Sequence[int], **model: Any) -> GridGP:
    """A ``GridGP`` whose snapshots are independent and share hyperparameters.

    The snapshot's axis becomes an identity factor, so that exact inference over the whole grid is
    exact inference in each snapshot alone, and the evidence is the sum of theirs.

    Args:
        kernel: over the other axes.
        snapshot: input columns that number the snapshots; the kernel must not look at them.
        model: further arguments of ``GridGP``: mean, likelihood, gaps, tolerance ...

    Source: Evans thesis, section 3.5.4 ("GP-Local"); shared hyperparameters are a choice.
    """
    return GridGP(kernel=kernel * Independent(snapshot), **model)
