"""Evidence of effective priors, streamed over the data: SoR, DTC, FITC, FIC, PITC, PIC."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gpx.constants import LOG_TWO_PI
from gpx.constraints import cached_parameters
from gpx.errors import ConfigError
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityGradient, LogDensityTerms
from gpx.inference.nystrom import BlockStore, GramSum, factorise
from gpx.inference.nystrom_matrix import InnerFactor
from gpx.inference.padded_rows import batch_bytes
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import training_noise
from gpx.linalg import CholeskyReport, budget_in_bytes
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.sparse.block_batches import MAX_PADDING_RATIO, Batches, block_batches
from gpx.methods.sparse.collapsed_elbo import (
    log_density_noise_gradient,
    nystrom_gradient,
    row_noise_gradient,
)
from gpx.methods.sparse.residual_noise import (
    RESIDUAL_NOISE,
    EffectiveSums,
    Structure,
    effective_sums,
)
from gpx.methods.sparse.unit_noise import scale_to_common_noise

CPU_BATCH_BYTES = 2**20
"""Bytes of the matrices of blocks batched on a CPU; for larger blocks batching does not pay."""

ARRAYS_PER_BLOCK = 6
"""Arrays of b x b that a block of b rows needs at a time, with the derivative of its kernel."""


def effective_evidence(
    kernel: Kernel,
    x: Tensor,
    z: Tensor,
    residual: Tensor,
    noise: Tensor,
    structure: Structure,
    *,
    gradient: bool,
    bounds: Sequence[int] | None = None,
    batch_room: int = 0,
    memory_budget: int = 2**30,
    jitter: float | None = None,
    features: InducingFeatures = POINTS,
) -> tuple[LogDensityTerms, LogDensityGradient | None, CholeskyReport]:
    """log N(r; 0, S) with S = Q_xx + D, and its gradient.

    With A = L^{-1} K_zx, B = I + A D^{-1} A^T, p = S^{-1} r = D^{-1} (r - A^T beta), beta =
    B^{-1} A D^{-1} r, G the entries of S^{-1} - p p^T where D depends on K - Q (the diagonal, or
    the diagonal blocks) and C = D^{-1} - G:

        d/dA^T  = D^{-1} A^T (I - B^{-1}) - C A^T + p beta^T   =: W
        d/dK_xz = W L^{-1}
        d/dK_zz = -L^{-T} (W^T A^T) L^{-1} / 2
        d/dK_xx = -G / 2
        d/ds    = -tr(S^{-1} - p p^T) / 2
        W^T A^T = (I - B^{-1}) A D^{-1} A^T - A C A^T + beta beta^T

    Points whose k(x_n, x_n) - [Q_xx]_nn was clamped to zero have zero in G.

    Args:
        x (n, d), z (M, d), residual (n,): inputs, inducing inputs, y - m(x).
        noise () or (n,): noise variance of all rows or of each.
        structure: of D - s I; "blocks" needs ``bounds``, and rows in the order of blocks.
        gradient: whether to make the second pass over the data.
        bounds: 0, the row after each block, ..., n.
        batch_room: most entries of the matrices of blocks that are batched.
        memory_budget: bytes of A, and then of D, kept between the passes; the rest is computed
            twice.
        jitter, features: see ``factorise``.

    Exactness: exact for the effective prior; no bound on the evidence of the kernel itself.
    Cost: without residual 2 n M^2 multiply-adds with the gradient, diagonal 3 n M^2, blocks of b
    rows 3 n M^2 + 5 n b M + 2 n b^2; half a n M^2 more if A is computed twice. Memory O(M^2 +
    block) beside the data and the budget, and b^2 for blocks.
    Raises: NotPositiveDefinite.
    Source: Snelson and Ghahramani (2006, 2007), Quinonero-Candela and Rasmussen (2005); the
    gradient is derived from them.
    """
    with torch.no_grad():
        kernel_gradient = KernelGradient(kernel, x, z, features) if gradient else None
        gram = None if kernel_gradient is None else kernel_gradient.hold_inducing()
        whitener, report = factorise(kernel, z, jitter, features=features, gram=gram)
        kept = memory_budget if gradient else 0
        s, n, target = noise.detach().double(), len(x), residual.detach()
        scale = None
        if structure == "none":  # otherwise the noise of each row is part of D
            scale, target, _ = scale_to_common_noise(s, target)
        batches, own_bounds = [], None
        if structure == "blocks" and bounds is not None:
            batches = block_batches(kernel, bounds, batch_room, x.device)
            own_bounds = [0, *(end for end, _ in batches)]
        store = BlockStore(whitener, x, kept, bounds=own_bounds, scale=scale)
        if kernel_gradient is not None:
            store.hold(kernel_gradient.hold_cross, memory_budget)
        held = _size_of_parts(len(x), bounds if batches else None) * store.dtype.itemsize
        keep = gradient and held <= memory_budget - store.kept_bytes
        found = effective_sums(store, target, s, structure, batches=batches, keep_parts=keep)
        inner = found.inner()
        sums = found.sums
        terms = LogDensityTerms(
            fit=0.5
            * (torch.dot(sums.projected, inner.weights) - sums.squared_residual)
            / found.scale,
            complexity=-inner.factor.diagonal().log().sum() - 0.5 * found.logdet,
            constant=s.new_full((), -0.5 * n * LOG_TWO_PI),
        )
        if kernel_gradient is None:
            return terms, None, report
        if structure == "none":
            zero = s.new_zeros(())
            by_residual = nystrom_gradient(
                kernel_gradient, target, store, sums, inner, found.scale, zero, report.relative
            )
            by_noise = (
                row_noise_gradient(store, target, by_residual, sums, inner, trace_weight=0.0)
                if s.ndim
                else log_density_noise_gradient(sums, inner, s, n)
            )
        else:
            by_residual, by_noise = _gradient(
                kernel_gradient, target, s, structure, store, batches, found, inner, report.relative
            )
    return terms, LogDensityGradient(by_residual, by_noise, kernel_gradient), report


def _size_of_parts(n: int, bounds: Sequence[int] | None) -> float:
    """Number of entries of D of all n rows (with padded blocks an upper bound)."""
    return (
        3 * n
        if bounds is None
        else MAX_PADDING_RATIO * sum((b - a) ** 2 for a, b in pairwise(bounds))
    )


def _gradient(
    kernel_gradient: KernelGradient,
    residual: Tensor,
    s: Tensor,
    structure: Structure,
    store: BlockStore,
    batches: Batches,
    found: EffectiveSums,
    inner: InnerFactor,
    jitter: float,
) -> tuple[Tensor, Tensor]:
    """The second pass: the gradient with respect to residual (n,) and noise (shaped as s).

    That of kernel and inputs is added to ``kernel_gradient``.
    """
    factor, beta, m = store.whitener.factor, inner.weights, len(inner.weights)
    upper, low_mean = factor.mT.to(store.dtype), beta.to(store.dtype)
    complement = inner.complement
    low_complement = complement.to(store.dtype)
    by_residual, by_noise = torch.empty_like(residual), s.new_empty(len(residual))
    mean_to_cross = torch.linalg.solve_triangular(upper, low_mean.unsqueeze(1), upper=True)
    aca = GramSum(torch.zeros_like(factor), store.dtype)
    for number, (rows, block) in enumerate(store):
        known = found.parts[number] if found.parts else None
        own_noise = s[rows] if s.ndim else s
        batch = batches[number][1] if batches else None
        part = (
            RESIDUAL_NOISE[structure](store, rows, block, own_noise, batch)
            if known is None
            else known
        )
        gap = residual[rows].to(store.dtype) - block @ low_mean
        weights = part.solve(gap.unsqueeze(1)).squeeze(1)
        by_residual[rows] = -weights.to(residual.dtype)
        weight, own = part.gradient(rows, block, low_complement, weights, kernel_gradient, aca)
        by_noise[rows] = -0.5 * own
        column = weight.mT  # in LAPACK's layout, so it is solved in place
        torch.linalg.solve_triangular(upper, column, upper=True, out=column)
        weight.addr_(weights, mean_to_cross.squeeze(1))
        kernel_gradient.add_cross(rows, weight.to(residual.dtype))
    moment = complement @ found.sums.gram + torch.outer(beta, beta) - aca.matrix()
    low = torch.linalg.solve_triangular(factor.mT, moment, upper=True)
    inducing = -0.5 * torch.linalg.solve_triangular(factor, low, upper=False, left=False)
    inducing = 0.5 * (inducing + inducing.mT)
    kernel_gradient.add_inducing(inducing.to(residual.dtype))
    if jitter:  # relative to the mean diagonal of K_zz
        share = (inducing.trace() * jitter / m).to(residual.dtype)
        kernel_gradient.add_inducing_diagonal(share.expand(m))
    return by_residual, by_noise if s.ndim else by_noise.sum()


@runtime_checkable
class EffectiveModel(Protocol):
    """What ``EffectiveEvidence`` needs of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    inducing_points: nn.Parameter
    features: InducingFeatures
    jitter: float | None
    structure: Structure

    def block_order(self, x: Tensor, *, largest_first: bool = False) -> tuple[Tensor, list[int]]:
        """Order (n,) of x (n, d) by blocks, and the block bounds."""


