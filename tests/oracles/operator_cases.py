"""The public operators, each with the matrix it stands for: what the conformance suites walk."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import ToeplitzLinearOperator
from torch import Tensor

import gpx.operators as operators
from gpx.kernels import Matern52


@dataclass(frozen=True)
class Case:
    """An operator, the matrix it stands for built without it, and what it promises.

    Attributes:
        operator: name of the public class.
        leaves: shapes of the tensors that everything is made of (drawn standard normal).
        build: leaves -> operator; the leaves may carry a batch dimension in front.
        dense: the same leaves without batch -> matrix, by dense algebra only.
        positive: symmetric positive definite: solves, determinants and roots are promised.
        batches: whether leaves may be batched (a kernel matrix repeats one matrix instead).
    """

    operator: str
    leaves: tuple[tuple[int, ...], ...]
    build: Callable[..., LinearOperator]
    dense: Callable[..., Tensor]
    positive: bool = False
    batches: bool = True


def pd(a: Tensor) -> Tensor:
    """A well-conditioned positive definite matrix from any square one."""
    return a @ a.mT / a.shape[-1] + torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def positive(a: Tensor) -> Tensor:
    return a.square() + 0.5


def kron(*factors: Tensor) -> Tensor:
    out = factors[0]
    for f in factors[1:]:
        out = torch.kron(out, f)
    return out


def rows_kron(*factors: Tensor) -> Tensor:
    rows = [kron(*[f[r] for f in factors]) for r in range(factors[0].shape[0])]
    return torch.stack(rows)


def toeplitz(column: Tensor) -> Tensor:
    n = column.shape[0]
    where = (torch.arange(n)[:, None] - torch.arange(n)).abs().to(column.device)
    return column[where]


def column(a: Tensor) -> Tensor:
    """First column of a diagonally dominant symmetric Toeplitz matrix."""
    first = torch.zeros_like(a)
    first[..., 0] = 8.0
    return first + torch.tanh(a)


ROWS = [5, 0, 3, 3, 8]
COLUMNS = [1, 7, 2]
PRINCIPAL = [9, 1, 4, 6, 0]


def index(where: list[int], like: Tensor) -> Tensor:
    return torch.tensor(where, device=like.device)


def principal(base: LinearOperator) -> LinearOperator:
    where = torch.tensor(PRINCIPAL, device=base.device)
    return operators.Selection(base, rows=where, columns=where)


def kernel_matrix(*leaves: Tensor, **options: Any) -> LinearOperator:
    parameters = leaves[-2:]
    kernel = Matern52(2, [0.8, 1.3], 1.4).to(leaves[0].device, leaves[0].dtype)
    names = tuple(name for name, _ in kernel.named_parameters())
    x1, x2 = (leaves[0], leaves[0]) if len(leaves) == 3 else leaves[:2]
    return operators.KernelMatrix(
        x1, x2, *parameters, kernel=kernel, names=names, square=len(leaves) == 3, **options
    )


def kernel_dense(*leaves: Tensor) -> Tensor:
    x1, x2 = (leaves[0], leaves[0]) if len(leaves) == 3 else leaves[:2]
    raw = dict(zip([n for n, _ in Matern52(2).named_parameters()], leaves[-2:], strict=True))
    lengthscale = next(v for n, v in raw.items() if "lengthscale" in n)
    outputscale = next(v for n, v in raw.items() if "outputscale" in n)
    # positive parameters are exponentials or softplus of raw ones: read the map off the kernel
    kernel = Matern52(2).to(x1.device, x1.dtype)
    transform = kernel.parametrizations["lengthscale"][0]
    scale = transform(lengthscale)
    difference = (x1[:, None] - x2) / scale
    r2 = difference.square().sum(-1)
    distance = torch.where(r2 == 0, 0.0, torch.where(r2 == 0, 1.0, r2).sqrt())
    a = 5.0**0.5 * distance
    return kernel.parametrizations["outputscale"][0](outputscale) * (
        (1 + a + a.square() / 3) * torch.exp(-a)
    )


def general_toeplitz(first: Tensor, row: Tensor) -> Tensor:
    every = torch.cat([row[1:].flip(0), first])
    lag = torch.arange(first.shape[0])[:, None] - torch.arange(row.shape[0])
    return every[lag.to(first.device) + row.shape[0] - 1]


def circulant(generator: Tensor) -> Tensor:
    """Multilevel: generator[(i - j) mod n], axis by axis."""
    place = torch.cartesian_prod(*[torch.arange(n) for n in generator.shape])
    place = place.reshape(generator.numel(), generator.ndim)
    lag = (place[:, None] - place) % torch.tensor(generator.shape)
    return generator[tuple(lag.to(generator.device).unbind(-1))]


def block_toeplitz(lags: Tensor, grid: tuple[int, ...]) -> Tensor:
    place = torch.cartesian_prod(*[torch.arange(n) for n in grid])
    lag = place[:, None] - place
    lag = lag.abs() if lags.shape == grid else lag % torch.tensor(lags.shape)
    return lags[tuple(lag.to(lags.device).unbind(-1))]


def generator(a: Tensor, levels: int = 1) -> Tensor:
    """A symmetric, diagonally dominant circulant generator or corner of lags."""
    dims = tuple(range(-levels, 0))
    even = torch.tanh(a) + torch.tanh(a).flip(dims).roll((1,) * levels, dims)
    return even + corner(torch.zeros_like(a), levels, 24.0)


def corner(a: Tensor, levels: int, peak: float = 16.0) -> Tensor:
    pick = torch.zeros(a.shape[-levels:], dtype=a.dtype, device=a.device)
    pick.view(-1)[0] = peak
    return torch.tanh(a) / 2 + pick


def weights(values: Tensor, m: int, q: int = 2, step: int = 1) -> LinearOperator:
    n = values.shape[-2]
    place = (step * torch.arange(n)[:, None] + torch.arange(q)) % m
    indices = place.to(values.device).expand(values.shape)
    return operators.Interpolation(values, indices, num_columns=m)


def weights_dense(values: Tensor, m: int, q: int = 2, step: int = 1) -> Tensor:
    out = values.new_zeros(values.shape[0], m)
    for i in range(values.shape[0]):
        for k in range(q):
            out[i, (step * i + k) % m] += values[i, k]
    return out


def tilted(a: Tensor) -> Tensor:
    """First column of a well-conditioned symmetric Toeplitz matrix near the identity."""
    first = torch.zeros_like(a)
    first[..., 0] = 1.0
    return first + 0.02 * torch.tanh(a)


def tilted_square(a: Tensor) -> Tensor:
    """Not symmetric, with a positive definite lower triangle."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return 4.0 * eye + torch.tanh(a)


