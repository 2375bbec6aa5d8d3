"""Sums, multiples and products pass on what their parts can do."""

import pytest
import torch
from draws import draw, spd
from linear_operator.operators import (
    DenseLinearOperator,
    DiagLinearOperator,
    ToeplitzLinearOperator,
    TriangularLinearOperator,
)
from torch.utils.flop_counter import FlopCounterMode

from gpx.errors import DTypeError, NotPositiveDefinite, ShapeError
from gpx.operators import (
    Kronecker,
    KroneckerPlusDiagonal,
    LowRankPlusDiagonal,
    Product,
    Scaled,
    Sum,
    Toeplitz,
)


def test_a_multiple_solves_as_its_base_does(monkeypatch):
    base = LowRankPlusDiagonal(draw(30, 3), torch.ones(1).double())
    monkeypatch.setattr(LowRankPlusDiagonal, "to_dense", lambda self: pytest.fail("made dense"))
    scaled = 2.0 * (3.0 * base)
    assert isinstance(scaled, Scaled)
    right = draw(30, 2)
    torch.testing.assert_close(scaled.solve(right), base.solve(right) / 6.0)
    expected = base.logdet() + 30 * torch.log(torch.tensor(6.0, dtype=torch.float64))
    torch.testing.assert_close(scaled.logdet(), expected)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_diagonal_beside_a_multiple_that_is_not_positive(scale):
    """Divided by the scale it would be infinite, or negative where the sum is positive definite."""
    base = LowRankPlusDiagonal(draw(6, 2), torch.ones(1).double())
    total = (scale * base).add_diagonal(torch.full((6,), 50.0).double())
    dense = scale * base.to_dense() + 50.0 * torch.eye(6).double()
    torch.testing.assert_close(total @ draw(6, 2), dense @ draw(6, 2))
    torch.testing.assert_close(total.solve(draw(6, 2)), torch.linalg.solve(dense, draw(6, 2)))


def test_what_is_no_matrix_is_refused_in_a_sentence():
    operator = Kronecker(spd(2), spd(3))
    for other in (0.1, [1.0], None):
        for combined in (lambda o=other: operator + o, lambda o=other: operator - o):
            with pytest.raises(DTypeError, match=r"add_jitter\(c\) adds c"):
                combined()
    for combined in (lambda: operator + draw(6), lambda: operator * draw(6)):
        with pytest.raises(ShapeError, match=r"shape \(6,\) cannot be combined"):
            combined()


def test_new_terms_join_the_term_that_has_a_rule_for_them():
    kronecker = Kronecker(spd(3), spd(4, 1))
    foreign = ToeplitzLinearOperator(torch.exp(-torch.arange(12).double()))
    total = (kronecker + foreign).add_diagonal(torch.tensor(0.5, dtype=torch.float64))
    total = total + LowRankPlusDiagonal(draw(12, 2), torch.ones(1).double())
    total = total + LowRankPlusDiagonal(draw(12, 1), torch.ones(1).double())
    kinds = [type(t) for t in total.terms]
    assert kinds == [KroneckerPlusDiagonal, ToeplitzLinearOperator, LowRankPlusDiagonal]
    assert total.terms[2].factor.shape == (12, 3)
    dense = sum(t.to_dense() for t in total.terms)
    torch.testing.assert_close(total @ draw(12, 2), dense @ draw(12, 2))
    torch.testing.assert_close(total.solve(draw(12)), torch.linalg.solve(dense, draw(12)))


def test_terms_of_different_shape_and_indefinite_sums_are_refused():
    with pytest.raises(ShapeError, match="one shape"):
        Sum(Kronecker(spd(2)), Kronecker(spd(3)))
    indefinite = Kronecker(spd(2), spd(3)) - 5.0 * Kronecker(spd(2), spd(3, 4))
    with pytest.raises(NotPositiveDefinite, match="Sum of shape"):
        indefinite.solve(draw(6))


def test_a_large_product_is_solved_by_its_factors_and_not_by_an_unconverged_iteration():
    low = LowRankPlusDiagonal(draw(2_500, 3), torch.ones(1).double())
    total = Kronecker(spd(50), spd(50, 1)) @ low
    assert isinstance(total, Product)
    right = draw(2_500, 2)
    residual = total @ total.solve(right) - right
    assert residual.norm() <= 1e-9 * right.norm()
    expected = Kronecker(spd(50), spd(50, 1)).logdet() + low.logdet()
    torch.testing.assert_close(total.logdet(), expected)


