"""Five rules for predictive variances of an exact Gaussian process without its factorisation.

A rule takes the covariances k_* (n, b) of b test points with the training inputs and their prior
variances (b,), and returns the variance of f with a certificate ``gap``: the exact variance lies in
[variance - gap, variance].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.inference.exact_solver import IterativeOptions
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.linalg import EvidenceBound, Lanczos, LowRankPlusNoise, cholesky, conjugate_gradients
from gpx.linalg.known_gradient import first_derivative_only

ROUNDING = 8.0 * torch.finfo(torch.float64).eps
"""Rounding error of r^T Q^{-1} r, relative to ||r||^2 / noise, the larger of the two terms whose
difference it is."""

STARTS_PER_STEP = 20
"""Number of Lanczos processes that share products: evaluating the kernel's entries costs more than
further columns."""

BLOCK_BYTES = 2**26
"""Bytes of one block of residual covariances and their inputs."""

NEIGHBOUR_ROUNDING = 64.0
"""Rounding error of residual covariances, in units of eps ||K||; added to their diagonal, so that
the bounds hold."""


class Variance(NamedTuple):
    """Variance of f (b,) and how far below it the exact variance may be (b,); NaN: unknown."""

    variance: Tensor
    gap: Tensor


VarianceRule = Callable[[Tensor, Tensor], Variance]
"""Its variance is differentiable in k_* and the prior variances, its gap is not. Second derivatives
are right or raise NotAvailable ("exact" and "nystrom", from solves without a graph)."""


class _Explained(torch.autograd.Function):
    """k^T A k of columns k of ``cross`` (n, b), given A k without a graph; A is symmetric."""

    @staticmethod
    def forward(ctx: Any, cross: Tensor, solved: Tensor) -> Tensor:
        ctx.save_for_backward(cross, solved)
        return (cross * solved).sum(0)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return 2.0 * ctx.saved_tensors[1] * grad, None


def _explained(cross: Tensor, solved: Tensor) -> Tensor:
    """``_Explained``, with its type: (b,)."""
    found: Tensor = _Explained.apply(cross, solved)
    return found


def _quadratic(system: PreconditionedKernel, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """r^T Q^{-1} r of vectors (n, b) and its rounding error, (b,) each."""
    vectors = vectors.detach()
    value = (vectors * system.preconditioner.solve(vectors)).sum(0)
    return value, ROUNDING * vectors.square().sum(0) / system.noise


def explained_by_neighbours(
    system: PreconditionedKernel, image: Tensor, rest: Tensor, neighbours: int
) -> Tensor:
    """Variance of f that data near each test point explain beyond a projection; (b,), not negative.

    Given the functionals S^T y, observations i and j have covariance K_ij - w_i^T w_j (K with the
    noise) and f(x_*) has covariance r_i with observation i. The data of largest |r_i| explain
    r_N^T (K_NN - W_N W_N^T)^{-1} r_N more. Since this conditions on a subset of the data, the
    variance remains an upper bound of the exact one.

    Args:
        system: K.
        image (n, t): W = K S L^{-T} with L L^T = S^T K S.
        rest (n, b): r = k_* - W L^{-1} S^T k_*.
        neighbours: number of data per test point, k.

    Cost: k^2 (t + d) + k^3 / 3 operations per test point; n b to find them.
    Source: conditioning in two steps; full-scale approximations (Sang and Huang 2012) join a low
    rank and a local part likewise.
    """
    count = min(neighbours, rest.shape[0])
    chosen = rest.mT.abs().topk(count, dim=1, sorted=False).indices  # (b, k)
    inputs, width = system.x, max(image.shape[1] + count, count * system.x.shape[1])
    least = system.noise * (1.0 + NEIGHBOUR_ROUNDING * system.rounding)
    found = rest.new_zeros(rest.shape[1])
    for points in row_slices(rest.shape[1], max(1, BLOCK_BYTES // (8 * count * width))):
        rows = chosen[points]
        left = inputs[rows].unsqueeze(2).expand(-1, -1, count, -1)
        right = inputs[rows].unsqueeze(1).expand(-1, count, -1, -1)
        flat = system.kernel.pairs(left.flatten(0, 2), right.flatten(0, 2))
        inner = flat.view(len(rows), count, count)
        near = image[rows]
        inner = torch.baddbmm(inner, near, near.mT, alpha=-1.0)
        inner.diagonal(dim1=1, dim2=2).add_(least)
        factor, failed = torch.linalg.cholesky_ex(inner)
        gap = rest.mT[points].gather(1, rows).unsqueeze(2)
        white = torch.linalg.solve_triangular(factor, gap, upper=False)
        # zero where the factorisation fails by rounding: the bound still holds
        found[points] = torch.where(failed == 0, white.square().sum((1, 2)), 0.0)
    return found


class Projection:
    """Galerkin rule k_** - k_*^T S (S^T K S)^{-1} S^T k_*, an upper bound with a certificate.

    With r = k_* - K S (S^T K S)^{-1} S^T k_* the exact variance is lower by r^T K^{-1} r <=
    r^T Q^{-1} r, whose error is quadratic in that of the projection.

    Args:
        system: K and Q.
        basis (n, t): S, of full column rank; orthonormalised here.
        neighbours: data near each test point to condition on as well (``explained_by_neighbours``),
            which lowers the variance towards the exact one; the certified lower end stays.

    Cost: build one product of t columns and 2 n t^2; n (4 t + 4 m) operations per test point, and
    those of its neighbours; memory 2 n t.
    Source: Burt thesis, section 4.4.2; the space is cached as in Pleiss et al. 2018.
    """

    def __init__(self, system: PreconditionedKernel, basis: Tensor, neighbours: int = 0) -> None:
        self.system = system
        self.neighbours = neighbours
        self.basis, _ = torch.linalg.qr(basis)
        self.image = system.matmul(self.basis)
        inner = self.basis.mT @ self.image
        self.factor, _ = cholesky(0.5 * (inner + inner.mT), name="S^T K S of a variance cache")
        self.white: Tensor | None = None
        if neighbours:
            self.white = torch.linalg.solve_triangular(self.factor, self.image.mT, upper=False).mT

    def __call__(self, cross: Tensor, prior: Tensor) -> Variance:
        """Apply the rule; see the module."""
        low = self.basis.mT @ cross
        weights = torch.cholesky_solve(low, self.factor)
        rest = cross - self.image @ weights
        gap, rounding = _quadratic(self.system, rest)
        # S^T r = 0 up to rounding, which enters this form only to second order
        explained = (weights * (low + self.basis.mT @ rest)).sum(0)
        gap = gap + rounding
        if self.white is not None:
            more = explained_by_neighbours(self.system, self.white, rest, self.neighbours)
            explained, gap = explained + more, (gap - more.detach()).clamp_(min=0.0)
        return Variance(prior - explained, gap)


def krylov_basis(system: PreconditionedKernel, size: int, rank: int | None = None) -> Tensor:
    """A basis (n, t) of the span of ``rank`` greedy points and about ``size`` Krylov vectors.

    Lanczos processes of Q^{-1/2} K Q^{-1/2} start at the average covariance vector and at those of
    evenly spaced training points, and share their products.
    """
    columns = [system.factor[:rank].mT]
    if size:
        n = system.x.shape[0]
        starts = min(STARTS_PER_STEP, size, n)
        # float32 would round a place among more than 2^24 rows to one past the last
        places = torch.linspace(0, n - 1, starts, dtype=torch.float64, device=system.x.device)
        rows = places.long()[1:]
        average = system.matmul(system.x.new_ones(n, 1) / n)
        vectors = torch.cat([average, system.kernel.evaluate(system.x, system.x[rows])], 1)
        # a linear kernel is zero between all rows and one at the origin, where nothing starts
        vectors = vectors[:, torch.linalg.vector_norm(vectors, dim=0) > 0.0]
        root = system.preconditioner.inverse_root_matmul
        process = Lanczos(system.whitened, root(vectors), max(1, size // starts))
        process.extend(max(1, size // starts))
        found = process.basis.reshape(-1, n)
        columns.append(root(found[torch.linalg.vector_norm(found, dim=1) > 0.5].mT))
    basis = torch.cat(columns, 1)
    basis = basis / torch.linalg.vector_norm(basis, dim=0)
    # linearly dependent directions would make S^T K S singular
    values, modes = torch.linalg.eigh(basis.mT @ basis)
    keep = values > 1e-10 * values[-1]
    return basis @ (modes[:, keep] / values[keep].sqrt())


def projection_rule(system: PreconditionedKernel, options: IterativeOptions) -> VarianceRule:
    """Cached projection on the greedy points and ``variance_steps`` Krylov vectors ("lanczos")."""
    basis = krylov_basis(system, options.variance_steps, options.variance_rank)
    return Projection(system, basis, options.variance_neighbours)


def solve_rule(system: PreconditionedKernel, options: IterativeOptions) -> VarianceRule:
    """A preconditioned CG solve per test point, to ``tolerance`` noise variances ("exact").

    An error e of K^{-1} k_* enters the variance as e^T K e, but its derivatives as e: where these
    are wanted, solves go on to ``tolerance`` squared.

    Cost: a product of b columns per step. Source: Burt thesis, section 4.4.2.
    """
    noise = float(system.noise)

    def rule(cross: Tensor, prior: Tensor) -> Variance:
        power = 2 if cross.requires_grad else 1
        stop = EvidenceBound(0.5 * options.tolerance**power * noise)
        found = conjugate_gradients(
            system.matmul,
            cross.detach(),
            preconditioner=system.preconditioner,
            stop=stop,
            max_iterations=options.max_iterations,
            product_dtype=system.product_dtype,
            on_failure="warn",
        )
        explained = _explained(cross, found.solution)
        explained = explained + (found.solution * found.residual).sum(0)
        gap, rounding = _quadratic(system, found.residual)
        return Variance(prior - explained, gap + rounding)

    return rule


def subset_rule(system: PreconditionedKernel, options: IterativeOptions) -> VarianceRule:
    """Condition on the greedy points alone ("subset"): m^2 + n m per test point.

    Source: Burt thesis, sections 2.4.1 (bound of Davies) and 4.4.2.
    """
    pivots = system.pivots
    lower = system.factor[:, pivots].mT
    inner = lower @ lower.mT
    inner.diagonal().add_(system.noise)
    factor, _ = cholesky(inner, name="K_zz + noise of the greedy points")
    others = torch.ones(system.x.shape[0], dtype=torch.bool, device=system.x.device)
    others[pivots] = False
    outside = system.factor[:, others]

    magnitudes = lower.abs()
    unit = ROUNDING * len(pivots) ** 0.5

    def rule(cross: Tensor, prior: Tensor) -> Variance:
        near = cross[pivots]
        weights = torch.cholesky_solve(near, factor)
        # K_xz = C^T L^T
        rest = cross[others] - outside.mT @ (lower.mT @ weights)
        # of the sum below, and of L L^T and its factor, which are wrong by some units of |L| |L|^T
        apart = weights.detach().abs()
        entries = (near.detach().abs() * apart).sum(0) + (magnitudes.mT @ apart).square().sum(0)
        rounding = unit * (entries + prior.detach())
        variance = prior - (near * weights).sum(0) + rounding
        gap = rest.detach().square().sum(0) / system.noise + 2.0 * rounding
        return Variance(variance, torch.minimum(gap, variance.detach().clamp(min=0.0)))

    return rule


def collapsed_rule(system: PreconditionedKernel, options: IterativeOptions) -> VarianceRule:
    """Variance of the collapsed sparse posterior at the greedy points ("sgpr"); no certificate.

    Source: Burt thesis, section 4.4.2.
    """
    lower = system.factor[:, system.pivots].mT
    inner = system.factor @ system.factor.mT / system.noise
    inner.diagonal().add_(1.0)
    factor, _ = cholesky(inner, name="I + A A^T of the greedy points")

    def rule(cross: Tensor, prior: Tensor) -> Variance:
        white = torch.linalg.solve_triangular(lower, cross[system.pivots], upper=False)
        inside = torch.linalg.solve_triangular(factor, white, upper=False)
        variance = prior - white.square().sum(0) + inside.square().sum(0)
        return Variance(variance, torch.full_like(variance, torch.nan))

    return rule


def sandwich_rule(system: PreconditionedKernel, options: IterativeOptions) -> VarianceRule:
    """Upper end of Q <= K <= Q + T I, and the lower end as its certificate ("nystrom").

    Source: Burt thesis, sections 2.4.1 and 4.4.2.
    """
    above = LowRankPlusNoise(system.factor, system.noise + system.trace_error)

    def rule(cross: Tensor, prior: Tensor) -> Variance:
        upper = prior - _explained(cross, above.solve(cross.detach()))
        explained, rounding = _quadratic(system, cross)
        lower = prior.detach() - explained
        # where rounding swaps the two, the derivative is still that of the upper end
        upper = upper + (lower - upper.detach()).clamp(min=0.0) + rounding
        lower = lower - rounding
        return Variance(upper, upper.detach() - lower.clamp(min=0.0))

    return rule


RULES: dict[str, Callable[[PreconditionedKernel, IterativeOptions], VarianceRule]] = {
    "lanczos": projection_rule,
    "exact": solve_rule,
    "subset": subset_rule,
    "sgpr": collapsed_rule,
    "nystrom": sandwich_rule,
}
