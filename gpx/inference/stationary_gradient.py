"""Gradient of l^T k(x, x) r for stationary kernels from one product with the profile's slope."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.backends import Chunked, Entries
from gpx.kernels.stationary import Stationary
from gpx.kernels.tiles import StationaryTiles

NATURAL = {
    "parametrizations.lengthscale.original": "lengthscale",
    "parametrizations.outputscale.original": "outputscale",
}


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
