"""Products of kernels over axes, and a free covariance between the outputs of one axis."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, cast

import torch
from torch import Tensor, nn

from gpx.backends import TileSource
from gpx.constraints import is_trained, positive_parameter, set_above_floor
from gpx.errors import ConfigError, DataError, ShapeError
from gpx.kernels.algebra import Product
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import KernelDerivatives, Scaled
from gpx.kernels.families import resolve_family
from gpx.kernels.parameters import add_outputscale, per_dimension
from gpx.kernels.stationary import Stationary
from gpx.kernels.tiles import ScaledTiles


def checked_groups(axes: Sequence[Sequence[int]], option: str = "axes") -> list[list[int]]:
    """Groups of columns as given in an option; raises ConfigError for anything else."""
    lists = not isinstance(axes, str) and all(isinstance(g, Sequence) for g in axes)
    if not lists or not all(isinstance(i, Integral) for g in axes for i in g):
        shown = axes if isinstance(axes, str) else list(axes)
        raise ConfigError(
            f"{option}={shown}: expected a list of groups of input columns, counted from 0, for "
            "example [[0,1],[2]]"
        )
    return [[int(i) for i in g] for g in axes]


class AxisProduct(Product):
    """k(x, x') = outputscale * prod_l k_l(x_l, x'_l), one stationary kernel per axis.

    Not the same as a radial kernel of several inputs: a radial Matern kernel does not factor.

    Args:
        family: "rbf", "matern12", "matern32", "matern52" or a subclass of ``Stationary``, of every
            factor; or a list with one per axis.
        num_inputs: d; every column is an axis unless ``axes`` says otherwise.
        axes: groups of columns, each with a radial kernel of its own with one lengthscale per
            column; columns may be left out.
        lengthscale: initial value(s), one or one per column.
        outputscale: initial signal variance, one for the whole product; None fixes it to one.

    Raises:
        ConfigError: no such family, or a column in two axes.

    Source: Evans thesis, section 3.2.
    """

    outputscale: Tensor

    def __init__(
        self,
        family: str | type[Stationary] | Sequence[str | type[Stationary]],
        num_inputs: int,
        axes: Sequence[Sequence[int]] | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        outputscale: float | None = 1.0,
    ) -> None:
        groups = [[i] for i in range(num_inputs)] if axes is None else checked_groups(axes)
        columns = [i for g in groups for i in g]
        if len(set(columns)) < len(columns) or not set(columns) <= set(range(num_inputs)):
            raise ConfigError(
                f"axes={groups} must hold every input column (0 to {num_inputs - 1}) once at most"
            )
        one = isinstance(family, (str, type))
        families = [cast(Any, family)] * len(groups) if one else list(cast(Any, family))
        if len(families) != len(groups):
            raise ConfigError(
                f"family={families}: {len(families)} families for {len(groups)} axes; give one for "
                "all of them, or one for each"
            )
        made = [resolve_family(each) for each in families]
        starts = per_dimension(lengthscale, num_inputs, "num_inputs").tolist()
        super().__init__(
            kind(
                ard_num_dims=len(group),
                lengthscale=[starts[i] for i in group],
                outputscale=None,
                active_dims=group,
            )
            for kind, group in zip(made, groups, strict=True)
        )
        self.num_inputs = self.ard_num_dims = num_inputs
        self.groups = groups
        add_outputscale(self, outputscale)

    def _combine(self, values: list[Any]) -> Any:
        return super()._combine([values[0] * self.outputscale, *values[1:]])

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """As in ``Kernel``: the factors' multiplied, and the outputscale."""
        return Scaled(super().derivatives(a, b), self.outputscale)

    @property
    def has_formula(self) -> bool:
        """False: KeOps would need every factor's own distance."""
        return False

    def tiles(self, x1: Tensor, x2: Tensor | None = None) -> TileSource:
        """As in ``Kernel``: the factors' tiles multiplied, and the outputscale."""
        return ScaledTiles(super().tiles(x1, x2), self.outputscale)

    # --- spectrum: the factors' frequencies, concatenated ----------------------------------------

    @property
    def _factors(self) -> list[Any]:
        """The kernels of the axes, in the order of ``groups``.

        Raises ConfigError where columns are left out: no frequency along them is drawn.
        """
        if sum(map(len, self.groups)) < self.num_inputs:
            raise ConfigError(
                f"kernel {self.name} leaves out input columns (axes={self.groups} of "
                f"{self.num_inputs}), along which it has no spectral density; drop them from the "
                "data instead"
            )
        return list(self.parts)

    def num_spectral_normals(self, num_inputs: int) -> int:
        """One for every column, then those of the factors' denominators."""
        return num_inputs + sum(factor.denominator_normals for factor in self._factors)

    def spectral_frequencies(self, normals: Tensor) -> Tensor:
        """Every factor's frequencies in its columns, of the normals of these; (r, d).

        For Matern 1/2 on every column that is a Cauchy distribution along each, the spectrum of
        exp(-sum_k |x_k - x'_k| / lengthscale_k), known as the Laplace kernel.

        Raises:
            ShapeError: normals of frequencies in another number of inputs.
        """
        if normals.shape[1] != self.spectral_normals:
            raise ShapeError(
                f"kernel {self.name} of {self.num_inputs} inputs makes a frequency of "
                f"{self.spectral_normals} normals, got {normals.shape[1]}"
            )
        found, place = [], self.num_inputs
        for factor, group in zip(self._factors, self.groups, strict=True):
            rest = normals[:, place : place + factor.denominator_normals]
            found.append(factor.active_frequencies(torch.cat([normals[:, group], rest], 1)))
            place += factor.denominator_normals
        columns = torch.tensor([i for group in self.groups for i in group]).argsort()
        return torch.cat(found, 1)[:, columns.to(normals.device)]

    def log_spectral_density(self, omega: Tensor) -> Tensor:
        """Sum over the factors, and the log outputscale."""
        pairs = zip(self._factors, self.groups, strict=True)
        total = sum(factor.log_active_density(omega[:, group]) for factor, group in pairs)
        return self.outputscale.log() + total

    def spectral_density(self, omega: Tensor) -> Tensor:
        """Product over the factors, times the outputscale."""
        return self.log_spectral_density(omega).exp()