def test_a_product_and_its_rows_cost_what_the_factors_cost():
    n, k, c = 36, 4, 5
    a, low = Kronecker(spd(6), spd(6, 1)), LowRankPlusDiagonal(draw(n, k), torch.ones(1).double())
    for work in (a @ low, (low @ a)[torch.tensor([3, 1])]):
        with FlopCounterMode(display=False) as counter:
            work @ draw(n, c)
        assert counter.get_total_flops() <= 2 * c * n * 12 + 4 * n * k * c


def test_factors_must_meet():
    with pytest.raises(ShapeError, match=r"\(2, 2\), \(3, 3\)"):
        Product(Kronecker(spd(2)), Kronecker(spd(3)))
    with pytest.raises(ShapeError, match="square"):
        (Toeplitz(draw(3), draw(4)) @ Toeplitz(draw(4), draw(5))).logdet()


def test_factors_of_the_package_solve_only_where_they_are_exact():
    """Its dense solve reads one triangle of a factor that need not be symmetric."""
    left = Toeplitz(torch.tensor([2.0, 1.0], dtype=torch.float64))
    right = draw(2, 1)
    for entries in ([[2.0, 0.0], [1.0, 3.0]], [[2.0, 1.0], [0.0, 3.0]]):
        product = left @ DenseLinearOperator(torch.tensor(entries, dtype=torch.float64))
        for work in (product.logdet, lambda p=product: p.solve(right)):
            with pytest.raises(NotPositiveDefinite, match="symmetric"):
                work()
    commuting = left @ DenseLinearOperator(torch.tensor([[3.0, 1.0], [1.0, 3.0]]).double())
    lower = left @ TriangularLinearOperator(torch.tensor([[2.0, 0.0], [1.0, 3.0]]).double())
    diagonal = left @ DiagLinearOperator(torch.tensor([2.0, 5.0]).double())
    for product in (commuting, lower, diagonal):
        dense = product.to_dense()
        torch.testing.assert_close(product.solve(right), torch.linalg.solve(dense, right))
        torch.testing.assert_close(product.logdet(), torch.logdet(dense))


def test_the_diagonal_of_a_product_never_holds_the_matrix(monkeypatch):
    factors = Kronecker(spd(20), spd(20, 1)), Toeplitz(draw(400), draw(400))
    want = (factors[0].to_dense() @ factors[1].to_dense()).diagonal()
    monkeypatch.setattr("gpx.operators.combinations.DEFAULT_BUDGET", 16 * 400 * 8)
    sizes = []
    original = Product._product
    monkeypatch.setattr(
        Product, "_product", lambda self, v: (sizes.append(v.shape[1]), original(self, v))[1]
    )
    torch.testing.assert_close(Product(*factors).diagonal(), want)
    assert max(sizes) <= 20


def test_nothing_has_an_empty_diagonal_and_no_pivots():
    nothing = Product(Kronecker(draw(0, 3)), Kronecker(draw(3, 0)))
    assert nothing.diagonal().shape == (0,)
    with pytest.raises(ShapeError, match="needs a row"):
        nothing.pivoted_cholesky(1)


def test_a_multiple_of_a_foreign_operator_that_is_not_symmetric_is_refused():
    """A solve of linear_operator's own reads one triangle of it."""
    matrix = spd(5) + torch.triu(draw(5, 5), 1)
    scale = torch.tensor(2.0).double()
    for solve in (
        lambda: Scaled(DenseLinearOperator(matrix), scale).solve(draw(5, 1)),
        lambda: Scaled(DenseLinearOperator(matrix), scale).logdet(),
    ):
        with pytest.raises(NotPositiveDefinite, match="needs a symmetric matrix"):
            solve()
    lower = TriangularLinearOperator(matrix.tril())
    want = torch.linalg.solve(2.0 * matrix.tril(), draw(5, 1))
    torch.testing.assert_close(Scaled(lower, scale).solve(draw(5, 1)), want)
