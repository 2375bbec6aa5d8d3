"""The changes that scripts/mutate.py makes to a source file.

A mutant is one edit in the body of one function. Default arguments, constants of the module,
messages and annotations are not changed, because tests need not fix them.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

# Mutants call the three functions below, which they find among the builtins.
DETACH, ATTACH, SCALE = "__mutate_detach__", "__mutate_attach__", "__mutate_scale__"
# Smaller numbers are tolerances: a small change of them changes no result.
SMALLEST_CONSTANT = 1e-3

_SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_NEGATED = {ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot}
_NEGATED |= {ast.In: ast.NotIn}
_NEGATED |= {b: a for a, b in _NEGATED.items()}
_OPPOSITE = {"min": "max", "minimum": "maximum", "amin": "amax", "argmin": "argmax"}
_OPPOSITE["clamp_min"] = "clamp_max"
_OPPOSITE |= {b: a for a, b in _OPPOSITE.items()}
# Functions that are left out: torch.log(x) and x.log() become x.
_MAPS = {
    *("abs", "cholesky_inverse", "clamp", "clamp_max", "clamp_min", "conj", "cos", "cumsum"),
    "diff",
    *("erfc", "exp", "expm1", "flip", "log", "log1p", "mean", "reciprocal", "round"),
    *("rsqrt", "sigmoid", "sin", "softplus", "sqrt", "square", "tanh", "transpose", "tril", "triu"),
}
# Keywords about storage, which change no result.
_OF_THE_TENSOR = {"strict", "device", "dtype", "sorted", "memory_format"}
_TRANSPOSES = {"mT", "T", "mH", "H"}
_TALK = {"warn", "debug", "info", "warning", "error", "log_once", "super", "save_for_backward"}
_SILENT_FUNCTIONS = {"__repr__", "__str__", "extra_repr"}


def detached(value: Any) -> Any:
    """The value without its gradient; records whether it had one."""
    return attached(value).detach() if getattr(value, "requires_grad", False) is True else value


def attached(value: Any) -> Any:
    """The value, in place of detach(); records whether a gradient now passes."""
    if getattr(value, "requires_grad", False) is True:
        effect.seen = effect.seen or sys.modules["torch"].is_grad_enabled()
    return value


def scaled(value: Any) -> Any:
    """A floating-point number or tensor times 0.9; other values are unchanged."""
    dtype = getattr(value, "dtype", None)
    if not (isinstance(value, float) or getattr(dtype, "is_floating_point", False)):
        return value
    smaller = value * 0.9
    different = value != smaller
    effect.seen = effect.seen or bool(different if isinstance(value, float) else different.any())
    return smaller


class effect:
    """Whether an inserted call changed anything since the process was forked."""

    seen = False


@dataclass
class Mutant:
    """One edit: ``parent.field`` (or its element ``index``) becomes ``new``."""

    path: Path
    function: str  # qualified name inside the module
    lines: range  # of the statement
    kind: str
    parent: Any
    field: str
    index: int | None
    new: ast.AST
    outermost: tuple[str, int]  # name and first line of the outermost function around the edit
    original: str = ""
    changed: str = ""

    @property
    def identity(self) -> str:
        """Ten digits that depend on the statement and the edit, not on line or file."""
        text = "\n".join((self.path.stem, self.function, self.original, self.changed))
        return hashlib.sha1(text.encode()).hexdigest()[:10]

    @property
    def needs_effect(self) -> bool:
        """Whether the edit is an inserted call, which may change no value."""
        return self.kind in ("detach in", "detach out", "times 0.9")

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The syntax tree with the edit."""
        held = getattr(self.parent, self.field)
        if self.index is None:
            setattr(self.parent, self.field, self.new)
        else:
            setattr(
                self.parent, self.field, [*held[: self.index], self.new, *held[self.index + 1 :]]
            )
        try:
            yield
        finally:
            setattr(self.parent, self.field, held)

    def code(self, tree: ast.Module) -> CodeType:
        """Compiled code of the outermost function around the edit, with the edit."""
        with self.applied():
            module = compile(tree, str(self.path), "exec")
        return next(
            c for c in functions_of(module) if (c.co_name, c.co_firstlineno) == self.outermost
        )


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """Code objects of the functions and methods of a module, without inner functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # CO_NEWLOCALS: a function, not the body of a class
                yield constant
            else:
                yield from functions_of(constant)


def _call(name: str, value: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), [value], [])


def _with_op(node: Any, **changes: Any) -> Any:
    return type(node)(**{name: getattr(node, name) for name in node._fields} | changes)


def _edits(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Kinds of edits of an expression, with its replacements."""
    if isinstance(node, ast.BinOp):
        yield from _edits_of_operation(node)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not) or (
            isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant)
        ):
            yield "sign", node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "boolean", ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield "constant", ast.Constant(node.value + 1)
        elif isinstance(node.value, float) and abs(node.value) >= SMALLEST_CONSTANT:
            yield "constant", ast.Constant(node.value * 1.1)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "comparison", _with_op(node, ops=[_NEGATED[type(node.ops[0])]()])
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "comparison", _with_op(node, op=other)
    elif isinstance(node, ast.Attribute) and node.attr in _TRANSPOSES:
        yield "transpose", node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
        yield from _edits_of_call(node)


