"""Learned projections of many inputs to the few inputs of a grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError
from gpx.tensor_checks import check_at_least, check_one_of

Constraint = Literal["unit", "orthonormal", "free"]


class Projection(nn.Module, ABC):
    """u = h(x): (n, D) -> (n, d), differentiable in its parameters.

    Attributes:
        num_inputs, num_outputs: D and d.
    """

    num_inputs: int
    num_outputs: int

    @property
    def shortens(self) -> bool:
        """Whether no output is longer than the inputs, |u_r| <= |x|, wherever the parameters go."""
        return False

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Inputs of the grid, (n, d)."""


class LinearProjection(Projection):
    """u = P x with P (d, D).

    Args:
        num_inputs, num_outputs: D and d.
        constraint: "unit" (rows of norm one) or "orthonormal" (P P^T = I), which leave the scale to
            the lengthscales, or "free".
        seed: of the normal entries from which P starts.

    Raises:
        ConfigError: an unknown constraint, or more outputs than inputs.

    Source: Hultin 2017, section 3.5.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int = 2,
        constraint: Constraint = "unit",
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_one_of(get_args(Constraint), constraint=constraint)
        _check_sizes(num_inputs, num_outputs)
        self.num_inputs, self.num_outputs, self.constraint = num_inputs, num_outputs, constraint
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(num_outputs, num_inputs, generator=generator, dtype=torch.float64)
        start = start / start.norm(dim=1, keepdim=True)
        self.raw = nn.Parameter(start.to(torch.get_default_dtype()))

    @property
    def shortens(self) -> bool:
        """As in ``Projection``: rows of norm one."""
        return self.constraint != "free"

    @property
    def matrix(self) -> Tensor:
        """The constrained P (d, D)."""
        if self.constraint == "unit":
            return self.raw / self.raw.norm(dim=1, keepdim=True)
        if self.constraint == "orthonormal":
            # QR instead of (R R^T)^{-1/2} R, whose gradient divides by differences of eigenvalues;
            # both span the same rows
            basis, upper = torch.linalg.qr(self.raw.mT)
            return (basis * upper.diagonal().sign()).mT
        return self.raw

    def forward(self, x: Tensor) -> Tensor:
        """Inputs of the grid, (n, d)."""
        return x @ self.matrix.mT


class NetworkProjection(Projection):
    """u is the output of a small network with tanh units and a linear layer: a deep kernel.

    Args:
        num_inputs, num_outputs: D and d.
        hidden: units of each hidden layer.
        seed: of the weights.

    Source: Hultin 2017, section 3.5; Wilson et al. 2016.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int = 2,
        hidden: Sequence[int] = (32,),
        seed: int = 0,
    ) -> None:
        super().__init__()
        _check_sizes(num_inputs, num_outputs)
        self.num_inputs, self.num_outputs = num_inputs, num_outputs
        sizes = [num_inputs, *hidden, num_outputs]
        if min(sizes) < 1:
            raise ConfigError(f"hidden={list(hidden)}: every layer needs at least one unit")
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList()
        for before, after in pairwise(sizes):
            layer = nn.Linear(before, after)
            with torch.no_grad():
                layer.weight.normal_(std=before**-0.5, generator=generator)
                layer.bias.zero_()
            self.layers.append(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs of the grid, (n, d)."""
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        found: Tensor = self.layers[-1](x)
        return found


def _check_sizes(num_inputs: int, num_outputs: int) -> None:
    check_at_least(1, num_outputs=num_outputs)
    if num_inputs < num_outputs:
        raise ConfigError(
            f"num_outputs={num_outputs}: no projection of {num_inputs} inputs has more outputs"
        )
