"""linear_operator's own conformance cases over the operators built from factors.

The package's solve tests compare gradients with respect to entries that the dense reference leaves
unsymmetrised, while ``solve`` of a LinearOperator takes its matrix as symmetric. Where the entries
are those of symmetric factors the products-only case applies; tests/conformance proves the solves.
"""

import unittest

import torch
from linear_operator.test.linear_operator_test_case import (
    LinearOperatorTestCase,
    RectangularLinearOperatorTestCase,
)

from gpx.operators import Kronecker, KroneckerPlusDiagonal, LowRankPlusDiagonal, Selection


def positive(n, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n, generator=generator)
    return (a @ a.mT / n + torch.diag(torch.arange(1.0, n + 1))).requires_grad_()


class TestKronecker(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 3

    def create_linear_op(self):
        return Kronecker(positive(2, 0), positive(3, 1))

    def evaluate_linear_op(self, linear_op):
        return torch.kron(*[factor.to_dense() for factor in linear_op.factors])


class TestKroneckerPlusDiagonal(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 3

    def create_linear_op(self):
        noise = torch.full((6,), 0.7).requires_grad_()
        return KroneckerPlusDiagonal(Kronecker(positive(2, 0), positive(3, 1)), noise)

    def evaluate_linear_op(self, linear_op):
        dense = torch.kron(*[factor.to_dense() for factor in linear_op.kronecker.factors])
        return dense + torch.diag_embed(linear_op.diagonal_values)


class TestLowRankPlusDiagonal(LinearOperatorTestCase, unittest.TestCase):
    seed = 3
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        factor = torch.randn(5, 2).requires_grad_()
        return LowRankPlusDiagonal(factor, (torch.rand(5) + 0.5).requires_grad_())

    def evaluate_linear_op(self, linear_op):
        return linear_op.factor @ linear_op.factor.mT + torch.diag_embed(linear_op.diagonal_values)


class TestSelection(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 3
    rows = torch.tensor([4, 0, 3])

    def create_linear_op(self):
        base = Kronecker(positive(2, 0), positive(3, 1))
        return Selection(base, rows=self.rows, columns=self.rows)

    def evaluate_linear_op(self, linear_op):
        dense = torch.kron(*[factor.to_dense() for factor in linear_op.base.factors])
        return dense[self.rows][:, self.rows]


del LinearOperatorTestCase, RectangularLinearOperatorTestCase  # not cases by themselves