def _edits_of_operation(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    if type(node.op) in _SWAPPED:
        yield "operator", _with_op(node, op=_SWAPPED[type(node.op)]())
        yield "dropped", node.left
        if isinstance(node.op, ast.Add | ast.Mult):
            yield "dropped", node.right
    if isinstance(node.op, ast.MatMult):
        turned = ast.Attribute(node.left, "mT", ast.Load())
        yield "transpose", _with_op(node, left=turned)
    if type(node.op) in _SWAPPED or isinstance(node.op, ast.MatMult):
        for side in ("left", "right"):
            operand = getattr(node, side)
            if not isinstance(operand, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple):
                yield "detach in", _with_op(node, **{side: _call(DETACH, operand)})


def _edits_of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.func, ast.Name):
        name, owner = node.func.id, None
    else:
        name, owner = node.func.attr, node.func.value
    of_library = isinstance(owner, ast.Name) and owner.id in ("torch", "np", "math")
    if name in _OPPOSITE:
        opposite = _OPPOSITE[name]
        func = (
            ast.Name(opposite, ast.Load()) if owner is None else _with_op(node.func, attr=opposite)
        )
        yield "extreme", _with_op(node, func=func)
    if owner is None:
        return
    if name == "detach":
        yield "detach out", _call(ATTACH, owner)
    elif name in _MAPS and not of_library:
        yield "left out", owner
    elif name in _MAPS and node.args:
        yield "left out", node.args[0]


def _returned(statement: ast.Return) -> Iterator[tuple[Any, str, int | None, ast.expr]]:
    """Places of the values of a return statement."""
    value = statement.value
    if isinstance(value, ast.Tuple):
        for k, element in enumerate(value.elts):
            yield value, "elts", k, element
    elif value is not None:
        yield statement, "value", None, value


