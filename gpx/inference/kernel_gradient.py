"""Gradients of weighted sums of kernel entries: gathered block by block, or from products.

``KernelGradient`` serves every kernel and any weights; ``stationary_gradient`` those of two vectors
and a stationary kernel, at a third of the work.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gpx.backends import Chunked, Entries
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary
from gpx.kernels.tiles import StationaryTiles

NATURAL = {
    "parametrizations.lengthscale.original": "lengthscale",
    "parametrizations.outputscale.original": "outputscale",
}


class KernelGradient:
    """Accumulates d sum_ij W_ij k(a_i, b_j) over blocks of rows and columns.

    Every block builds and frees its own small autograd graph, so that memory is a few blocks
    whatever the size of the kernel matrix. Sums of parameter gradients are kept in float64.

    Args:
        kernel: differentiated in those of its parameters that require a gradient.
        x (n, d): data inputs; their gradient is gathered when they require one.
        z (M, d): inducing inputs, where there are any; likewise.
        features: what z stands for.
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        z: Tensor | None = None,
        features: InducingFeatures = POINTS,
    ) -> None:
        self.kernel = kernel
        self.features = features
        self.parameters: list[nn.Parameter] = [p for p in kernel.parameters() if p.requires_grad]
        self.x = x.detach()
        self.x_input = x if x.requires_grad else None
        self.z_input = z if z is not None and z.requires_grad else None
        self.z = None if z is None else z.detach()
        if self.z is not None and self.z_input is not None:
            self.z.requires_grad_()
        self._sums = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        self._grad_x = None if self.x_input is None else torch.zeros_like(self.x)
        self._grad_z = (
            None if self.z_input is None else torch.zeros_like(self.z_input, dtype=torch.float64)
        )

    def add_data(self, rows: slice, columns: slice, weight: Tensor) -> None:
        """Add the block k(x[rows], x[columns]) with its weight (rows, columns)."""
        with torch.enable_grad():
            left, right = self._leaf(rows), self._leaf(columns)
            block = self.kernel.evaluate(left, right)
        self._pull(block, weight, (rows, left), (columns, right))

    def add_cross(self, rows: slice, weight: Tensor) -> None:
        """Add the block k(x[rows], z) with its weight (rows, M)."""
        assert self.z is not None
        with torch.enable_grad():
            left = self._leaf(rows)
            block = self.features.cross(self.kernel, left, self.z)
        self._pull(block, weight, (rows, left))

    def add_inducing(self, weight: Tensor) -> None:
        """Add k(z, z) with its weight (M, M)."""
        assert self.z is not None
        with torch.enable_grad():
            block = self.features.gram(self.kernel, self.z)
        self._pull(block, weight)

    def add_inducing_diagonal(self, weight: Tensor) -> None:
        """Add k(z_m, z_m) with its weight (M,)."""
        assert self.z is not None
        with torch.enable_grad():
            block = self.features.gram_diagonal(self.kernel, self.z)
        self._pull(block, weight)

    def add_diagonal(self, rows: slice, weight: Tensor) -> None:
        """Add k(x_n, x_n) of x[rows] with its weight (rows,)."""
        with torch.enable_grad():
            left = self._leaf(rows)
            block = self.kernel.diagonal(left)
        self._pull(block, weight, (rows, left))

    def add_found(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Add gradients found elsewhere, by the parameter or input that they are of."""
        for parameter, total in zip(self.parameters, self._sums, strict=True):
            if parameter in gradients:
                total += gradients[parameter]
        x = self.x_input
        if self._grad_x is not None and x is not None and x in gradients:
            self._grad_x += gradients[x]

    def inputs(self) -> list[Tensor]:
        """Tensors that have a gradient, in the order of ``gradients``."""
        extra = [t for t in (self.x_input, self.z_input) if t is not None]
        return [*self.parameters, *extra]

    def gradients(self) -> list[Tensor]:
        """The sums, one per tensor of ``inputs``, in its dtype."""
        sums = [s.to(p.dtype) for s, p in zip(self._sums, self.parameters, strict=True)]
        if self._grad_x is not None:
            sums.append(self._grad_x)
        if self._grad_z is not None and self.z is not None:
            sums.append(self._grad_z.to(self.z.dtype))
        return sums

    def _leaf(self, rows: slice) -> Tensor:
        part = self.x[rows]
        return part if self.x_input is None else part.detach().requires_grad_()

    def _pull(self, block: Tensor, weight: Tensor, *leaves: tuple[slice, Tensor]) -> None:
        if not block.requires_grad:
            return
        targets: list[Tensor] = list(self.parameters)
        if self.z is not None and self._grad_z is not None:
            targets.append(self.z)
        if self._grad_x is not None:
            targets.extend(leaf for _, leaf in leaves)
        found = torch.autograd.grad(block, targets, grad_outputs=weight, allow_unused=True)
        for total, grad in zip(self._sums, found, strict=False):
            if grad is not None:
                total += grad
        rest = list(found[len(self._sums) :])
        if self._grad_z is not None:
            grad = rest.pop(0)
            if grad is not None:
                self._grad_z += grad
        if self._grad_x is not None:
            for (rows, _), grad in zip(leaves, rest, strict=True):
                if grad is not None:
                    self._grad_x[rows] += grad


class SlopeTiles(StationaryTiles):
    """The slope d phi / d r2 in the place of the profile phi; the scale is left out."""

    def _finish(self, out: Tensor, work: Tensor) -> None:
        self.profile.evaluate_(out, work, True)
        if self.profile.slope_per_value is None:
            out.copy_(work)
        else:
            out.mul_(self.profile.slope_per_value)


def has_slope_products(kernel: object, entries: Entries) -> bool:
    """Whether ``stationary_gradient`` covers this kernel and asks for nothing else."""
    return (
        isinstance(kernel, Stationary)
        and kernel.in_place is not None
        and type(kernel).coordinates is Stationary.coordinates
        and type(kernel).covariance is Stationary.covariance
        and set(entries.names) <= set(NATURAL)
        and entries.square
        and not entries.x1.requires_grad
    )


def stationary_gradient(
    engine: Chunked, entries: Entries, left: Tensor, right: Tensor, product: Tensor
) -> list[Tensor]:
    """Gradient of l^T k(x, x) r for every parameter of ``entries``.

    With z = x / lengthscale and S_ij = phi'(r2_ij), the derivative with respect to lengthscale_d is

        -2 scale / lengthscale_d sum_ij l_i S_ij r_j (z_id - z_jd)^2,

    whose square expands into products of S with r, l and r z_d: one evaluation of the matrix's
    upper triangle and d + 2 thin columns, about a third of the work of the general gradient.

    Args:
        engine, entries: how the matrix is cut, and what it is made of.
        left, right (n,): l and r.
        product (n,): k(x, x) r.

    Cost: n^2 / 2 slope evaluations and 2 n^2 (d + 2) multiply-adds; memory n (d + 2) and tiles.
    """

    def gather(kernel: Stationary) -> tuple[Tensor, Tensor]:
        inputs = kernel._select(entries.x1)
        z, _ = kernel._centred(inputs, inputs)
        assert kernel.in_place is not None
        source = SlopeTiles(z, z, z.new_ones(()), kernel.in_place)
        block = torch.cat([torch.stack([right, left], 1), right.unsqueeze(1) * z], 1)
        found = engine.product_of(source, entries, block)
        from_right, from_left, mixed = found[:, 0], found[:, 1], found[:, 2:]
        squares = z.square()
        sums = (
            (left * from_right) @ squares
            + (right * from_left) @ squares
            - 2.0 * (left.unsqueeze(1) * z * mixed).sum(0)
        )
        lengthscale, scale = kernel.lengthscale, kernel.outputscale
        by_length = -2.0 * scale / lengthscale * (sums if lengthscale.ndim else sums.sum())
        return by_length, torch.dot(left, product) / scale

    with torch.no_grad():
        by_length, by_scale = entries.call(gather)
    leaves = entries.leaves()
    with torch.enable_grad():

        def pull(kernel: Stationary) -> Tensor:
            return (kernel.lengthscale * by_length).sum() + kernel.outputscale * by_scale

        value = leaves.call(pull)
    wanted = [p for p in leaves.parameters if p.requires_grad]
    return list(torch.autograd.grad(value, wanted)) if wanted else []
