"""What a kernel is made of: the parts of sums, products and multiples."""

from __future__ import annotations

from collections.abc import Iterator

from gpx.kernels.algebra import Product, Scale, Sum
from gpx.kernels.base import Kernel
from gpx.kernels.constant import Constant
from gpx.kernels.over_axes import AxisProduct
from gpx.kernels.own_covariance import computes_as


def leaves(kernel: Kernel) -> Iterator[Kernel]:
    """The kernels in sums, products and multiples, in order.

    A kernel that is none of these, or a subclass that computes something else, is itself a leaf.
    """
    if isinstance(kernel, (Sum, Product)) and computes_as(kernel, Sum, Product, AxisProduct):
        for part in kernel.parts:
            yield from leaves(part)
    elif isinstance(kernel, Scale) and computes_as(kernel, Scale):
        yield from leaves(kernel.kernel)
    else:
        yield kernel


def factors(kernel: Kernel) -> Iterator[tuple[Kernel, str | None]]:
    """What products and multiples multiply, in order; a sum is one factor.

    Yields:
        a scale as its kernel and the name of the attribute; any other factor with None.
    """
    if isinstance(kernel, Product) and computes_as(kernel, Product, AxisProduct):
        if computes_as(kernel, AxisProduct):  # its own scale; those of its parts are fixed to one
            yield kernel, "outputscale"
        for part in kernel.parts:
            yield from factors(part)
    elif isinstance(kernel, Scale) and computes_as(kernel, Scale):
        yield kernel, "scale"
        yield from factors(kernel.kernel)
    else:
        yield kernel, "constant" if computes_as(kernel, Constant) else None
