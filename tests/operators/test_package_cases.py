"""linear_operator's own conformance cases over the operators built from factors.

The package's solve tests compare gradients with respect to entries that the dense reference leaves
unsymmetrised, while ``solve`` of a LinearOperator takes its matrix as symmetric. Where the entries
are those of symmetric factors the products-only case applies; tests/conformance proves the solves.
"""

import unittest

import torch
from package_cases import ProductsCase, SquareCase

from gpx.operators import (
    Interpolated,
    Interpolation,
    KhatriRao,
    Kronecker,
    KroneckerPlusDiagonal,
    LowRankPlusDiagonal,
    Selection,
    Toeplitz,
)


def positive(n, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n, generator=generator)
    return (a @ a.mT / n + torch.diag(torch.arange(1.0, n + 1))).requires_grad_()


class TestKronecker(ProductsCase, unittest.TestCase):
    seed = 3

    def create_linear_op(self):
        return Kronecker(positive(2, 0), positive(3, 1))

    def evaluate_linear_op(self, linear_op):
        return torch.kron(*[factor.to_dense() for factor in linear_op.factors])


class TestKroneckerPlusDiagonal(ProductsCase, unittest.TestCase):
    seed = 3

    def create_linear_op(self):
        noise = torch.full((6,), 0.7).requires_grad_()
        return KroneckerPlusDiagonal(Kronecker(positive(2, 0), positive(3, 1)), noise)

    def evaluate_linear_op(self, linear_op):
        dense = torch.kron(*[factor.to_dense() for factor in linear_op.kronecker.factors])
        return dense + torch.diag_embed(linear_op.diagonal_values)


class TestLowRankPlusDiagonal(SquareCase, unittest.TestCase):
    seed = 3
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        factor = torch.randn(5, 2).requires_grad_()
        return LowRankPlusDiagonal(factor, (torch.rand(5) + 0.5).requires_grad_())

    def evaluate_linear_op(self, linear_op):
        return linear_op.factor @ linear_op.factor.mT + torch.diag_embed(linear_op.diagonal_values)


class TestSelection(ProductsCase, unittest.TestCase):
    seed = 3
    rows = torch.tensor([4, 0, 3])

    def create_linear_op(self):
        base = Kronecker(positive(2, 0), positive(3, 1))
        return Selection(base, rows=self.rows, columns=self.rows)

    def evaluate_linear_op(self, linear_op):
        dense = torch.kron(*[factor.to_dense() for factor in linear_op.base.factors])
        return dense[self.rows][:, self.rows]


def batch(n, seed):
    return torch.stack([positive(n, seed + i).detach() for i in range(3)]).requires_grad_()


def each(build, *leaves):
    """The matrix of every member of a batch."""
    return torch.stack([build(*member) for member in zip(*leaves, strict=True)])


class TestKroneckerBatch(ProductsCase, unittest.TestCase):
    seed = 3

    def create_linear_op(self):
        return Kronecker(batch(2, 0), batch(3, 5))

    def evaluate_linear_op(self, linear_op):
        return each(torch.kron, *linear_op.factors)


class TestKroneckerPlusDiagonalBatch(ProductsCase, unittest.TestCase):
    seed = 3

    def create_linear_op(self):
        noise = torch.full((3, 6), 0.7).requires_grad_()
        return KroneckerPlusDiagonal(Kronecker(batch(2, 0), batch(3, 5)), noise)

    def evaluate_linear_op(self, linear_op):
        dense = each(torch.kron, *linear_op.kronecker.factors)
        return dense + torch.diag_embed(linear_op.diagonal_values)


class TestLowRankPlusDiagonalBatch(SquareCase, unittest.TestCase):
    seed = 3
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        factor = torch.randn(3, 5, 2).requires_grad_()
        return LowRankPlusDiagonal(factor, (torch.rand(3, 5) + 0.5).requires_grad_())

    def evaluate_linear_op(self, linear_op):
        return linear_op.factor @ linear_op.factor.mT + torch.diag_embed(linear_op.diagonal_values)


class TestToeplitzBatch(SquareCase, unittest.TestCase):
    seed = 3
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        columns = torch.tensor([[4.0, 0.5, 0.2, 1.0, -0.3]]) * torch.tensor([[1.0], [1.5], [0.7]])
        return Toeplitz(columns.requires_grad_())

    def evaluate_linear_op(self, linear_op):
        return linear_op.column[:, (torch.arange(5)[:, None] - torch.arange(5)).abs()]


class TestSelectionBatch(ProductsCase, unittest.TestCase):
    seed = 3
    rows = torch.tensor([4, 0, 3])

    def create_linear_op(self):
        return Selection(Kronecker(batch(2, 0), batch(3, 5)), rows=self.rows, columns=self.rows)

    def evaluate_linear_op(self, linear_op):
        dense = each(torch.kron, *linear_op.base.factors)
        return dense[:, self.rows][:, :, self.rows]


class TestKhatriRaoBatch(ProductsCase, unittest.TestCase):
    seed = 3

    def create_linear_op(self):
        return KhatriRao(
            torch.randn(3, 5, 2).requires_grad_(), torch.randn(3, 5, 3).requires_grad_()
        )

    def evaluate_linear_op(self, linear_op):
        first, second = linear_op.factors
        return (first.unsqueeze(-1) * second.unsqueeze(-2)).flatten(-2)


class TestInterpolatedBatch(ProductsCase, unittest.TestCase):
    seed = 3

    def create_linear_op(self):
        place = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]).expand(3, 5, 2)
        weights = Interpolation(torch.rand(3, 5, 2).requires_grad_(), place, num_columns=6)
        return Interpolated(weights, Toeplitz(torch.tensor([4.0, 0.5, 0.2, 1.0, -0.3, 0.1])))

    def evaluate_linear_op(self, linear_op):
        left = linear_op.left
        weights = left.values.new_zeros(3, 5, 6).scatter_add(-1, left.indices, left.values)
        k = linear_op.base.column[(torch.arange(6)[:, None] - torch.arange(6)).abs()]
        return weights @ k @ weights.mT


del ProductsCase, SquareCase  # not cases by themselves
