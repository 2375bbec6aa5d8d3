"""Eigenfunctions and their gradient by compiled loops (``grief_products.c``), if they compile."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from gpx.backends.native import address, has_memory, native_library
from gpx.bases.grid_eigenfunctions.polynomials import ColumnPolynomials
from gpx.bases.grid_eigenfunctions.products import MIN_GROUND_PRODUCT, ProductPlan, tree_products
from gpx.errors import ShapeError

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("grief_products.c")
DEFINES = {torch.float32: (), torch.float64: ("DOUBLE",)}
_SIZE, _ARRAY = ctypes.c_long, ctypes.c_void_p


class EigenfunctionLoops:
    """The compiled loops for one dtype.

    Exactness: that of the torch operations, up to rounding. Values do not depend on the number of
    threads; sums over the points do in their last places.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._values, self._slopes = library.eigenfunctions, library.eigenfunction_slopes
        basis = (*(_SIZE,) * 5, *(_ARRAY,) * 7)
        self._values.argtypes = (*basis, _ARRAY, ctypes.c_double, ctypes.c_int)
        self._values.restype = ctypes.c_int
        self._slopes.argtypes = (*basis, _ARRAY, _ARRAY, _ARRAY, ctypes.c_int)
        self._slopes.restype = None

    def values(
        self, x: Tensor, polynomials: ColumnPolynomials, plan: ProductPlan, out: Tensor
    ) -> bool:
        """Write all nodes' products at x (n, d) to ``out`` (num_nodes, n).

        Args:
            x: contiguous, within the range of the polynomials.
            polynomials: in the dtype of x.
            plan: the products.

        Returns:
            whether the result is usable: false where the product of the leading functions of all
            axes is close to underflow.
        """
        small = self._values(
            *self._basis(x, polynomials, plan),
            *(self._address(out, plan.num_nodes * x.shape[0]), MIN_GROUND_PRODUCT[self.dtype]),
            torch.get_num_threads(),
        )
        return not small

    def add_slopes(
        self,
        x: Tensor,
        polynomials: ColumnPolynomials,
        plan: ProductPlan,
        products: Tensor,
        weight: Tensor,
        totals: Tensor,
    ) -> None:
        """Add the gradient of sum(weight * products) in the series to ``totals``.

        Args:
            x, polynomials, plan: as in ``values``.
            products (num_nodes, n): from ``values``.
            weight (num_nodes, n): of the sum.
            totals (threads, d, c, terms): float64.
        """
        count = plan.num_nodes * x.shape[0]
        if totals.dtype != torch.float64 or totals[0].numel() != polynomials.series.numel():
            raise ShapeError(
                f"slopes of shape {tuple(totals.shape)}, {totals.dtype}, for series of shape "
                f"{tuple(polynomials.series.shape)} in float64"
            )
        self._slopes(
            *self._basis(x, polynomials, plan),
            *(self._address(products, count), self._address(weight, count)),
            *(totals.data_ptr(), len(totals)),
        )

    def _basis(self, x: Tensor, polynomials: ColumnPolynomials, plan: ProductPlan) -> list[int]:
        d, width, terms = polynomials.series.shape
        degrees, sizes = polynomials.degrees, (x.shape[0], d, width, terms, plan.num_nodes)
        if width != plan.width or not len(degrees) == d == x.shape[1]:
            raise ShapeError(
                f"{width} functions of {d} inputs for products of {plan.width} and x of shape "
                f"{tuple(x.shape)}"
            )
        return [
            *sizes,
            *(degrees.data_ptr(), plan.parent.data_ptr(), plan.ratio.data_ptr()),
            self._address(x, x.shape[0] * d),
            *(self._address(polynomials.middle, d), self._address(polynomials.inverse, d)),
            self._address(polynomials.series, d * width * terms),
        ]

    def _address(self, array: Tensor, count: int) -> int:
        return address(array, count, self.dtype, "eigenfunctions")


@cache
@torch.enable_grad()
def _checked(dtype: torch.dtype) -> EigenfunctionLoops | None:
    """The loops, checked once against torch operations and their gradient; None if not usable."""
    library = native_library(SOURCE, DEFINES[dtype])
    if library is None:
        return None
    found = EigenfunctionLoops(library, dtype)
    plan = ProductPlan(torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1], [0, 2]]))
    x = torch.linspace(-1.0, 1.0, 2 * 75, dtype=dtype).reshape(75, 2)
    series = torch.tensor([[1.0, 0.2, 0.1], [0.3, 1.0, 0.2], [-0.2, 0.1, 1.0]], dtype=dtype)
    series = torch.stack([series, series.flip(1) + 0.5]).requires_grad_()
    flat = torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype)
    polynomials = ColumnPolynomials(series, torch.tensor([3, 3]), *flat)
    wanted = tree_products(polynomials.evaluate(x), plan)
    (slopes,) = torch.autograd.grad(wanted.sum(), series)
    fixed = ColumnPolynomials(series.detach(), torch.tensor([3, 3]), *flat)
    products, totals = wanted.new_zeros(plan.num_nodes, 75), torch.zeros(1, 2, 3, 3).double()
    found.values(x, fixed, plan, products)
    found.add_slopes(x, fixed, plan, products, torch.ones_like(products), totals)
    error = max(
        float((products - wanted.detach()).abs().max()),
        float((totals[0] - slopes).abs().max()) / 75.0,
    )
    if not error < 100 * torch.finfo(dtype).eps:
        logger.warning("the compiled eigenfunctions are off by %.1e and not used", error)
        return None
    return found


def eigenfunction_loops(like: Tensor) -> EigenfunctionLoops | None:
    """The compiled loops for arrays like this one; None where torch operations are used."""
    if not has_memory(like) or like.dtype not in DEFINES:
        return None
    return _checked(like.dtype)
