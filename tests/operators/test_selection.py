"""Rows and columns by index and mask."""

import pytest
import torch
from draws import draw, spd

from gpx.errors import ConfigError, DidNotConverge, ShapeError
from gpx.operators import Kronecker, Selection, Sum, select


def base():
    return Kronecker(spd(8), spd(9, 1))


def test_masks_and_negative_positions():
    operator, dense = base(), base().to_dense()
    mask = torch.arange(72) % 3 != 0
    gappy = select(operator, mask, mask)
    assert isinstance(gappy, Selection)
    assert gappy.rows is gappy.columns
    torch.testing.assert_close(gappy.to_dense(), dense[mask][:, mask])
    torch.testing.assert_close(gappy.diagonal(), dense.diagonal()[mask])
    torch.testing.assert_close(select(operator, torch.tensor([-1, 0])).to_dense(), dense[[-1, 0]])
    assert select(operator) is operator


def test_a_selection_of_a_selection_is_one():
    operator, dense = base(), base().to_dense()
    first = Selection(operator, rows=torch.arange(60), columns=torch.arange(10, 70))
    second = first[torch.arange(0, 60, 2), :]
    third = second[:, torch.arange(50)]
    assert isinstance(third, Selection)
    assert third.base is operator
    torch.testing.assert_close(third.to_dense(), dense[0:60:2, 10:60])
    scaled = 2.0 * third
    assert isinstance(scaled, Selection)
    assert isinstance(scaled.base, Kronecker)
    torch.testing.assert_close(scaled.to_dense(), 2 * dense[0:60:2, 10:60])


def test_a_selection_of_a_selection_with_shared_positions():
    operator, dense = base(), base().to_dense()
    mask, few = torch.arange(72) % 3 != 0, torch.tensor([5, 1, 30])
    shared = select(operator, mask, mask)
    both = select(shared, few, few)
    assert both.rows is both.columns
    torch.testing.assert_close(both.to_dense(), dense[mask][:, mask][few][:, few])
    one = select(shared, few, None)
    torch.testing.assert_close(one.to_dense(), dense[mask][:, mask][few])
    of_rows = select(operator, mask)
    torch.testing.assert_close(select(of_rows, None, few).to_dense(), dense[mask][:, few])
    different = Selection(operator, rows=torch.arange(40), columns=torch.arange(30, 72))
    torch.testing.assert_close(select(different, few, few).to_dense(), dense[:40, 30:][few][:, few])


def test_gradient_of_a_selection_of_a_rectangular_product():
    factors = [draw(2, 3).requires_grad_(), draw(3, 4, seed=1).requires_grad_()]
    rows, columns, right = torch.tensor([5, 0, 1]), torch.tensor([11, 2, 7, 3]), draw(4, 2, seed=2)
    found = torch.autograd.grad(
        (Selection(Kronecker(*factors), rows=rows, columns=columns) @ right).square().sum(), factors
    )
    dense = torch.kron(*factors)[rows][:, columns]
    want = torch.autograd.grad((dense @ right).square().sum(), factors)
    for ours, reference in zip(found, want, strict=True):
        torch.testing.assert_close(ours, reference)


def test_the_derivative_takes_single_vectors():
    rows = torch.tensor([5, 0, 1])
    operator = Selection(Kronecker(draw(2, 3), draw(3, 4, seed=1)), rows=rows)
    left, right = draw(3), draw(12, seed=1)
    whole = operator._bilinear_derivative(left[:, None], right[:, None])
    alone = operator._bilinear_derivative(left, right)
    assert len(alone) == len(whole) == 3
    for ours, reference in zip(alone[:2], whole[:2], strict=True):
        torch.testing.assert_close(ours, reference)


def test_a_selection_of_a_sum_keeps_the_terms():
    operator = base() + Kronecker(spd(8, 3), spd(9, 4))
    assert isinstance(operator, Sum)
    part = operator[torch.arange(40), :]
    assert isinstance(part, Sum)
    assert [type(t) for t in part.terms] == [Selection, Selection]
    torch.testing.assert_close(part.to_dense(), operator.to_dense()[:40])


def test_the_matrix_product_costs_the_bases_product_only(monkeypatch):
    calls, original = [], Kronecker._product
    monkeypatch.setattr(
        Kronecker, "_product", lambda self, v: (calls.append(v.shape), original(self, v))[1]
    )
    operator = Selection(base(), rows=torch.arange(50), columns=torch.arange(60))
    operator @ draw(60, 3)
    assert calls == [(72, 3)]


def test_large_solves_converge_or_say_that_they_did_not(monkeypatch):
    import gpx.operators.dense_factorisations as dense_factorisations

    monkeypatch.setattr(dense_factorisations, "DENSE_ROWS", 10)
    where = torch.arange(0, 72, 2)
    operator = Selection(base(), rows=where, columns=where)
    right = draw(36, 2).requires_grad_()
    solution = operator.solve(right)
    dense = operator.to_dense()
    torch.testing.assert_close(solution, torch.linalg.solve(dense, right), rtol=1e-8, atol=1e-9)
    solution.sum().backward()
    expected = torch.linalg.solve(dense, torch.ones_like(right))
    torch.testing.assert_close(right.grad, expected, rtol=1e-8, atol=1e-9)
    x = torch.linspace(0, 1, 72, dtype=torch.float64)
    smooth = Kronecker(torch.exp(-((x[:, None] - x).square())))
    with pytest.raises(DidNotConverge):
        Selection(smooth, rows=where, columns=where).solve(draw(36, 1))
    with pytest.raises(ConfigError, match="stochastic Lanczos"):
        operator.logdet()
    with pytest.raises(ConfigError, match="pivoted_cholesky"):
        operator.root_decomposition()


def test_errors():
    with pytest.raises(ShapeError, match=r"mask of rows is \(5,\); expected \(72,\)"):
        select(base(), torch.ones(5, dtype=torch.bool))
    with pytest.raises(ShapeError, match="columns has positions from 0 to 72"):
        select(base(), columns=torch.tensor([0, 72]))
    with pytest.raises(ShapeError, match=r"int64 vector.*use gpx.operators.select"):
        Selection(base(), rows=torch.ones(72, dtype=torch.bool))
    with pytest.raises(ShapeError, match="integer positions"):
        select(base(), torch.ones(3))
