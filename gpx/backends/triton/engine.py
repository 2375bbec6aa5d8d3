"""The Triton backend: products of kernel matrices and their gradients on tensor cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpx.backends.entries import Entries, gradients
from gpx.backends.radial_parts import RadialPart
from gpx.linalg.prepared import Prepared

if TYPE_CHECKING:
    from gpx.backends.triton.blocks import Blocks
    from gpx.backends.triton.factors import Precision
    from gpx.backends.triton.product import Product

MAX_COORDINATES = 40
"""Coordinates up to which the tiles fit into registers; with more, most of the work is the matrix
product, and the chunked backend is as fast."""


class Triton:
    """Products and their gradients by Triton kernels; the kernel must have ``radial_parts``.

    A square matrix has an exact diagonal. Results on one device are reproducible: partial sums of
    several programs are added in order.

    Args:
        precision: of matrix products in float32. "tf32x3": three products of eleven-bit halves on
            tensor cores, as accurate as float32 (errors of about 4e-7). "ieee": float32 itself,
            three times the instructions. float64 inputs are always computed in float64.
        blocks: tiles; None for the defaults.

    Cost: O(n1 n2 (d + c)) time, with one exponential per pair for every 64 columns (gradient: one);
    O((n1 + n2)(d + c)) memory. Distance factors are prepared once and kept until a tensor changes.
    """

    def __init__(self, precision: Precision = "tf32x3", blocks: Blocks | None = None) -> None:
        self.precision, self.blocks = precision, blocks
        self._prepared = Prepared()

    def product(self, entries: Entries, right: Tensor, *, transposed: bool) -> Tensor:
        """K @ right (n2, c), or K^T @ right (n1, c); not differentiable."""
        transposed = transposed and not entries.square
        with torch.no_grad():
            found = [part(right) for part in self._products(entries, transposed)]
        return _total(found)

    def derivative(
        self, entries: Entries, left: Tensor, right: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradient of sum_c left_c^T K right_c for every tensor of ``entries``."""
        from gpx.backends.triton.gradient import gradients as part_gradients

        leaves = entries.leaves()
        with torch.enable_grad():
            parts = radial_parts(leaves)
        outputs: list[Tensor] = []
        weights: list[Tensor] = []
        for part in parts:
            coordinates = part.z1.requires_grad or part.z2.requires_grad
            with torch.no_grad():
                found = part_gradients(
                    part,
                    left,
                    right,
                    self._precision(left.dtype),
                    coordinates=coordinates,
                    blocks=self.blocks,
                )
            pairs = ((part.z1, found.z1), (part.z2, found.z2))
            for tensor, weight in (*pairs, (part.scale, found.scale), (part.shape, found.shape)):
                if tensor is not None and weight is not None:
                    outputs.append(tensor)
                    weights.append(weight)
        return gradients(leaves, outputs, weights)

    def _precision(self, dtype: torch.dtype) -> Precision:
        return "ieee" if dtype == torch.float64 else self.precision

    def _products(self, entries: Entries, transposed: bool) -> list[Product]:
        from gpx.backends.triton.product import Product

        def products() -> list[Product]:
            parts = radial_parts(entries.transposed() if transposed else entries)
            precision = self._precision(entries.x1.dtype)
            return [Product(part, precision, self.blocks) for part in parts]

        name = "transposed" if transposed else "plain"
        return self._prepared.get(name, entries.tensors, products)


def radial_parts(entries: Entries) -> list[RadialPart]:
    """The matrix as a sum of functions of distances."""
    x2 = None if entries.square else entries.x2
    found: list[RadialPart] = entries.call(lambda kernel: kernel.radial_parts(entries.x1, x2))
    return found


def trial_error(part: RadialPart, right: Tensor) -> float:
    """Largest relative error of a small product and its gradients against those in torch.

    Compiles the kernels for this profile, dtype and number of coordinates.
    """
    from gpx.backends.triton.gradient import gradients, plain_gradients
    from gpx.backends.triton.product import Product, plain_product

    precision: Precision = "ieee" if right.dtype == torch.float64 else "tf32x3"
    found = [Product(part, precision)(right), *gradients(part, right, right, precision)]
    known = [plain_product(part, right), *plain_gradients(part, right, right)]
    errors = [
        (result - reference).abs().max() / reference.abs().max().clamp(min=1.0)
        for result, reference in zip(found, known, strict=True)
        if result is not None and reference is not None
    ]
    return float(torch.stack(errors).max())


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