def congruence(f: Tensor, s: Tensor) -> LinearOperator:
    """T (f f^T + D) T with T a Toeplitz matrix of s."""
    outer = operators.Toeplitz(tilted(s))
    middle = operators.LowRankPlusDiagonal(f, positive(s))
    return operators.Product(outer, middle, outer)


REGISTRY: dict[str, Case] = {
    "Kronecker": Case(
        "Kronecker",
        ((2, 2), (3, 3), (2, 2)),
        lambda *a: operators.Kronecker(*map(pd, a)),
        lambda *a: kron(*map(pd, a)),
        positive=True,
    ),
    "Kronecker, rectangular": Case(
        "Kronecker",
        ((2, 3), (4, 2), (2, 2)),
        lambda *a: operators.Kronecker(*a),
        lambda *a: kron(*a),
    ),
    "Kronecker of an operator": Case(
        "Kronecker",
        ((3,), (4, 4)),
        lambda a, b: operators.Kronecker(ToeplitzLinearOperator(column(a)), pd(b)),
        lambda a, b: kron(toeplitz(column(a)), pd(b)),
        positive=True,
    ),
    "KroneckerPlusDiagonal": Case(
        "KroneckerPlusDiagonal",
        ((3, 3), (4, 4), (1,)),
        lambda a, b, s: operators.KroneckerPlusDiagonal(
            operators.Kronecker(pd(a), pd(b)), positive(s)
        ),
        lambda a, b, s: kron(pd(a), pd(b)) + positive(s) * torch.eye(12).to(a),
        positive=True,
    ),
    "KroneckerPlusDiagonal, general": Case(
        "KroneckerPlusDiagonal",
        ((3, 3), (4, 4), (12,)),
        lambda a, b, s: operators.KroneckerPlusDiagonal(
            operators.Kronecker(pd(a), pd(b)), positive(s)
        ),
        lambda a, b, s: kron(pd(a), pd(b)) + torch.diag(positive(s)),
        positive=True,
    ),
    "Inverse": Case(
        "Inverse",
        ((3, 3), (4, 4), (1,)),
        lambda a, b, s: operators.Inverse(
            operators.KroneckerPlusDiagonal(operators.Kronecker(pd(a), pd(b)), positive(s))
        ),
        lambda a, b, s: torch.linalg.inv(kron(pd(a), pd(b)) + positive(s) * torch.eye(12).to(a)),
        positive=True,
    ),
    "KhatriRao": Case(
        "KhatriRao",
        ((9, 2), (9, 3), (9, 2)),
        lambda *a: operators.KhatriRao(*a),
        lambda *a: rows_kron(*a),
    ),
    "KhatriRao, columns": Case(
        "KhatriRao",
        ((2, 9), (3, 9), (2, 9)),
        lambda *a: operators.KhatriRao(*[f.mT for f in a], columnwise=True),
        lambda *a: rows_kron(*[f.mT for f in a]).mT,
    ),
    "LowRankPlusDiagonal": Case(
        "LowRankPlusDiagonal",
        ((12, 3), (1,)),
        lambda f, s: operators.LowRankPlusDiagonal(f, positive(s)),
        lambda f, s: f @ f.mT + positive(s) * torch.eye(12).to(f),
        positive=True,
    ),
    "LowRankPlusDiagonal, general": Case(
        "LowRankPlusDiagonal",
        ((12, 3), (12,)),
        lambda f, s: operators.LowRankPlusDiagonal(f, positive(s)),
        lambda f, s: f @ f.mT + torch.diag(positive(s)),
        positive=True,
    ),
    "Selection": Case(
        "Selection",
        ((2, 3), (5, 4)),
        lambda *a: operators.Selection(
            operators.Kronecker(*a), rows=index(ROWS, a[0]), columns=index(COLUMNS, a[0])
        ),
        lambda *a: kron(*a)[ROWS][:, COLUMNS],
    ),
    "Selection, principal": Case(
        "Selection",
        ((3, 3), (4, 4)),
        lambda *a: principal(operators.Kronecker(*map(pd, a))),
        lambda *a: kron(*map(pd, a))[PRINCIPAL][:, PRINCIPAL],
        positive=True,
    ),
    "Scaled": Case(
        "Scaled",
        ((12, 3), (12,), ()),
        lambda f, s, c: operators.Scaled(
            operators.LowRankPlusDiagonal(f, positive(s)), positive(c)
        ),
        lambda f, s, c: positive(c) * (f @ f.mT + torch.diag(positive(s))),
        positive=True,
    ),
    "Sum": Case(
        "Sum",
        ((3, 3), (4, 4), (12, 2), (1,)),
        lambda a, b, f, s: operators.Sum(
            operators.Kronecker(pd(a), pd(b)), operators.LowRankPlusDiagonal(f, positive(s))
        ),
        lambda a, b, f, s: kron(pd(a), pd(b)) + f @ f.mT + positive(s) * torch.eye(12).to(a),
        positive=True,
    ),
    "KernelMatrix": Case(
        "KernelMatrix",
        ((9, 2), (7, 2), (2,), ()),
        kernel_matrix,
        kernel_dense,
        batches=False,
    ),
    "KernelMatrix, chunked": Case(
        "KernelMatrix",
        ((9, 2), (7, 2), (2,), ()),
        lambda *a: kernel_matrix(*a, backend="chunked", memory_budget=256),
        kernel_dense,
        batches=False,
    ),
    "KernelMatrix, square": Case(
        "KernelMatrix",
        ((9, 2), (2,), ()),
        kernel_matrix,
        kernel_dense,
        batches=False,
        positive=True,
    ),
    "Toeplitz": Case(
        "Toeplitz",
        ((10,),),
        lambda a: operators.Toeplitz(column(a)),
        lambda a: toeplitz(column(a)),
        positive=True,
    ),
    "Toeplitz, rectangular": Case(
        "Toeplitz",
        ((9,), (7,)),
        lambda a, b: operators.Toeplitz(a, b),
        general_toeplitz,
    ),
    "Circulant": Case(
        "Circulant",
        ((9,),),
        lambda a: operators.Circulant(generator(a)),
        lambda a: circulant(generator(a)),
        positive=True,
    ),
    "Circulant, not symmetric": Case(
        "Circulant", ((10,),), lambda a: operators.Circulant(a), lambda a: circulant(a)
    ),
    "BlockCirculant": Case(
        "BlockCirculant",
        ((3, 4),),
        lambda a: operators.BlockCirculant(generator(a, 2), levels=2),
        lambda a: circulant(generator(a, 2)),
        positive=True,
    ),
    "BlockToeplitz": Case(
        "BlockToeplitz",
        ((3, 4),),
        lambda a: operators.BlockToeplitz(corner(a, 2), grid=(3, 4)),
        lambda a: block_toeplitz(corner(a, 2), (3, 4)),
        positive=True,
    ),
    "BlockToeplitz, all lags": Case(
        "BlockToeplitz",
        ((3, 5, 3),),
        lambda a: operators.BlockToeplitz(a, grid=(2, 3, 2)),
        lambda a: block_toeplitz(a, (2, 3, 2)),
    ),
    "Interpolation": Case(
        "Interpolation",
        ((9, 2),),
        lambda a: weights(a, 6),
        lambda a: weights_dense(a, 6),
    ),
    "Interpolated": Case(
        "Interpolated",
        ((7, 3), (6, 2), (8,)),
        lambda a, b, c: operators.Interpolated(
            weights(a, 8, 3), operators.Toeplitz(column(c)), weights(b, 8, 2)
        ),
        lambda a, b, c: weights_dense(a, 8, 3) @ toeplitz(column(c)) @ weights_dense(b, 8, 2).mT,
    ),
    "Interpolated, symmetric": Case(
        "Interpolated",
        ((6, 1), (6,)),
        lambda a, c: operators.Interpolated(
            weights(positive(a), 6, 1), operators.Toeplitz(column(c))
        ),
        lambda a, c: (
            weights_dense(positive(a), 6, 1)
            @ toeplitz(column(c))
            @ weights_dense(positive(a), 6, 1).mT
        ),
        positive=True,
    ),
}
REGISTRY |= {
    "Product": Case(
        "Product",
        ((3, 3), (4, 4), (12,)),
        lambda a, b, c: operators.Kronecker(pd(a), pd(b)) @ operators.Toeplitz(c, c.flip(-1)),
        lambda a, b, c: kron(pd(a), pd(b)) @ general_toeplitz(c, c.flip(-1)),
    ),
    "Product, rectangular": Case(
        "Product",
        ((9, 2), (9, 3), (6, 4), (4, 5)),
        lambda a, b, c, d: operators.Product(
            operators.KhatriRao(a, b), operators.Kronecker(c), operators.Kronecker(d)
        ),
        lambda a, b, c, d: rows_kron(a, b) @ c @ d,
    ),
    "Product, symmetric": Case(
        "Product",
        ((12, 3), (12,)),
        lambda f, s: congruence(f, s),
        lambda f, s: (
            toeplitz(tilted(s)) @ (f @ f.mT + torch.diag(positive(s))) @ toeplitz(tilted(s))
        ),
        positive=True,
    ),
    "DenseMatrix": Case(
        "DenseMatrix",
        ((8, 8),),
        lambda a: operators.DenseMatrix(pd(a)),
        pd,
        positive=True,
    ),
    "DenseMatrix, rectangular": Case(
        "DenseMatrix", ((6, 4),), lambda a: operators.DenseMatrix(a), lambda a: a
    ),
    "Toeplitz, indefinite": Case(
        "Toeplitz", ((10,),), lambda a: operators.Toeplitz(a), lambda a: toeplitz(a)
    ),
    "Kronecker, indefinite": Case(
        "Kronecker",
        ((2, 2), (3, 3)),
        lambda *a: operators.Kronecker(*[f + f.mT for f in a]),
        lambda *a: kron(*[f + f.mT for f in a]),
    ),
    "Kronecker, not symmetric": Case(
        "Kronecker",
        ((2, 2), (3, 3)),
        lambda *a: operators.Kronecker(*map(tilted_square, a)),
        lambda *a: kron(*map(tilted_square, a)),
    ),
}
NAMES = sorted(REGISTRY)
POSITIVE = [name for name in NAMES if REGISTRY[name].positive]
BATCHED = [name for name in NAMES if REGISTRY[name].batches]


def draw(*shape: int, seed: int = 0, like: Tensor | None = None) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values if like is None else values.to(like)


def leaves(name: str, *batch: int, dtype=torch.float64, device="cpu") -> list[Tensor]:
    shapes = REGISTRY[name].leaves
    return [draw(*batch, *shape, seed=10 + i).to(device, dtype) for i, shape in enumerate(shapes)]


def dense_of(name: str, values: list[Tensor], batch: int | None = None) -> Tensor:
    """The matrix in float64, built without the operator (one batch entry at a time)."""
    wide = [v.double() for v in values]
    if batch is None:
        return REGISTRY[name].dense(*wide)
    return torch.stack([REGISTRY[name].dense(*[v[i] for v in wide]) for i in range(batch)])


def close(found: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    """Relative to the largest entry: 1e-11 in float64, 3e-5 in float32 (condition below 100)."""
    tolerance = scale * (1e-11 if found.dtype == torch.float64 else 3e-5)
    bound = tolerance * max(1.0, float(expected.abs().max()) if expected.numel() else 1.0)
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=bound)
