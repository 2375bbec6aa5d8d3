"""A covariance function as a product of one-dimensional ones, one per input column."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from gpx.constraints import FLOOR, is_trained
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.exponential import EXPONENT_FLOOR
from gpx.kernels.own_covariance import computes_as
from gpx.kernels.periodic import Periodic
from gpx.kernels.rbf import RBF
from gpx.kernels.stationary import Stationary
from gpx.kernels.structure import factors
from gpx.kernels.wendland import Wendland
from gpx.linalg.known_gradient import first_derivative_only


class ProductFactors:
    """The factors of a product kernel k(x, z) = outputscale prod_i k_i(x_i, z_i), k_i(0) = 1.

    Refers to the kernel's parts, so that values are differentiable in their parameters.

    Args:
        kernel: a squared exponential over any columns, any other stationary kernel over one
            column, or products and multiples of those. Unused columns have k_i = 1.
        num_inputs: d.

    Raises:
        ConfigError: the kernel does not factor, such as a radial Matern over several columns.

    Source: Evans thesis, section 2.2.
    """

    def __init__(self, kernel: Kernel, num_inputs: int) -> None:
        self.num_inputs = num_inputs
        self._scales: list[tuple[Kernel, str]] = []
        self._parts: list[tuple[Stationary, list[int]]] = []
        for part, scale in factors(kernel):
            if scale is None:
                self._take(part)
            else:
                self._scales.append((part, scale))

    def _take(self, kernel: Kernel) -> None:
        """Add one factor that is no scale."""
        columns = list(range(self.num_inputs))
        if kernel.active_dims is not None:
            columns = kernel.active_dims.tolist()
        if max(columns) >= self.num_inputs:
            raise ConfigError(
                f"active_dims asks for column {max(columns)}, but the inputs have only "
                f"{self.num_inputs} columns, numbered from 0"
            )
        if isinstance(kernel, Stationary) and not _has_known_coordinates(kernel):
            raise ConfigError(
                f"kernel {kernel.name} has coordinates of its own, and the one-dimensional kernels "
                "of a grid are computed from x / lengthscale: use a kernel that overrides "
                "of_squared_distance only"
            )
        separate = computes_as(kernel, RBF, Periodic) or len(columns) == 1
        separate &= type(kernel).covariance is Stationary.covariance
        if not isinstance(kernel, Stationary) or not separate:
            raise ConfigError(
                f"kernel {kernel.name} over {len(columns)} columns is no product of "
                "one-dimensional kernels, which a grid needs: use kernel=RBF(), a product over "
                "axes such as kernel=AxisProduct(family=matern32), or one of stationary kernels "
                "with one column each (active_dims)"
            )
        self._scales.append((kernel, "outputscale"))
        self._parts.append((kernel, columns))

    @property
    def outputscale(self) -> Tensor:
        """Product of all scales, 0-d; the factors have none."""
        values = [cast(Tensor, getattr(kernel, name)) for kernel, name in self._scales]
        return reduce(torch.mul, values)

    @property
    def learned_scales(self) -> list[tuple[Kernel, str]]:
        """Kernels whose scale is trained, each with the name of the attribute."""
        return [(kernel, name) for kernel, name in self._scales if _is_learned(kernel, name)]

    @torch.no_grad()
    def set_outputscale(self, value: Tensor) -> None:
        """Set the product of all scales to ``value`` through the first learned one, if any."""
        for kernel, name in self.learned_scales[:1]:
            current = cast(Tensor, getattr(kernel, name))
            wanted = value.to(current) * current / self.outputscale.to(current)
            setattr(kernel, name, wanted.clamp(min=2.0 * FLOOR))

    @property
    def learned_lengthscales(self) -> list[tuple[Stationary, list[int]]]:
        """Parts whose lengthscale is trained, each with its columns."""
        return [(k, c) for k, c in self._parts if _is_learned(k, "lengthscale")]

    @torch.no_grad()
    def raise_lengthscales(self, least: Tensor) -> list[int]:
        """Raise lengthscales to at least ``least`` (d,); a shared one to its columns' smallest.

        Those of periodic parts stay: they are relative to the period.

        Returns:
            the columns whose lengthscale was raised.
        """
        raised: list[int] = []
        for part, columns in self.learned_lengthscales:
            if not part.lengthscale_in_unit_of_x:
                continue
            current = part.lengthscale
            floor = least[columns].to(current)
            wanted = torch.maximum(current, floor if current.ndim else floor.min())
            moved = (wanted > current).expand(len(columns))
            if bool(moved.any()):
                part.lengthscale = wanted
                raised += [c for c, m in zip(columns, moved.tolist(), strict=True) if m]
        return sorted(raised)

    def squared_exponential_precision(self) -> Tensor | None:
        """b (d,) with k_i(t) = exp(-b_i t^2 / 2) for every column; None for other kernels."""
        total: Tensor | None = None
        for part, columns in self._parts:
            if not _has_profile_of_rbf(part):
                return None
            square = part.lengthscale.reciprocal().square()
            if total is None:
                total = square.new_zeros(self.num_inputs)
            where = torch.tensor(columns, device=square.device)
            total = total.index_add(0, where, square.expand(len(columns)))
        return total

    def evaluate(self, nodes: Tensor, x: Tensor) -> Tensor:
        """k_i(node, x_i) for every column: (d, m, n).

        Args:
            nodes (d, m): points along each column.
            x (n, d): inputs.

        Cost: O(d m n) time and memory.
        """
        points = x.mT
        whole = list(range(self.num_inputs))
        if len(self._parts) == 1 and self._parts[0][1] == whole:
            return _profile(self._parts[0][0], nodes, points)
        found: list[list[Tensor]] = [[] for _ in whole]
        for part, columns in self._parts:
            for column, value in zip(
                columns, _profile(part, nodes[columns], points[columns]), strict=True
            ):
                found[column].append(value)
        ones = x.new_ones(nodes.shape[1], x.shape[0])
        return torch.stack([reduce(torch.mul, values) if values else ones for values in found])


def _is_learned(kernel: Kernel, name: str) -> bool:
    return is_parametrized(kernel, name) and is_trained(kernel, name)


def _profile(part: Stationary, nodes: Tensor, points: Tensor) -> Tensor:
    """Values (q, m, n) of nodes (q, m) against points (q, n), for all q columns of the part."""
    lengthscale = _per_column(part.lengthscale, nodes, points)
    if isinstance(part, Periodic):
        turn = math.pi / _per_column(part.period, nodes, points)
        sine = ((nodes * turn).unsqueeze(2) - (points * turn).unsqueeze(1)).sin()
        return part.of_squared_distance((2.0 * sine / lengthscale.unsqueeze(2)).square())
    if not points.requires_grad and _has_profile_of_rbf(part):
        out = _SquaredExponential.apply(nodes, points, lengthscale)
        assert isinstance(out, Tensor)
        return out
    square = ((nodes / lengthscale).unsqueeze(2) - (points / lengthscale).unsqueeze(1)).square()
    if isinstance(part, RBF):
        return part.of_squared_distance(square)
    # a square root has an infinite slope at zero: these entries are one, without a graph
    zero = square == 0
    value = part.of_squared_distance(square.masked_fill(zero, 1.0))
    return torch.where(zero, torch.ones_like(value), value)


def _has_known_coordinates(kernel: Stationary) -> bool:
    """Whether the coordinates are those that ``_profile`` computes."""
    # Wendland's only check how many there are
    known: set[Any] = {Stationary.coordinates, Wendland.coordinates}
    if isinstance(kernel, Periodic):
        known = {Periodic.coordinates}
    return type(kernel).coordinates in known


def _per_column(value: Tensor, nodes: Tensor, points: Tensor) -> Tensor:
    """A parameter of one or all columns as (q, 1)."""
    return value.expand(nodes.shape[0]).unsqueeze(1).to(points.dtype)


def _has_profile_of_rbf(part: Stationary) -> bool:
    """Whether the kernel has RBF's own profile."""
    return type(part).of_squared_distance is RBF.of_squared_distance and isinstance(part, RBF)


