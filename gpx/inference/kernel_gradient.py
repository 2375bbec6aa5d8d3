"""Gradients of weighted sums of kernel entries.

``KernelGradient`` accumulates them block by block for every kernel and any weights;
``stationary_gradient`` is for l^T k(x, x) r of a stationary kernel, at a third of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gpx.backends import Chunked, Entries
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary
from gpx.kernels.tiles import StationaryTiles
from gpx.linalg.given_gradients import gradients_with_weights
from gpx.linalg.processes import ALONE, Processes

NATURAL_NAMES = {
    "parametrizations.lengthscale.original": "lengthscale",
    "parametrizations.outputscale.original": "outputscale",
}


DEFERRED_BYTES = {"cpu": 2**20}
"""Blocks of up to this many bytes are collected and differentiated together."""
DEFERRED_BYTES_GPU = 2**28
"""The same on other devices, where launches cost more than memory."""


class KernelGradient:
    """Accumulates d sum_ij W_ij k(a_i, b_j) over blocks of rows and columns.

    Every block builds and frees its own autograd graph, small blocks together, so that memory is a
    few blocks whatever the size of the kernel matrix. Sums of parameter gradients are kept in
    float64.

    Args:
        kernel: differentiated in those of its parameters that require a gradient.
        x (n, d): data inputs; their gradient is gathered when they require one.
        z (M, d): inducing inputs, where there are any; likewise.
        features: what z stands for.
        processes: each adds blocks of its own; ``gradients`` sums over all of them.
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        z: Tensor | None = None,
        features: InducingFeatures = POINTS,
        processes: Processes = ALONE,
    ) -> None:
        self.kernel = kernel
        self.processes = processes
        self.features = features
        self.parameters: list[nn.Parameter] = [p for p in kernel.parameters() if p.requires_grad]
        self.x = x.detach()
        self.x_input = x if x.requires_grad else None
        self.z_input = z if z is not None and z.requires_grad else None
        self.z = None if z is None else z.detach()
        if self.z is not None and self.z_input is not None:
            self.z.requires_grad_()
        self._sums: list[Tensor | None] = [None for _ in self.parameters]
        self._grad_x = None if self.x_input is None else torch.zeros_like(self.x)
        self._grad_z: Tensor | None = None
        self._gram: Tensor | None = None
        self._crosses: dict[int, tuple[Tensor, Tensor]] = {}
        self._deferred: list[tuple[Tensor, Tensor, tuple[tuple[slice, Tensor], ...]]] = []
        kind = self.x.device.type
        self._max_deferred = DEFERRED_BYTES.get(kind, DEFERRED_BYTES_GPU)

    def add_data(self, rows: slice, columns: slice, weight: Tensor) -> None:
        """Add the block k(x[rows], x[columns]) with its weight (rows, columns)."""
        self.add_weighed(rows, columns, lambda _: weight)

    def add_weighed(self, rows: slice, columns: slice, weigh: Callable[[Tensor], Tensor]) -> None:
        """Add the block k(x[rows], x[columns]) with the weight that ``weigh`` gives for it.

        Args:
            weigh: entries of the block, without a graph -> their weights; same shape.
        """
        with torch.enable_grad():
            left, right = self._leaf(rows), self._leaf(columns)
            block = self.kernel.evaluate(left, right)
        self._defer(block, weigh(block.detach()), (rows, left), (columns, right))

    def add_symmetric(
        self, blocks: Iterable[slice], doubled: Callable[[slice, slice], Tensor]
    ) -> None:
        """Add k(x, x) with a symmetric weight (n, n), by blocks of rows of the lower triangle.

        Args:
            blocks: of rows, which cover all of them.
            doubled: rows and columns -> twice the weight of that block; a new tensor, overwritten.
        """
        for rows in blocks:
            past = slice(0, rows.stop)
            block = doubled(rows, past)
            block[:, rows] *= 0.5  # the strictly lower part counts twice, for the upper part
            self.add_data(rows, past, block)

    def add_groups(
        self, rows: slice, covariances: Callable[[Kernel, Tensor], Tensor], weight: Tensor
    ) -> None:
        """Add ``covariances(kernel, x[rows])``, within groups of these rows, with its weight."""
        with torch.enable_grad():
            left = self._leaf(rows)
            block = covariances(self.kernel, left)
        self._defer(block, weight, (rows, left))

    def add_total(
        self, rows: slice, columns: slice, total: Callable[[Kernel, Tensor, Tensor], Tensor]
    ) -> None:
        """Add the number () that ``total`` makes of the kernel, x[rows] and x[columns].

        For weighted sums of other things than entries, as of derivatives; differentiated at once.
        """
        with torch.enable_grad():
            left, right = self._leaf(rows), self._leaf(columns)
            found = total(self.kernel, left, right)
        self._defer(found, torch.ones_like(found), (rows, left), (columns, right))
        self._flush()

    def hold_cross(self, rows: slice) -> Tensor:
        """The block k(x[rows], z) without a graph; its graph is kept for ``add_cross``."""
        assert self.z is not None
        with torch.enable_grad():
            left = self._leaf(rows)
            block = self.features.cross(self.kernel, left, self.z)
        self._crosses[rows.start] = left, block
        return block.detach()

    def add_cross(self, rows: slice, weight: Tensor) -> None:
        """Add the block k(x[rows], z) with its weight (rows, M)."""
        if rows.start not in self._crosses:
            self.hold_cross(rows)
        left, block = self._crosses.pop(rows.start)
        self._defer(block, weight, (rows, left))

    def hold_inducing(self) -> Tensor:
        """k(z, z) without a graph; its graph is kept for ``add_inducing``."""
        assert self.z is not None
        with torch.enable_grad():
            self._gram = self.features.gram(self.kernel, self.z)
        return self._gram.detach()

    def add_inducing(self, weight: Tensor) -> None:
        """Add k(z, z) with its weight (M, M)."""
        if self._gram is None:
            self.hold_inducing()
        assert self._gram is not None
        self._defer(self._gram, weight)
        self._gram = None

    def add_inducing_diagonal(self, weight: Tensor) -> None:
        """Add k(z_m, z_m) with its weight (M,)."""
        assert self.z is not None
        with torch.enable_grad():
            block = self.features.gram_diagonal(self.kernel, self.z)
        self._defer(block, weight)

    def add_diagonal(self, rows: slice, weight: Tensor) -> None:
        """Add k(x_n, x_n) of x[rows] with its weight (rows,)."""
        with torch.enable_grad():
            left = self._leaf(rows)
            block = self.kernel.diagonal(left)
        self._defer(block, weight, (rows, left))

    def add_found(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Add gradients computed elsewhere, keyed by parameter or input."""
        self._add([gradients.get(parameter) for parameter in self.parameters])
        x = self.x_input
        if self._grad_x is not None and x is not None and x in gradients:
            self._grad_x += gradients[x]

    def inputs(self) -> list[Tensor]:
        """Tensors with a gradient, in the order of ``gradients``."""
        extra = [t for t in (self.x_input, self.z_input) if t is not None]
        return [*self.parameters, *extra]

    def gradients(self) -> list[Tensor]:
        """The sums, one per tensor of ``inputs``, in its dtype."""
        self._flush()
        sums = [
            torch.zeros_like(p) if s is None else s.to(p.dtype)
            for s, p in zip(self._sums, self.parameters, strict=True)
        ]
        if self._grad_x is not None:
            sums.append(self._grad_x)
        if self.z_input is not None:
            found = self._grad_z
            sums.append(
                torch.zeros_like(self.z_input) if found is None else found.to(self.z_input.dtype)
            )
        if self.processes.count > 1:
            sums = [total.clone() for total in sums]
            self.processes.all_sum(*sums)
        return sums

    def _leaf(self, rows: slice) -> Tensor:
        part = self.x[rows]
        return part if self.x_input is None else part.detach().requires_grad_()

    def _defer(self, block: Tensor, weight: Tensor, *leaves: tuple[slice, Tensor]) -> None:
        if not block.requires_grad:
            return
        self._deferred.append((block, weight, leaves))
        if sum(b.numel() * b.element_size() for b, _, _ in self._deferred) > self._max_deferred:
            self._flush()

    def _flush(self) -> None:
        """Differentiate the deferred blocks."""
        if not self._deferred:
            return
        blocks, weights, places = zip(*self._deferred, strict=True)
        self._deferred.clear()
        targets: list[Tensor] = list(self.parameters)
        if self.z is not None and self.z_input is not None:
            targets.append(self.z)
        leaves = [leaf for each in places for leaf in each] if self._grad_x is not None else []
        targets.extend(leaf for _, leaf in leaves)
        # the graph from raw parameters to their values may be shared with further blocks
        found = gradients_with_weights(blocks, targets, weights)
        rest = list(found[len(self._sums) :])
        self._add(found[: len(self._sums)])
        if self.z_input is not None:
            self._grad_z = _sum(self._grad_z, rest.pop(0))
        if self._grad_x is not None:
            for (rows, _), grad in zip(leaves, rest, strict=True):
                if grad is not None:
                    self._grad_x[rows] += grad

    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add to the sums of the parameters."""
        self._sums = [_sum(s, g) for s, g in zip(self._sums, gradients, strict=True)]


def _sum(total: Tensor | None, grad: Tensor | None) -> Tensor | None:
    """The sum in float64; None counts as zero."""
    if total is None or grad is None:
        return total if grad is None else grad.double()
    return total.add_(grad)


class SlopeTiles(StationaryTiles):
    """Tiles of the slope d phi / d r2 instead of the profile phi, without the scale."""

    def _finish(self, out: Tensor, work: Tensor) -> None:
        self.profile.evaluate_(out, work, True)
        if self.profile.slope_per_value is None:
            out.copy_(work)
        else:
            out.mul_(self.profile.slope_per_value)


def has_slope_products(kernel: object, entries: Entries) -> bool:
    """Whether ``stationary_gradient`` gives all gradients that this kernel matrix needs."""
    return (
        isinstance(kernel, Stationary)
        and kernel.in_place is not None
        and type(kernel).coordinates is Stationary.coordinates
        and set(entries.names) <= set(NATURAL_NAMES)
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
        engine, entries: of the kernel matrix.
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
