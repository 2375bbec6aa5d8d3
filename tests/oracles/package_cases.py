"""linear_operator's own conformance cases, less what gpx's operators refuse on purpose."""

import pytest
import torch
from linear_operator.test.linear_operator_test_case import (
    LinearOperatorTestCase,
    RectangularLinearOperatorTestCase,
)

from gpx.errors import DTypeError, NotAvailable


class _FullPrecision:
    """Operators compute in float32 and float64."""

    def test_half(self):
        with pytest.raises(DTypeError, match="float32 and float64"):
            self.create_linear_op().half()


class SquareCase(_FullPrecision, LinearOperatorTestCase):
    """Products, solves, roots and decompositions."""

    def test_sqrt_inv_matmul(self):
        with pytest.raises(NotAvailable, match="root_inv_decomposition"):
            self.create_linear_op().sqrt_inv_matmul(torch.ones(1))

    test_sqrt_inv_matmul_no_lhs = test_sqrt_inv_matmul


class ProductsCase(_FullPrecision, RectangularLinearOperatorTestCase):
    """Products and indexing only."""