class Coregionalisation(Kernel):
    """k(i, j) = B_ij between outputs numbered 0 ... q - 1, positive definite and learned.

    The outputs of a multi-output Gaussian process are one more axis of its grid. B includes the
    scale: the other factors need no outputscale. It is L L^T with L lower triangular, or, of rank
    r, A A^T + diag(kappa): r functions that the outputs share, and one of its own for each.

    Args:
        num_outputs: q.
        active_dims: the column that holds the output's number, in its own unit.
        correlation: initial correlation between any two outputs, in [0, 1).
        rank: r, columns of A; None: any B.

    Attributes:
        root: L (q, q), of which the lower triangle counts, or A (q, r).
        own_variance (q,): kappa, where there is a rank.

    Raises:
        ConfigError: fewer than one output, or a correlation or a rank out of range.
        DataError: on evaluation, inputs that are not whole numbers from 0 to q - 1.

    Source: Evans thesis, section 3.5.3; with a rank Bonilla, Chai and Williams 2008, section 2.2.
    """

    own_variance: Tensor

    def __init__(
        self,
        num_outputs: int,
        active_dims: Sequence[int],
        correlation: float = 0.5,
        rank: int | None = None,
    ) -> None:
        super().__init__(active_dims)
        if num_outputs < 1 or not 0.0 <= correlation < 1.0:
            raise ConfigError(
                f"kernel: num_outputs={num_outputs} must be at least 1 and correlation="
                f"{correlation} in [0, 1)"
            )
        if rank is not None and not 1 <= rank <= num_outputs:
            raise ConfigError(
                f"rank={rank} of a covariance of {num_outputs} outputs must be from 1 to "
                f"{num_outputs}; None leaves it free"
            )
        self.num_outputs, self.rank = num_outputs, rank
        self.root = nn.Parameter(torch.empty(num_outputs, num_outputs if rank is None else rank))
        if rank is not None:
            positive_parameter(self, "own_variance", torch.ones(num_outputs))
        self.start_at(torch.eye(num_outputs) * (1.0 - correlation) + correlation)

    @torch.no_grad()
    def start_at(self, matrix: Tensor) -> None:
        """Set what is trained of B so that B is ``matrix`` (q, q), or of a rank near it.

        Then A holds the leading principal axes, and kappa what they lack of the diagonal.
        """
        if self.rank is None:
            if self.root.requires_grad:
                self.root.copy_(torch.linalg.cholesky(matrix))
            return
        values, vectors = torch.linalg.eigh(matrix)
        # the least eigenvalue is kappa's, so that no entry of it starts at zero
        above = (values - values[0]).clamp_min(0.0)[-self.rank :]
        axes = (vectors[:, -self.rank :] * above.sqrt()).to(self.root)
        if self.root.requires_grad:
            self.root.copy_(axes)
        if is_trained(self, "own_variance"):
            rest = matrix.diagonal().to(axes) - axes.square().sum(1)
            set_above_floor(self, "own_variance", rest)

    def factor(self) -> Tensor:
        """F (q, c) with F F^T = B: L, or A beside the roots of kappa."""
        if self.rank is None:
            return self.root.tril()
        return torch.cat([self.root, self.own_variance.sqrt().diag()], 1)

    def matrix(self) -> Tensor:
        """B (q, q)."""
        factor = self.factor()
        return factor @ factor.mT

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self.matrix()[self._numbers(x1)][:, self._numbers(x2)]

    def variance(self, x: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self.matrix().diagonal()[self._numbers(x)]

    def _numbers(self, x: Tensor) -> Tensor:
        found = x[:, 0].round()
        wrong = ((found - x[:, 0]).abs() > 1e-6) | (found < 0) | (found >= self.num_outputs)
        if bool(wrong.any()):
            raise DataError(
                f"an output is numbered {float(x[wrong.nonzero()[0, 0], 0]):.9g}; expected whole "
                f"numbers from 0 to {self.num_outputs - 1} in that column, in its own unit, as "
                "grids of several values have them (a Table lists the column in its labels); for "
                "several targets of a table there is likelihood=GaussianOutputs()"
            )
        return found.long()


class MultiOutput(Product):
    """Kernels over the axes times a ``Coregionalisation`` of the outputs in the last column.

    Args:
        family, lengthscale: see ``AxisProduct``.
        num_inputs: d, the column of the output's number included.
        num_outputs: q.
        axes: groups of the other columns; None: each is an axis.
        correlation: initial correlation between outputs.

    Raises:
        ConfigError: as ``AxisProduct`` and ``Coregionalisation``, or no column beside the output's.
    """

    def __init__(
        self,
        family: str | Sequence[str],
        num_inputs: int,
        num_outputs: int,
        axes: Sequence[Sequence[int]] | None = None,
        lengthscale: float | Sequence[float] = 1.0,
        correlation: float = 0.5,
    ) -> None:
        last = num_inputs - 1
        if last < 1:
            raise ConfigError(
                f"MultiOutput of num_inputs={num_inputs}: the last column is the number of the "
                "output, as grids of several values have it, and leaves none for the inputs; for "
                "several targets of a table there is likelihood=GaussianOutputs()"
            )
        groups = [[i] for i in range(last)] if axes is None else checked_groups(axes)
        if any(last in g and len(g) > 1 for g in groups):
            raise ConfigError(
                f"axes={groups}: the outputs are numbered in column {last}, which must be "
                "an axis of its own"
            )
        super().__init__(
            [
                AxisProduct(
                    family,
                    num_inputs,
                    [g for g in groups if last not in g],
                    lengthscale,
                    outputscale=None,
                ),
                Coregionalisation(num_outputs, [last], correlation),
            ]
        )
