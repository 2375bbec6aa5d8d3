"""A kernel of categorical inputs."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError, ShapeError
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import KernelDerivatives, Unchanging
from gpx.kernels.exponential import exponential
from gpx.kernels.parameters import add_outputscale, per_dimension

SAME_CATEGORY_DISTANCE = 1e-6
"""Inputs that differ by at most this are of the same category."""


class Categorical(Kernel):
    """k = outputscale * exp(- sum_g [x_g is not x'_g] / lengthscale_g): an exponentiated Hamming
    distance between categories.

    A categorical variable is a group of inputs, such as the 0/1 columns that a table's column of
    texts becomes, or a single input with the category's number. Two rows are of one category where
    all inputs of the group agree; all other pairs are equally far. A category without training rows
    is treated like any other. As a factor it makes the other kernels' functions differ between
    categories: ``Matern52(active_dims=[0]) * Categorical([[1, 2]], outputscale=None)``.

    Args:
        groups: columns of x of each categorical variable; None: all columns form one.
        lengthscale: initial value(s), one for each group: at 1 two categories have correlation
            exp(-1), at much larger values they share one function, at much smaller ones they have
            independent functions.
        outputscale: initial signal variance, in squared units of y; None fixes it to one.

    Raises:
        ConfigError: a group is empty or holds something other than column numbers, or the number of
            lengthscales is neither one nor that of the groups.
        ShapeError: when evaluated at inputs that lack a column.

    Derivatives with respect to inputs are zero. Cost: O(n1 n2 c) time for c columns of groups, one
    matrix of booleans and one of numbers for each group.

    Source: Halstrup 2016, "Black-box optimization of mixed discrete-continuous optimization
    problems" (Gower and Hamming distances in kernels).
    """

    lengthscale_in_unit_of_x = False

    lengthscale: Tensor
    outputscale: Tensor

    def __init__(
        self,
        groups: Sequence[Sequence[int]] | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        outputscale: float | None = 1.0,
    ) -> None:
        super().__init__()
        if groups is not None:
            for group in groups:
                listed = isinstance(group, Sequence) and not isinstance(group, str) and group
                if not listed or not all(isinstance(c, Integral) and c >= 0 for c in group):
                    raise ConfigError(
                        f"groups holds {group}: each group must list column numbers from 0 on, as "
                        "in groups=[[0, 1], [2]]"
                    )
            groups = [[int(column) for column in group] for group in groups]
        self.groups = groups
        count = 1 if groups is None else len(groups)
        positive_parameter(self, "lengthscale", per_dimension(lengthscale, count, "len(groups)"))
        add_outputscale(self, outputscale)

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self._compare(x1.unsqueeze(1), x2.unsqueeze(0), (len(x1), len(x2)))

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``, in O(n c)."""
        return self._compare(self._select(x1), self._select(x2), (len(x1),))

    def variance(self, x: Tensor) -> Tensor:
        """The outputscale at every row."""
        return self.outputscale.expand(x.shape[0])

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``: zero by inputs that are in no group.

        Raises:
            ConfigError: when it is differentiated by an input of a group.
        """
        d = a.shape[-1]
        groups = [list(range(d))] if self.groups is None else self.groups
        rows = [x.expand(*torch.broadcast_shapes(a.shape, b.shape)) for x in (a, b)]
        value = self._compare(rows[0], rows[1], tuple(rows[0].shape[:-1]))
        steps = {column for group in groups for column in group}
        return Unchanging(a, b, value, self, steps)

    def _compare(self, first: Tensor, second: Tensor, shape: tuple[int, ...]) -> Tensor:
        """k (shape) of rows (..., d) that are broadcast against each other."""
        d = first.shape[-1]
        groups = [list(range(d))] if self.groups is None else self.groups
        needed = max((column for group in groups for column in group), default=-1)
        if needed >= d:
            raise ShapeError(
                f"groups ask for column {needed}, but the inputs have only {d} columns, numbered "
                "from 0"
            )
        # inputs that are wider than the parameters, for matrices to factorise, give as wide values
        dtype = torch.promote_types(first.dtype, self.outputscale.dtype)
        exponent = self.outputscale.new_zeros(shape, dtype=dtype)
        for group, lengthscale in zip(groups, self.lengthscale, strict=True):
            apart = torch.zeros(shape, dtype=torch.bool, device=first.device)
            for column in group:
                apart |= (
                    first[..., column] - second[..., column]
                ).detach().abs() > SAME_CATEGORY_DISTANCE
            exponent = exponent + apart.to(exponent.dtype) / lengthscale
        return self.outputscale * exponential(-exponent)
