"""Combinations of operators: a table of rules, looked up by the types of the two operands.

Each operator file registers the combinations that keep structure::

    @rule("add", Kronecker, DiagLinearOperator)
    def _(left, right): return KroneckerPlusDiagonal(left, right.diagonal())

``combine`` walks the classes of both operands from the most specific to the most general and takes
the first rule that does not decline. Operations: "add" and "mul" (elementwise), which commute,
"matmul", "scale" (by a tensor of the batch shape), "select" (rows and columns by ``Index``),
"dense" (a tensor as an operator).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from linear_operator import LinearOperator
from torch import Tensor

Rule = Callable[[Any, Any], LinearOperator | None]
"""Returns the combination, or None to decline this pair."""

F = TypeVar("F", bound=Rule)

_RULES: dict[tuple[str, type, type], Rule] = {}
_COMMUTES = ("add", "mul")


class Index(NamedTuple):
    """Rows and columns to keep, by position (int64 vectors); None keeps all."""

    rows: Tensor | None
    columns: Tensor | None


def rule(operation: str, left: type, right: type) -> Callable[[F], F]:
    """Register the result of ``operation`` for operands of these types (or their subclasses)."""

    def register(function: F) -> F:
        _RULES[operation, left, right] = function
        return function

    return register


def combine(operation: str, left: Any, right: Any) -> LinearOperator | None:
    """The combination by the most specific rule that applies, or None when there is none.

    The left operand's classes are walked first. Cost: a few dictionary look-ups.
    """
    commutes = operation in _COMMUTES
    for a in type(left).__mro__:
        for b in type(right).__mro__:
            found = _RULES.get((operation, a, b))
            result = None if found is None else found(left, right)
            if result is None and commutes:
                found = _RULES.get((operation, b, a))
                result = None if found is None else found(right, left)
            if result is not None:
                return result
    return None


def combined(operation: str, left: Any, right: Any) -> LinearOperator:
    """As ``combine``, for operations with a general rule that accepts every pair."""
    found = combine(operation, left, right)
    assert found is not None
    return found
