"""Products pass on solves and determinants, and neighbours join where a rule lets them."""

import pytest
import torch
from linear_operator.operators import ConstantDiagLinearOperator
from torch.utils.flop_counter import FlopCounterMode

from gpx.errors import ShapeError
from gpx.operators import Kronecker, LowRankPlusDiagonal, Product, Toeplitz
from gpx.operators.kronecker_plus_diagonal import KroneckerPlusDiagonal


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spd(n, seed=0):
    a = draw(n, n, seed=seed)
    return a @ a.mT / n + torch.eye(n, dtype=torch.float64)


def test_a_large_product_is_solved_by_its_factors_and_not_by_an_unconverged_iteration():
    low = LowRankPlusDiagonal(draw(2_500, 3), torch.ones(1).double())
    total = Kronecker(spd(50), spd(50, 1)) @ low
    assert isinstance(total, Product)
    right = draw(2_500, 2)
    residual = total @ total.solve(right) - right
    assert residual.norm() <= 1e-9 * right.norm()
    expected = Kronecker(spd(50), spd(50, 1)).logdet() + low.logdet()
    torch.testing.assert_close(total.logdet(), expected)


def test_neighbours_with_a_rule_join():
    a, b = Kronecker(spd(2), spd(3)), Kronecker(spd(2, 2), spd(3, 3))
    low = LowRankPlusDiagonal(draw(6, 1), torch.ones(1).double())
    found = low @ a @ b
    assert [type(f) for f in found.factors] == [LowRankPlusDiagonal, Kronecker]
    torch.testing.assert_close(found.to_dense(), low.to_dense() @ a.to_dense() @ b.to_dense())
    assert isinstance((2.0 * found).factors[0], type(2.0 * low))


def test_costs_are_those_of_the_factors():
    n, k, c = 36, 4, 5
    a, low = Kronecker(spd(6), spd(6, 1)), LowRankPlusDiagonal(draw(n, k), torch.ones(1).double())
    with FlopCounterMode(display=False) as counter:
        (a @ low) @ draw(n, c)
    assert counter.get_total_flops() == 2 * c * n * 12 + 4 * n * k * c
    rows = torch.tensor([3, 1])
    part = (low @ a)[rows]
    with FlopCounterMode(display=False) as counter:
        part @ draw(n, c)
    assert counter.get_total_flops() <= 2 * c * n * 12 + 4 * n * k * c


def test_factors_must_meet():
    with pytest.raises(ShapeError, match=r"\(2, 2\), \(3, 3\)"):
        Product(Kronecker(spd(2)), Kronecker(spd(3)))
    with pytest.raises(ShapeError, match="square"):
        (Toeplitz(draw(3), draw(4)) @ Toeplitz(draw(4), draw(5))).logdet()


def test_a_constant_on_the_right_keeps_the_structure():
    plus = KroneckerPlusDiagonal(Kronecker(spd(2), spd(3)), torch.ones(1).double())
    two = 2.0 * torch.ones(1).double()
    found = plus @ ConstantDiagLinearOperator(two, diag_shape=6)
    assert isinstance(found, KroneckerPlusDiagonal)
    torch.testing.assert_close(found.logdet(), torch.logdet(2.0 * plus.to_dense()))