SPACING_TOLERANCE = 8.0
"""Nodes whose spacing deviates by at most this many rounding units count as evenly spaced."""

MIN_RECURRENCE_NODES = 4
"""Fewest nodes per axis for which the recurrence is used instead of one exponential per node."""

MAX_DISTANCE = 12.0
"""Largest distance of a point to the first or last node, in lengthscales, for ``_by_recurrence``:
exp(-12^2 / 2) = 1e-31 is far above the smallest number of either dtype."""


def _even_step(nodes: Tensor, points: Tensor, lengthscale: Tensor) -> Tensor | None:
    """Spacing (q, 1) of evenly spaced nodes (q, m) in lengthscales, for ``_by_recurrence``.

    None where nodes are unevenly spaced or points (q, n) too far away; and on a GPU, where the
    check would synchronise and exponentials cost nothing beside memory.
    """
    if torch.compiler.is_exporting():  # the inputs are not known
        return None
    if (
        not nodes.is_cpu
        or nodes.shape[1] < MIN_RECURRENCE_NODES
        or points.shape[1] < nodes.shape[1]
    ):
        return None
    gaps = nodes.diff(dim=1)
    step = gaps.mean(1, keepdim=True)
    rounded = SPACING_TOLERANCE * torch.finfo(nodes.dtype).eps * nodes.abs().amax(1, keepdim=True)
    if not bool(((gaps - step).abs() <= rounded).all()):
        return None
    low = torch.minimum(nodes[:, 0], points.amin(1))
    high = torch.maximum(nodes[:, -1], points.amax(1))
    if not bool(((high - low).unsqueeze(1) <= MAX_DISTANCE * lengthscale).all()):
        return None
    return step / lengthscale


