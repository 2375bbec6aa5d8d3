"""What sums, products and multiples of kernels are made of."""

import torch

from gpx.kernels import RBF, AxisProduct, Constant, Matern32, Product, Scale, Sum, Warped
from gpx.kernels.structure import factors, leaves
from gpx.kernels.warped import LinearWarp


class Squared(Product):
    """A product with a covariance of its own."""

    def covariance(self, x1, x2):
        return super().covariance(x1, x2).square()


class Named(Sum):
    """A sum as any other."""


def test_leaves_are_those_of_sums_products_and_multiples_in_order():
    a, b, c, d = RBF(), Matern32(), Constant(2.0), Warped(RBF() * RBF(), LinearWarp(2))
    assert list(leaves(2.0 * Named([a, b * c]) * d)) == [a, b, c, d]
    assert list(leaves(a**2)) == [a, a]
    product = AxisProduct("rbf", 2)
    assert list(leaves(product)) == product.parts


def test_a_combination_that_computes_something_else_is_a_leaf_and_a_factor():
    own, a = Squared([RBF(), Matern32()]), RBF()
    assert list(leaves(own + a)) == [own, a]
    assert list(factors(own * a)) == [(own, None), (a, None)]


def test_factors_are_scales_by_name_and_whatever_else_is_multiplied():
    a, sums = RBF(), Matern32() + 1.0
    product, constant = AxisProduct("rbf", 2, outputscale=3.0), Constant(2.0)
    inner = Scale(a * constant, 5.0)
    kernel = Product([product, inner, sums])
    expected = [
        (product, "outputscale"),
        *((part, None) for part in product.parts),
        (inner, "scale"),
        (a, None),
        (constant, "constant"),
        (sums, None),
    ]
    assert list(factors(kernel)) == expected
    scales = [getattr(part, name) for part, name in factors(kernel) if name]
    torch.testing.assert_close(torch.stack(scales), torch.tensor([3.0, 5.0, 2.0]))