class EffectiveEvidence(Objective[EffectiveModel]):
    """Evidence of ``EffectivePrior``: exact for its prior, an estimate for that of the kernel.

    Args:
        memory_budget: bytes of the whitened cross-covariance A (n M numbers) that are kept between
            the two passes over the data; the rest is computed twice. The largest block of PITC or
            PIC must fit.

    Cost and source: ``effective_evidence``.
    """

    batching = "full"
    takes_row_noise = True
    fixed_shapes = True
    kind = "estimate"
    models = (EffectiveModel,)
    made_for = "EffectivePrior"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def __init__(self, memory_budget: int | str | None = None) -> None:
        super().__init__()
        self.memory_budget = budget_in_bytes(memory_budget)

    def evidence(
        self,
        model: EffectiveModel,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Evidence in nats, in float64; parts are those of ``LogDensityTerms``.

        Raises:
            ConfigError: a block does not fit into the memory budget.
        """
        residual, bounds, budget, batch = y - model.mean(x), None, self.memory_budget, 0
        if model.structure == "blocks":
            order, bounds = model.block_order(x, largest_first=True)
            x, residual = x[order], residual[order]
            batch = CPU_BATCH_BYTES if x.device.type == "cpu" else batch_bytes(x.device)
            batch = min(batch, budget // (2 * ARRAYS_PER_BLOCK))
            budget -= max(self._block_memory(bounds, x), ARRAYS_PER_BLOCK * batch)
        noise = training_noise(model, residual)
        with cached_parameters(x.device, model.kernel):
            terms, gradient, report = effective_evidence(
                model.kernel,
                x,
                model.inducing_points,
                residual,
                noise,
                model.structure,
                gradient=torch.is_grad_enabled(),
                bounds=bounds,
                batch_room=batch // x.element_size(),
                memory_budget=budget,
                jitter=model.jitter,
                features=model.features,
            )
        value = terms.total()
        if gradient is not None:
            value = gradient.attached(value, residual, noise)
        facts: Facts = {"jitter": report.relative}
        return Evidence(value, self.kind, terms._asdict(), report, facts)

    def _block_memory(self, bounds: list[int], x: Tensor) -> int:
        """Bytes needed by the largest block."""
        largest = max(stop - start for start, stop in pairwise(bounds))
        needed = ARRAYS_PER_BLOCK * largest**2 * x.element_size()
        if needed > self.memory_budget:
            raise ConfigError(
                f"the largest block has {largest} of {len(x)} training points and needs "
                f"{needed / 2**20:.0f} MiB, more than the memory budget of "
                f"{self.memory_budget / 2**20:.0f} MiB; ask for more blocks"
            )
        return needed
