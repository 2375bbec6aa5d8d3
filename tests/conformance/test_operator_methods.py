"""Every public method that operators inherit from linear_operator: right, or refused in a sentence.

The methods are listed from the base class itself, the operators from the registry: a new method or
operator without an entry fails. Right means equal to dense float64 algebra. An operator that is
symmetric positive definite must answer everything but what ``REFUSED`` names; any other may refuse
with an error of gpx, and may not answer wrongly.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from linear_operator import LinearOperator, to_dense
from operator_cases import BATCHED, NAMES, REGISTRY, close, dense_of, draw, leaves
from torch import Tensor

from gpx.errors import GPXError

OPERATIONS = ("__add__", "__getitem__", "__matmul__", "__mul__", "__radd__", "__rmatmul__")
OPERATIONS += ("__rmul__", "__rsub__", "__sub__", "__truediv__")
PUBLIC = {name for name in dir(LinearOperator) if not name.startswith("_")} | {
    name
    for name in vars(LinearOperator)
    if name.startswith("__") and callable(getattr(LinearOperator, name))
} - {"__init__", "__torch_function__"}


@dataclass(frozen=True)
class Subject:
    """One operator, alone or as a batch of two, and its dense matrix."""

    name: str
    batched: bool

    @property
    def operator(self) -> Any:
        """A fresh one at each call: methods may change it."""
        return REGISTRY[self.name].build(*[v.clone() for v in self._leaves])

    @property
    def _leaves(self) -> list[Tensor]:
        return leaves(self.name, *((2,) if self.batched else ()))

    @cached_property
    def dense(self) -> Tensor:
        return dense_of(self.name, self._leaves, 2 if self.batched else None)

    @property
    def n(self) -> int:
        return self.dense.shape[-2]

    @property
    def m(self) -> int:
        return self.dense.shape[-1]

    @property
    def batch(self) -> torch.Size:
        return self.dense.shape[:-2]

    @property
    def eye(self) -> Tensor:
        return torch.eye(self.n, dtype=torch.float64)

    def block(self, seed: int = 3, rows: int | None = None) -> Tensor:
        return draw(*self.batch, self.m if rows is None else rows, 2, seed=seed)


@dataclass(frozen=True)
class Check:
    """A call, what it must give (None: it must be refused), and how much rounding it may have."""

    found: Callable[[], Any]
    expected: Callable[[], Any] | None
    scale: float = 10.0
    may_refuse: bool = False


Entry = Callable[[Subject], Iterator[Check]]
ENTRIES: dict[str, Entry] = {}


def entry(*names: str) -> Callable[[Entry], Entry]:
    def register(function: Entry) -> Entry:
        for name in names:
            assert name not in ENTRIES
            ENTRIES[name] = function
        return function

    return register


def gram(root: LinearOperator) -> Tensor:
    dense = to_dense(root.root)
    return dense @ dense.mT


def rebuilt(values: Tensor, vectors: Any) -> Tensor:
    q = to_dense(vectors)
    return q * values.unsqueeze(-2) @ q.mT


def square_root(matrix: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.pow(power).unsqueeze(-2) @ vectors.mT


# --- sums, products, multiples ------------------------------------------------------------------


@entry("add", "__add__", "__radd__")
def _(s):
    other = draw(s.n, s.m, seed=4)
    yield Check(lambda: s.operator.add(other), lambda: s.dense + other)
    yield Check(lambda: s.operator.add(other, alpha=-2.0), lambda: s.dense - 2.0 * other)
    yield Check(lambda: s.operator + s.operator, lambda: 2.0 * s.dense)
    yield Check(lambda: other + s.operator, lambda: s.dense + other)


@entry("sub", "__sub__", "__rsub__")
def _(s):
    other = draw(s.n, s.m, seed=4)
    yield Check(lambda: s.operator.sub(other), lambda: s.dense - other)
    yield Check(lambda: s.operator.sub(other, alpha=-2.0), lambda: s.dense + 2.0 * other)
    yield Check(lambda: other - s.operator, lambda: other - s.dense)


@entry("add_diagonal", "add_jitter")
def _(s):
    noise = draw(s.n, seed=4).square()
    yield Check(lambda: s.operator.add_diagonal(noise), lambda: s.dense + torch.diag(noise))
    yield Check(lambda: s.operator.add_jitter(0.5), lambda: s.dense + 0.5 * s.eye)


@entry("add_low_rank")
def _(s):
    low = draw(s.n, 2, seed=5)
    whole = lambda: s.dense + low @ low.mT  # noqa: E731
    yield Check(lambda: s.operator.add_low_rank(low), whole)
    yield Check(lambda: gram(s.operator.add_low_rank(low).root_decomposition()), whole)
    yield Check(
        lambda: gram(s.operator.add_low_rank(low).root_inv_decomposition()),
        lambda: torch.linalg.inv(whole()),
    )


@entry("cat_rows")
def _(s):
    cross, corner = 0.5 * draw(*s.batch, 3, s.n, seed=5), 300.0 * torch.eye(3).double()
    corner = corner.expand(*s.batch, 3, 3)

    def whole():
        top = torch.cat([s.dense, cross.mT], -1)
        return torch.cat([top, torch.cat([cross, corner], -1)], -2)

    right = draw(*s.batch, s.n + 3, 2, seed=6)
    yield Check(lambda: s.operator.cat_rows(cross, corner, generate_roots=False), whole)
    yield Check(lambda: s.operator.cat_rows(cross, corner), whole)
    yield Check(lambda: gram(s.operator.cat_rows(cross, corner).root_decomposition()), whole)
    yield Check(
        lambda: gram(s.operator.cat_rows(cross, corner).root_inv_decomposition()),
        lambda: torch.linalg.inv(whole()),
    )
    yield Check(
        lambda: s.operator.cat_rows(cross, corner).solve(right),
        lambda: torch.linalg.solve(whole(), right),
    )


@entry("mul", "__mul__", "__rmul__")
def _(s):
    other = draw(s.n, s.m, seed=4)
    yield Check(lambda: s.operator.mul(2.5), lambda: 2.5 * s.dense)
    yield Check(lambda: 2.5 * s.operator, lambda: 2.5 * s.dense)
    yield Check(lambda: s.operator.mul(other), lambda: s.dense * other)
    yield Check(lambda: other * s.operator, lambda: s.dense * other)


@entry("div", "__truediv__")
def _(s):
    other = 1.0 + draw(s.n, s.m, seed=4).square()
    yield Check(lambda: s.operator.div(2.5), lambda: s.dense / 2.5)
    yield Check(lambda: s.operator / other, lambda: s.dense / other)


@entry("matmul", "__matmul__")
def _(s):
    right = s.block()
    yield Check(lambda: s.operator @ right, lambda: s.dense @ right)
    yield Check(
        lambda: s.operator.matmul(right[..., 0, :, 0] if s.batched else right[:, 0]),
        lambda: s.dense @ (right[..., 0, :, 0] if s.batched else right[:, 0]),
    )
    yield Check(lambda: s.operator @ s.operator.mT, lambda: s.dense @ s.dense.mT)


@entry("rmatmul", "__rmatmul__")
def _(s):
    left = draw(3, s.n, seed=4)
    yield Check(lambda: s.operator.rmatmul(left), lambda: left @ s.dense)
    yield Check(lambda: left @ s.operator, lambda: left @ s.dense)
    yield Check(lambda: s.operator.rmatmul(left[0]), lambda: left[0] @ s.dense)


@entry("prod")
def _(s):
    for count in (1, 2, 3, 4, 5, 7):  # odd numbers are where the package pads
        yield Check(
            lambda count=count: s.operator.expand(count, *s.batch, s.n, s.m).prod(0),
            lambda count=count: s.dense**count,
        )
    yield Check(lambda: s.operator.prod(-1), None)
    if s.batched:
        yield Check(lambda: s.operator.prod(0), lambda: s.dense.prod(0))


@entry("sum")
def _(s):
    for dim in (None, -1, -2, *range(len(s.batch))):
        expected = lambda dim=dim: s.dense.sum() if dim is None else s.dense.sum(dim)  # noqa: E731
        yield Check(lambda dim=dim: s.operator.sum(dim), expected)


@entry("abs", "exp", "log", "solve_triangular", "sqrt_inv_matmul")
def _(s):
    yield Check(lambda: s.operator.abs(), None)
    yield Check(lambda: s.operator.exp(), None)
    yield Check(lambda: s.operator.log(), None)
    yield Check(lambda: s.operator.solve_triangular(s.block(), upper=False), None)
    yield Check(lambda: s.operator.sqrt_inv_matmul(s.block()), None)


# --- solves, determinants, factorisations --------------------------------------------------------


@entry("solve")
def _(s):
    right, left = s.block(), draw(3, s.m, seed=4)
    yield Check(lambda: s.operator.solve(right), lambda: torch.linalg.solve(s.dense, right))
    yield Check(
        lambda: s.operator.solve(right, left), lambda: left @ torch.linalg.solve(s.dense, right)
    )


@entry("inv_quad", "inv_quad_logdet", "inv_quad_log_det", "logdet", "log_det")
def _(s):
    right = s.block()
    quads = lambda: (right * torch.linalg.solve(s.dense, right)).sum(-2)  # noqa: E731
    # the logarithm of the absolute value where the matrix need not be positive definite
    logdet = lambda: torch.linalg.slogdet(s.dense)[1]  # noqa: E731
    yield Check(lambda: s.operator.inv_quad(right), lambda: quads().sum(-1))
    yield Check(lambda: s.operator.inv_quad(right, reduce_inv_quad=False), quads)
    yield Check(lambda: s.operator.inv_quad_logdet(right, True)[0], lambda: quads().sum(-1))
    yield Check(lambda: s.operator.inv_quad_logdet(right, True)[1], logdet)
    yield Check(lambda: s.operator.inv_quad_log_det(right, True)[1], logdet)
    yield Check(lambda: s.operator.logdet(), logdet)
    yield Check(lambda: s.operator.log_det(), logdet)


@entry("inverse")
def _(s):
    yield Check(lambda: s.operator.inverse(), lambda: torch.linalg.inv(s.dense), may_refuse=True)


@entry("cholesky")
def _(s):
    lower = lambda: to_dense(s.operator.cholesky())  # noqa: E731
    yield Check(lambda: lower() @ lower().mT, lambda: s.dense)
    yield Check(lambda: lower().triu(1), lambda: torch.zeros_like(s.dense))
    yield Check(lambda: s.operator.cholesky(upper=True), lambda: lower().mT)


@entry("root_decomposition")
def _(s):
    for method in (None, "cholesky", "symeig", "diagonalization", "svd"):
        found = lambda method=method: gram(s.operator.root_decomposition(method=method))  # noqa: E731
        yield Check(found, lambda: s.dense)
    for method in ("lanczos", "pivoted_cholesky", "none such"):
        yield Check(lambda method=method: s.operator.root_decomposition(method=method), None)


@entry("root_inv_decomposition")
def _(s):
    inverse = lambda: torch.linalg.inv(s.dense)  # noqa: E731
    for method in (None, "cholesky", "symeig", "diagonalization", "svd", "pinverse"):
        found = lambda method=method: gram(s.operator.root_inv_decomposition(method=method))  # noqa: E731
        yield Check(found, inverse)
    yield Check(lambda: s.operator.root_inv_decomposition(method="lanczos"), None)

    def consistent():
        root = to_dense(s.operator.root_decomposition().root)
        if root.shape[-1] != root.shape[-2]:
            return s.eye.expand(*s.batch, s.n, s.n)  # nothing to invert
        return to_dense(s.operator.root_inv_decomposition().root).mT @ root

    yield Check(consistent, lambda: s.eye.expand(*s.batch, s.n, s.n))


@entry("diagonalization", "eigh", "eigvalsh")
def _(s):
    yield Check(lambda: rebuilt(*s.operator.diagonalization()), lambda: s.dense)
    yield Check(lambda: rebuilt(*s.operator.diagonalization("symeig")), lambda: s.dense)
    yield Check(lambda: s.operator.diagonalization("lanczos"), None)
    yield Check(lambda: rebuilt(*s.operator.eigh()), lambda: s.dense)
    yield Check(lambda: s.operator.eigvalsh().sort().values, lambda: torch.linalg.eigvalsh(s.dense))


@entry("svd")
def _(s):
    def product():
        left, values, right = s.operator.svd()
        return to_dense(left) * values.unsqueeze(-2) @ to_dense(right).mT

    def values():
        found = s.operator.svd()[1].sort().values
        missing = min(s.n, s.m) - found.shape[-1]  # zeros need not be listed
        return torch.nn.functional.pad(found, (missing, 0))

    yield Check(product, lambda: s.dense)
    yield Check(values, lambda: torch.linalg.svdvals(s.dense).flip(-1))


@entry("sqrt")
def _(s):
    yield Check(lambda: s.operator.sqrt(), lambda: square_root(s.dense, 0.5), may_refuse=True)


@entry("pivoted_cholesky")
def _(s):
    def whole():
        factor = s.operator.pivoted_cholesky(s.n)
        return factor @ factor.mT

    def residual():
        """What three pivots leave: positive semi-definite, and zero at the pivots."""
        factor, pivots = s.operator.pivoted_cholesky(3, return_pivots=True)
        left = s.dense - factor @ factor.mT
        rows = left.gather(-2, pivots[..., :3, None].expand(*s.batch, 3, s.n))
        least = torch.linalg.eigvalsh(left).amin().clamp_max(0.0)
        return torch.stack([rows.abs().max(), least])

    yield Check(whole, lambda: s.dense, 100.0)
    yield Check(residual, lambda: torch.zeros(2).double(), 100.0)


@entry("zero_mean_mvn_samples")
def _(s):
    # the distribution is tested in test_operators; here that the draws are of it, by its shape
    def shape():
        return torch.tensor(s.operator.zero_mean_mvn_samples(4).shape).double()

    yield Check(shape, lambda: torch.tensor((4, *s.batch, s.n)).double())


# --- shapes, parts, entries ----------------------------------------------------------------------


@entry("T", "t", "mT", "transpose")
def _(s):
    if not s.batched:
        yield Check(lambda: s.operator.T, lambda: s.dense.mT)
        yield Check(lambda: s.operator.t(), lambda: s.dense.mT)
    yield Check(lambda: s.operator.mT, lambda: s.dense.mT)
    yield Check(lambda: s.operator.transpose(-1, -2), lambda: s.dense.mT)
    wide = (3, 2, s.n, s.m)
    yield Check(
        lambda: s.operator.expand(wide).transpose(0, 1),
        lambda: s.dense.expand(wide).transpose(0, 1),
    )


@entry("batch_dim", "batch_shape", "dim", "matrix_shape", "ndim", "ndimension", "numel", "shape")
def _(s):
    facts = lambda o: [len(o.shape), *o.shape]  # noqa: E731
    as_tensor = lambda values: torch.tensor(values).double()  # noqa: E731
    batch, matrix = list(s.batch), [s.n, s.m]
    yield Check(lambda: as_tensor(facts(s.operator)), lambda: as_tensor(facts(s.dense)))
    yield Check(
        lambda: as_tensor([*s.operator.batch_shape, *s.operator.matrix_shape]),
        lambda: as_tensor(batch + matrix),
    )
    yield Check(
        lambda: as_tensor(
            [s.operator.batch_dim, s.operator.dim(), s.operator.ndim, s.operator.ndimension()]
        ),
        lambda: as_tensor([len(batch), s.dense.ndim, s.dense.ndim, s.dense.ndim]),
    )
    yield Check(lambda: as_tensor(s.operator.numel()), lambda: as_tensor(s.dense.numel()))


@entry("size", "is_square")
def _(s):
    size = lambda o: torch.tensor([*o.size(), o.size(-1)]).double()  # noqa: E731
    yield Check(lambda: size(s.operator), lambda: size(s.dense))
    yield Check(
        lambda: torch.tensor(float(s.operator.is_square)), lambda: torch.tensor(float(s.n == s.m))
    )


@entry("expand", "reshape", "unsqueeze", "squeeze", "permute", "repeat")
def _(s):
    wide = (3, *s.batch, s.n, s.m)
    ones = (1,) * len(s.batch)
    yield Check(lambda: s.operator.expand(wide), lambda: s.dense.expand(wide))
    yield Check(lambda: s.operator.reshape(*wide), lambda: s.dense.expand(wide))
    yield Check(lambda: s.operator.unsqueeze(0), lambda: s.dense.unsqueeze(0))
    yield Check(lambda: s.operator.unsqueeze(0).squeeze(0), lambda: s.dense)
    yield Check(lambda: s.operator.squeeze(0), lambda: s.dense.squeeze(0))
    order = (len(s.batch), *range(len(s.batch)), len(wide) - 2, len(wide) - 1)
    yield Check(
        lambda: s.operator.expand(wide).permute(*order),
        lambda: s.dense.expand(wide).permute(*order),
    )
    yield Check(lambda: s.operator.repeat(3, *ones, 1, 1), lambda: s.dense.repeat(3, *ones, 1, 1))
    if s.batched:
        yield Check(lambda: s.operator.repeat(3, 2, 1, 1), lambda: s.dense.repeat(3, 2, 1, 1))


@entry("diagonal")
def _(s):
    yield Check(lambda: s.operator.diagonal(), lambda: s.dense.diagonal(dim1=-2, dim2=-1))
    yield Check(lambda: s.operator.diagonal(offset=1), None)
    if s.batched:
        yield Check(lambda: s.operator.diagonal(0, 0, 1), None)


@entry("__getitem__")
def _(s):
    i, j = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2]).view(-1, 1)
    k, every = torch.tensor([2, 1, 0, 1]), slice(None)
    third = i.view(-1, 1, 1)
    where: list[Any] = [(..., j, k), (..., every, 1), (..., slice(1, 3), slice(0, 2)), (..., 0, 1)]
    if s.batched:
        where += [(third, j, k), (i, k[:3], k[:3]), (i.view(1, -1), every, j), (third, j), (third,)]
        where += [(i.view(-1, 1),), (i, every, slice(0, 2)), (1,), (0, j, k), (slice(0, 1), j, k)]
    for at in where:
        yield Check(lambda at=at: s.operator[at], lambda at=at: s.dense[at])
    yield Check(lambda: s.operator[..., j, :], None)  # rows must be a vector


@entry("isclose")
def _(s):
    def nearly(operator, dense):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package says that it makes the matrix dense
            return operator.isclose(dense).double()

    ones = lambda: torch.ones_like(s.dense)  # noqa: E731
    yield Check(lambda: nearly(s.operator, s.dense), ones)
    yield Check(lambda: 1.0 - nearly(s.operator, s.dense + 1.0), ones)


@entry("to_dense", "numpy", "evaluate_kernel", "representation", "representation_tree")
def _(s):
    yield Check(lambda: s.operator.to_dense(), lambda: s.dense)
    yield Check(lambda: torch.from_numpy(s.operator.numpy()), lambda: s.dense)
    yield Check(lambda: s.operator.evaluate_kernel(), lambda: s.dense)

    def again():
        operator = s.operator
        return operator.representation_tree()(*operator.representation())

    yield Check(again, lambda: s.dense)


# --- dtypes, devices, graphs ---------------------------------------------------------------------


@entry("to", "type", "float", "double", "half", "dtype")
def _(s):
    single = torch.float32
    convert = (lambda: s.operator.to(single), lambda: s.operator.type(single))
    for found in (*convert, lambda: s.operator.float()):
        # the ingredients are rounded, then the matrix is computed in float32
        yield Check(lambda found=found: found().to_dense(), lambda: s.dense)
        yield Check(lambda found=found: found().double(), lambda: s.dense, 1e8)
    yield Check(lambda: s.operator.double(), lambda: s.dense)
    yield Check(lambda: s.operator.half(), None)
    yield Check(lambda: s.operator.to(torch.bfloat16), None)


@entry("cpu", "cuda", "device")
def _(s):
    yield Check(lambda: s.operator.cpu(), lambda: s.dense)
    yield Check(lambda: torch.zeros(2, device=s.operator.device), lambda: torch.zeros(2).double())
    if torch.cuda.is_available():
        yield Check(lambda: s.operator.cuda().cpu(), lambda: s.dense)


@entry("clone", "detach", "detach_", "requires_grad", "requires_grad_")
def _(s):
    yield Check(lambda: s.operator.clone(), lambda: s.dense)
    yield Check(lambda: s.operator.detach(), lambda: s.dense)
    yield Check(lambda: s.operator.detach_(), lambda: s.dense, may_refuse=True)  # not of views

    def graph():
        operator = s.operator.requires_grad_(True)
        with_graph = operator.requires_grad and operator.to_dense().requires_grad
        operator.requires_grad = False
        without = operator.requires_grad or operator.to_dense().requires_grad
        return torch.tensor([float(with_graph), float(without)])

    yield Check(graph, lambda: torch.tensor([1.0, 0.0]).double(), may_refuse=True)


# --- the walk ------------------------------------------------------------------------------------


def test_every_public_method_has_an_entry():
    assert set(ENTRIES) == PUBLIC


SUBJECTS = [Subject(name, batched) for name in NAMES for batched in (False, True)]
SUBJECTS = [s for s in SUBJECTS if not s.batched or s.name in BATCHED]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name + ", batch" * s.batched)
def test_every_method_is_right_or_refused(subject):
    faults = []
    for names in {
        id(e): [n for n in ENTRIES if ENTRIES[n] is e] for e in ENTRIES.values()
    }.values():
        for at, check in enumerate(ENTRIES[names[0]](subject)):
            fault = _fault(check, REGISTRY[subject.name].positive)
            if fault:
                faults.append(f"{'/'.join(names)} [{at}]: {fault}")
    assert not faults, "\n".join(faults)


def _fault(check: Check, positive: bool) -> str:
    try:
        found = check.found()
        found = to_dense(found).detach() if isinstance(found, (Tensor, LinearOperator)) else found
    except GPXError as refusal:
        if check.expected is not None and positive and not check.may_refuse:
            return f"refused: {refusal}"
        return "" if str(refusal) and "\n" not in str(refusal) else f"no sentence: {refusal!r}"
    except Exception as other:
        return f"{type(other).__name__}: {other}"
    if check.expected is None:
        return "answered where it must be refused"
    try:
        close(found, check.expected(), check.scale)
    except AssertionError as difference:
        return str(difference).split("\n\n")[-1].replace("\n", " ")
    except Exception as impossible:
        return f"answered where dense algebra cannot: {impossible}"
    return ""