class _Finder:
    """Walks one module and lists its mutants."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path, self.tree, self.mutants = path, tree, []
        self.names: list[str] = []
        self.outermost: tuple[str, int] | None = None

    def block(self, owner: ast.AST, field: str) -> None:
        for k, statement in enumerate(getattr(owner, field, [])):
            self.statement(owner, field, k, statement)

    def statement(self, owner: ast.AST, field: str, k: int, node: Any) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            self.definition(node)
            return
        for inner in ("body", "orelse", "finalbody"):
            self.block(node, inner)
        for handler in getattr(node, "handlers", []):
            self.block(handler, "body")
        for case in getattr(node, "cases", []):
            self.block(case, "body")
        if self.outermost is None or isinstance(node, ast.Raise | ast.Assert | ast.Import):
            return
        self.own(owner, field, k, node)

    def definition(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        if node.name in _SILENT_FUNCTIONS:
            return
        held = self.outermost
        self.names.append(node.name)
        if isinstance(node, ast.FunctionDef) and held is None:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            self.outermost = (node.name, first)
        self.block(node, "body")
        self.outermost = held
        self.names.pop()

    def own(self, owner: ast.AST, field: str, k: int, node: Any) -> None:
        """Edits of the expressions of a statement, not of statements inside it."""
        header = node if isinstance(node, ast.expr) else None
        if isinstance(node, ast.If | ast.While):
            header = node.test
            if isinstance(node.body[0], ast.Raise):
                self.add("guard", node, "test", None, ast.Constant(False), header)
                return
            self.add("branch", node, "test", None, ast.Constant(False), header)
            if isinstance(node, ast.If) and "needs_input_grad" not in ast.unparse(header):
                self.add("branch", node, "test", None, ast.Constant(True), header)
            self.expressions(node, "test", header)
        elif isinstance(node, ast.For):
            self.expressions(node, "iter", node.iter)
        elif isinstance(node, ast.With):
            pass
        elif isinstance(node, ast.AugAssign):
            if type(node.op) in _SWAPPED:
                self.add("operator", node, "op", None, _SWAPPED[type(node.op)](), node)
            self.add("statement", owner, field, k, ast.Pass(), node)
            self.expressions(node, "value", node)
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Call) and not self.talks(node.value):
                self.add("statement", owner, field, k, ast.Pass(), node)
                self.expressions(node, "value", node)
        elif isinstance(node, ast.Return):
            for parent, name, index, value in _returned(node):
                if not isinstance(value, ast.Constant):
                    self.add("times 0.9", parent, name, index, _call(SCALE, value), node)
            if node.value is not None:
                self.expressions(node, "value", node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            if isinstance(node.value, ast.Call | ast.BinOp):
                self.add("times 0.9", node, "value", None, _call(SCALE, node.value), node)
            self.expressions(node, "value", node)

    def talks(self, call: ast.Call) -> bool:
        """Whether a call computes nothing, such as a message or a warning."""
        names = {n.id for n in ast.walk(call.func) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(call.func) if isinstance(n, ast.Attribute)}
        return bool(names & _TALK)

    def expressions(
        self, parent: Any, field: str, shown: ast.AST, index: int | None = None
    ) -> None:
        node = getattr(parent, field)
        node = node if index is None else node[index]
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and self.talks(node)):
            return
        if isinstance(node, ast.keyword) and node.arg in _OF_THE_TENSOR:
            return
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("needs_input_grad"):
            return  # an unused gradient costs time and changes nothing
        if isinstance(node, ast.IfExp):
            for value in (False, True)[: 1 if "needs_input_grad" in ast.unparse(node.test) else 2]:
                self.add("branch", node, "test", None, ast.Constant(value), shown)
        for kind, new in _edits(node):
            self.add(kind, parent, field, index, new, shown)
        for name, value in ast.iter_fields(node):
            if isinstance(node, ast.Lambda) and name == "args":
                continue
            if isinstance(value, ast.AST):
                self.expressions(node, name, shown)
            elif isinstance(value, list):
                for k, element in enumerate(value):
                    if isinstance(element, ast.AST):
                        self.expressions(node, name, shown, k)

    def add(
        self, kind: str, parent: Any, field: str, index: int | None, new: Any, shown: ast.AST
    ) -> None:
        assert self.outermost is not None
        held = getattr(parent, field)
        ast.copy_location(new, held if index is None else held[index])
        ast.fix_missing_locations(new)
        if isinstance(new, ast.expr | ast.Pass) and not hasattr(new, "lineno"):
            ast.copy_location(new, shown)
        lines = range(shown.lineno, shown.end_lineno + 1)  # type: ignore[attr-defined]
        mutant = Mutant(
            self.path, ".".join(self.names), lines, kind, parent, field, index, new, self.outermost
        )
        mutant.original = ast.unparse(shown)
        with mutant.applied():
            # read the header again: it contains the changed field
            changed = new if shown is held and not isinstance(shown, list) else shown
            mutant.changed = "pass" if kind == "statement" else ast.unparse(changed)
        mutant.changed = (
            mutant.changed.replace(DETACH, "detached").replace(ATTACH, "").replace(SCALE, "0.9 * ")
        )
        self.mutants.append(mutant)


def mutants_of(path: Path) -> tuple[ast.Module, list[Mutant]]:
    """The syntax tree of a file, and its mutants in source order."""
    tree = ast.parse(path.read_text(), str(path))
    finder = _Finder(path, tree)
    finder.block(tree, "body")
    unique = {mutant.identity: mutant for mutant in reversed(finder.mutants)}
    return tree, sorted(unique.values(), key=lambda m: (m.lines.start, m.kind, m.changed))
