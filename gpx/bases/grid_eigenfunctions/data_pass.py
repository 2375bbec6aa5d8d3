"""A pass over the data with the eigenfunctions of a grid: blocks of them, sums, gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gpx.backends import row_slices
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, GridModes
from gpx.bases.grid_eigenfunctions.native import EigenfunctionLoops, eigenfunction_loops
from gpx.bases.grid_eigenfunctions.polynomials import ColumnPolynomials, column_polynomials
from gpx.bases.grid_eigenfunctions.products import tree_products
from gpx.bases.sufficient_statistics import (
    BYTES_PER_FEATURE,
    SufficientStatistics,
    accumulate_statistics,
    block_bytes,
)

PAGE = 4096
"""Bytes of a memory page. Rows whose length is a multiple of it map to the same few lines of the
first-level cache, so blocks avoid such lengths."""


class EigenfunctionPass:
    """Unit eigenfunctions at x, block by block, and the gradient of weighted sums of them.

    On the range of the data the one-dimensional functions of a squared exponential are Chebyshev
    series (``column_polynomials``), which compiled loops evaluate together with their products,
    without exponentials and whatever the number of nodes. Torch operations are used without a
    compiler, on a GPU, for other kernels, or where a product underflows; they use the series if
    these have fewer terms than the axes have nodes.

    Args:
        basis: its grid is placed.
        modes: its eigenfunctions; with their graph where ``gradient``.
        x (n, d): all inputs of the pass.
        gradient: whether ``add`` and ``gradients`` will be called.

    Attributes:
        parameters: kernel parameters that the eigenfunctions may depend on.
        x_gradient (n, d): accumulated by ``add``, if ``gradient`` and x requires one; else None.

    Cost: n (p + d terms c) multiply-adds, three times that with the gradient; memory of a block or
    three beside the data.
    Source: ours; the functions are those of Evans thesis, theorem 4.2.
    """

    def __init__(
        self, basis: GridEigenfunctions, modes: GridModes, x: Tensor, *, gradient: bool = False
    ) -> None:
        self.basis, self.modes, self.x = basis, modes, x.detach().contiguous()
        self.parameters = unit_parameters(basis)
        wanted = gradient and x.requires_grad
        self.x_gradient = torch.zeros_like(self.x) if wanted else None
        polynomials = None
        if not torch.compiler.is_exporting():  # the range of the inputs is not known then
            with torch.set_grad_enabled(gradient):
                polynomials = column_polynomials(
                    basis.factors, basis.nodes, basis.sizes == 1, modes.transforms, self.x
                )
        loops = None
        if polynomials is not None and not wanted:  # the loops have no gradient in the inputs
            loops = eigenfunction_loops(self.x)
        d, m, c = modes.transforms.shape
        terms = m if polynomials is None else polynomials.series.shape[2]
        if loops is None and terms >= m:
            polynomials, terms = None, m
        self._polynomials = polynomials
        self._compiled: tuple[EigenfunctionLoops, ColumnPolynomials] | None = None
        row = modes.plan.num_nodes
        if polynomials is not None and loops is not None:
            self._compiled = loops, polynomials.in_dtype(x.dtype)
        else:
            row = max(row, d * (terms + c))
        self._block_rows = _block_rows(row * BYTES_PER_FEATURE, x)
        # features depend on the series alone, or on the transforms and the kernel's parameters
        self._table = modes.transforms if polynomials is None else polynomials.series
        self._targets: list[Tensor] = []
        self._totals: list[Tensor] = []
        if gradient:
            leaf = self._table.detach().requires_grad_()
            self._targets = [leaf, *(self.parameters if polynomials is None else [])]
            self._totals = [torch.zeros_like(t, dtype=torch.float64) for t in self._targets]
        self._threads = self._table.new_zeros(
            torch.get_num_threads(), *self._table.shape, dtype=torch.float64
        )
        self._products, self._weights = self.x.new_empty(0), self.x.new_empty(0)
        self._rows = slice(0)
        self._graph: Tensor | None = None
        self._inputs = self.x[:0]

    def blocks(self) -> Iterator[slice]:
        """Slices of rows whose features fit ``block_bytes``."""
        yield from row_slices(self.x.shape[0], self._block_rows)

    def __call__(self, rows: slice) -> Tensor:
        """Features (p, b) of one of the blocks, in plan order; valid until the next call."""
        plan, x = self.modes.plan, self.x[rows]
        self._rows, self._graph = rows, None
        if self._compiled is not None:
            loops, polynomials = self._compiled
            self._products, products = _reuse_buffer(self._products, plan.num_nodes, x)
            if loops.values(x, polynomials, plan, products):
                return products if plan.kept is None else products.index_select(0, plan.kept)
        if not self._targets:
            return self._by_torch(x, self._table)
        if self.x_gradient is not None:
            x = self._inputs = x.detach().requires_grad_()
        with torch.enable_grad():
            self._graph = self._by_torch(x, self._targets[0])
        return self._graph.detach()

    def _by_torch(self, x: Tensor, table: Tensor) -> Tensor:
        if self._polynomials is None:
            return self.basis.features(x, self.modes._replace(transforms=table))
        return tree_products(self._polynomials._replace(series=table).evaluate(x), self.modes.plan)

    def weights(self) -> Tensor:
        """Memory (p, b) for the argument of ``add``, for the last block, until the next call."""
        count = len(self.modes.plan.index)
        self._weights, found = _reuse_buffer(self._weights, count, self.x[self._rows])
        return found

    def add(self, weight: Tensor) -> None:
        """Add the gradient of sum(weight * features), weight (p, b), over the last block."""
        if self._graph is not None:
            targets, totals = self._targets, self._totals
            if self.x_gradient is not None:
                targets = [*targets, self._inputs]
                totals = [*totals, self.x_gradient[self._rows]]
            found = torch.autograd.grad(
                self._graph, targets, grad_outputs=weight, allow_unused=True
            )
            for total, grad in zip(totals, found, strict=True):
                if grad is not None:
                    total += grad
            return
        assert self._compiled is not None
        (loops, polynomials), plan, x = self._compiled, self.modes.plan, self.x[self._rows]
        products = _reuse_buffer(self._products, plan.num_nodes, x)[1]
        if plan.kept is not None:
            weight = torch.zeros_like(products).index_copy_(0, plan.kept, weight)
        loops.add_slopes(x, polynomials, plan, products, weight.contiguous(), self._threads)

    def gradients(self) -> list[Tensor]:
        """The accumulated gradients, in the order of ``parameters``."""
        table = self._totals[0] + self._threads.sum(0)
        through: tuple[Tensor | None, ...] = (None,) * len(self.parameters)
        if self._table.requires_grad:  # not for a constant kernel
            through = torch.autograd.grad(
                self._table,
                self.parameters,
                grad_outputs=table.to(self._table.dtype),
                allow_unused=True,
            )
        direct = self._totals[1:] or [
            torch.zeros_like(p, dtype=torch.float64) for p in self.parameters
        ]
        return [
            (total if grad is None else total + grad).to(p.dtype)
            for p, total, grad in zip(self.parameters, direct, through, strict=True)
        ]


@torch.no_grad()
def feature_sums(
    basis: GridEigenfunctions,
    modes: GridModes,
    x: Tensor,
    residual: Tensor,
    noise: Tensor | None = None,
    outputscale: Tensor | None = None,
) -> SufficientStatistics:
    """Statistics of the eigenfunctions of the kernel with outputscale one; one pass over the data.

    Args:
        basis, modes: the eigenfunctions.
        x (n, d), residual (n,): inputs and y - m(x).
        noise, outputscale (): weight rows by the precision of ``point_noise``; None: no weights.

    Cost: n p^2 / 2 + O(n (p + d m c)) multiply-adds, memory O(p^2 + block).
    """
    functions = EigenfunctionPass(basis, modes, x)

    def blocks() -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for rows in functions.blocks():
            block, d = functions(rows), None
            if noise is not None and outputscale is not None:
                d = point_noise(block, noise.to(x.dtype), outputscale.to(x.dtype))
            yield block, residual[rows], d

    return accumulate_statistics(blocks(), len(modes.plan.index), x)


def point_noise(block: Tensor, noise: Tensor, outputscale: Tensor) -> Tensor:
    """noise + outputscale (1 - |f_i|^2) for features (p, b): (b,), never below the noise.

    The second term is the prior variance missing from the eigenfunctions at point i.
    """
    return noise + outputscale * (1.0 - block.square().sum(0)).clamp(min=0.0)


def eigenfunction_gradient(
    basis: GridEigenfunctions, x: Tensor, weight: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradient of sum_ij W_ij phi_j(x_i) for selected functions on a fixed grid.

    Args:
        basis: after ``select``; differentiated in those parameters of its kernel that require a
            gradient, outputscale included.
        x (n, d): inputs; their gradient is computed if they require one.
        weight (n, p): W, columns in the order of ``basis.modes().plan``.

    Returns:
        tensors (kernel parameters, then x if it requires a gradient) and their gradients.

    Cost: twice that of the features; memory of one block of them.
    """
    with torch.enable_grad():
        functions = EigenfunctionPass(basis, basis.modes(), x, gradient=True)
        root = basis.factors.outputscale.sqrt()
    total = root.new_zeros((), dtype=torch.float64)
    for rows in functions.blocks():
        part = weight[rows].mT.to(x.dtype)
        total += torch.sum(part * functions(rows)).double()
        functions.add(root.detach().to(x.dtype) * part)
    gradients = functions.gradients()
    if root.requires_grad:
        through = torch.autograd.grad(
            root, functions.parameters, grad_outputs=total.to(root.dtype), allow_unused=True
        )
        gradients = [
            found if more is None else found + more
            for found, more in zip(gradients, through, strict=True)
        ]
    if functions.x_gradient is None:
        return list(functions.parameters), gradients
    return [*functions.parameters, x], [*gradients, functions.x_gradient]


def unit_parameters(basis: GridEigenfunctions) -> list[nn.Parameter]:
    """Parameters of the kernel that the unit eigenfunctions depend on (or may)."""
    return [p for p in basis.kernel.parameters() if p.requires_grad]


def _block_rows(row_bytes: int, x: Tensor) -> int:
    """Number of rows per block."""
    step = max(1, block_bytes(x.device) // row_bytes)
    if step * x.element_size() % PAGE == 0:
        step -= 64 // x.element_size()
    return step


def _reuse_buffer(buffer: Tensor, rows: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The buffer, enlarged if necessary, and a view (rows, len(x)) of it; avoids page faults."""
    count = rows * len(x)
    if buffer.numel() < count:
        buffer = x.new_empty(count)
    return buffer, buffer[:count].view(rows, len(x))