def _by_recurrence(nodes: Tensor, points: Tensor, lengthscale: Tensor, step: Tensor) -> Tensor:
    """exp(-((u - x) / l)^2 / 2) at evenly spaced nodes (q, m): two exponentials a point, not m.

    With t = (x - u_0) / l and h = step: e_0 = exp(-t^2 / 2), e_{k+1} = e_k r exp(-k h^2) with
    r = exp(t h - h^2 / 2). Relative error: about m units in the last place.
    """
    q, m = nodes.shape
    out = points.new_empty(m, q, points.shape[1])  # nodes outermost: each step is one long run
    t = (points / lengthscale).contiguous().sub_(nodes[:, :1] / lengthscale)
    torch.mul(t, t, out=out[0]).mul_(-0.5).exp_()
    ratio = t.mul_(step).sub_(0.5 * step.square()).exp_()
    shrink = (-step.square()).exp()
    for k in range(m - 1):
        torch.mul(out[k], ratio, out=out[k + 1])
        ratio.mul_(shrink)
    return out.transpose(0, 1)


class _SquaredExponential(torch.autograd.Function):
    """exp(-((u - x) / l)^2 / 2) of nodes (q, m), points (q, n): one buffer, gradient in l (q, 1).

    With many axes or nodes these entries, not their products, dominate the cost of features.
    """

    @staticmethod
    def forward(ctx: Any, nodes: Tensor, points: Tensor, lengthscale: Tensor) -> Tensor:
        step = _even_step(nodes, points, lengthscale)
        if step is not None:
            out = _by_recurrence(nodes, points, lengthscale, step)
        else:
            scale = math.sqrt(0.5) / lengthscale
            out = (nodes * scale).unsqueeze(2) - (points * scale).unsqueeze(1)
            torch.addcmul(out.new_zeros(()), out, out, value=-1.0, out=out)
            out.clamp_(min=EXPONENT_FLOOR).exp_()
        ctx.save_for_backward(nodes, points, lengthscale, out)
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        nodes, points, lengthscale, out = ctx.saved_tensors
        scale = math.sqrt(2.0) / lengthscale  # two halves of a squared distance
        slope = (nodes * scale).unsqueeze(2) - (points * scale).unsqueeze(1)
        slope = slope.square_().mul_(out).mul_(grad).sum((1, 2)).unsqueeze(1)
        return None, None, 0.5 * slope / lengthscale
