"""Covariances of a function with its partial derivatives, and what they are of any kernel.

With f of covariance k, cov(df/dx_i, f') = dk/dx_i, cov(f, df'/dx'_j) = dk/dx'_j and
cov(df/dx_i, df'/dx'_j) = d2k / dx_i dx'_j (Rasmussen and Williams 2006, section 9.4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotAvailable

if TYPE_CHECKING:
    from gpx.kernels.base import Kernel

Input = int | None
"""Column of x by which is differentiated; None: the function itself."""

SUPPORTED = "RBF(), Matern52(), Matern32(), RationalQuadratic(), Periodic() or Polynomial()"


class KernelDerivatives(ABC):
    """k of rows a and b, and its derivatives by single inputs, all differentiable in parameters.

    A subclass writes ``part``. Values are computed when they are asked for; those of first order,
    which products of kernels need again and again, are kept.

    Args:
        a (..., d), b (..., d): inputs, whose leading dimensions are broadcast: (n1, 1, d) and
            (1, n2, d) for all pairs, (n, d) and (n, d) for corresponding rows.
    """

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b
        self.shape = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        self._kept: dict[tuple[Input, Input], Tensor | None] = {}

    @abstractmethod
    def part(self, i: Input, j: Input) -> Tensor | None:
        """k differentiated by a_i, where i is given, and by b_j, where j is; None where it is 0.

        Of a shape that broadcasts to that of all pairs (...).
        """

    def of(self, i: Input, j: Input) -> Tensor | None:
        """``part``, kept if it is of order one or zero."""
        if i is not None and j is not None:
            return self.part(i, j)
        if (i, j) not in self._kept:
            self._kept[i, j] = self.part(i, j)
        return self._kept[i, j]

    def entry(self, i: Input, j: Input) -> Tensor:
        """``part`` (...), with zeros in place of None."""
        found = self.of(i, j)
        return self.a.new_zeros(self.shape) if found is None else found.expand(self.shape)


class ByAutograd(KernelDerivatives):
    """Of any kernel whose ``pairs`` torch can differentiate twice.

    Args:
        kernel: evaluated by ``pairs``.
        a (..., d), b (..., d): inputs.

    Cost: one evaluation and a backward pass for every input that is asked for.
    """

    def __init__(self, kernel: Kernel, a: Tensor, b: Tensor) -> None:
        super().__init__(a, b)
        self.kernel, self.keep = kernel, torch.is_grad_enabled()
        flat = [part.expand(*self.shape, a.shape[-1]).flatten(0, -2) for part in (a, b)]
        self.left, self.right = (
            x if x.requires_grad else x.detach().clone().requires_grad_() for x in flat
        )
        with torch.enable_grad():
            self.value = kernel.pairs(self.left, self.right)
        self._found: dict[tuple[bool, Input], Tensor | None] = {}

    def part(self, i: Input, j: Input) -> Tensor | None:
        """By one or two passes of autograd."""
        if i is None and j is None:
            return self._out(self.value)
        if j is None:
            return self._column(self._slopes(self.left), i)
        return self._column(self._slopes(self.right, i), j)

    def _slopes(self, rows: Tensor, first: Input = None) -> Tensor | None:
        """Gradients (pairs, d) by rows of one side, of k or of its derivative by a_first."""
        key = (rows is self.left, first)
        if key not in self._found:
            value: Tensor | None = self.value
            with torch.enable_grad():
                if first is not None:
                    before = self._slopes(self.left)
                    value = None if before is None else before[:, first]
                self._found[key] = self._gradient(value, rows)
        return self._found[key]

    def _gradient(self, value: Tensor | None, rows: Tensor) -> Tensor | None:
        if value is None or not value.requires_grad:
            return None
        try:
            (found,) = torch.autograd.grad(
                value.sum(), rows, create_graph=True, retain_graph=True, allow_unused=True
            )
        except NotAvailable as error:
            raise no_derivatives(self.kernel, "torch cannot differentiate it twice") from error
        return found

    def _column(self, slopes: Tensor | None, i: Input) -> Tensor | None:
        return None if slopes is None else self._out(slopes[:, i])

    def _out(self, found: Tensor) -> Tensor:
        found = found.reshape(self.shape)
        return found if self.keep else found.detach()


def no_derivatives(kernel: Kernel, why: str) -> ConfigError:
    """The error for a kernel that has no derivatives by its inputs, or does not say them."""
    return ConfigError(
        f"kernel {kernel.name} has no covariances with derivatives: {why}; take kernel="
        f"{SUPPORTED}, or sums and products of them; a kernel of your own writes derivatives(a, b),"
        " or where it is Stationary slopes(r2)"
    )
