"""Sums and multiples pass on what their parts can do."""

import pytest
import torch
from linear_operator.operators import ToeplitzLinearOperator

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.operators import Kronecker, KroneckerPlusDiagonal, LowRankPlusDiagonal, Scaled, Sum


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spd(n, seed=0):
    a = draw(n, n, seed=seed)
    return a @ a.mT / n + torch.eye(n, dtype=torch.float64)


def test_a_multiple_solves_as_its_base_does(monkeypatch):
    base = LowRankPlusDiagonal(draw(30, 3), torch.ones(1).double())
    monkeypatch.setattr(LowRankPlusDiagonal, "to_dense", lambda self: pytest.fail("made dense"))
    scaled = 2.0 * (3.0 * base)
    assert isinstance(scaled, Scaled)
    assert scaled.base is base
    right = draw(30, 2)
    torch.testing.assert_close(scaled.solve(right), base.solve(right) / 6.0)
    expected = base.logdet() + 30 * torch.log(torch.tensor(6.0, dtype=torch.float64))
    torch.testing.assert_close(scaled.logdet(), expected)


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


def test_errors():
    with pytest.raises(ShapeError, match="one shape"):
        Sum(Kronecker(spd(2)), Kronecker(spd(3)))
    indefinite = Kronecker(spd(2), spd(3)) - 5.0 * Kronecker(spd(2), spd(3, 4))
    with pytest.raises(NotPositiveDefinite, match="Sum of shape"):
        indefinite.solve(draw(6))
