"""The table of rules: the most specific applies, declined rules pass on."""

import pytest

import gpx.operators.algebra as algebra


class Base:
    pass


class Left(Base):
    pass


class Right(Base):
    pass


@pytest.fixture(autouse=True)
def _own_table(monkeypatch):
    monkeypatch.setattr(algebra, "_RULES", {})


def test_the_most_specific_rule_applies():
    algebra.rule("matmul", Base, Base)(lambda a, b: "general")
    algebra.rule("matmul", Left, Base)(lambda a, b: "left")
    assert algebra.combine("matmul", Left(), Right()) == "left"
    assert algebra.combine("matmul", Right(), Left()) == "general"
    assert algebra.combine("add", Left(), Right()) is None


def test_a_rule_may_decline():
    algebra.rule("matmul", Base, Base)(lambda a, b: "general")
    algebra.rule("matmul", Left, Right)(lambda a, b: None)
    assert algebra.combine("matmul", Left(), Right()) == "general"


def test_sums_commute_and_products_do_not():
    seen = []
    for operation in ("add", "matmul"):
        algebra.rule(operation, Left, Right)(lambda a, b: seen.append((type(a), type(b))) or "ok")
    assert algebra.combine("add", Right(), Left()) == "ok"
    assert seen == [(Left, Right)]
    assert algebra.combine("matmul", Right(), Left()) is None
