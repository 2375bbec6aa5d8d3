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
from gpx.inference.nystrom import BlockStore, factorise
from gpx.inference.nystrom_matrix import InnerFactor
from gpx.inference.padded_rows import batch_bytes
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import training_noise
from gpx.linalg import CholeskyReport, budget_in_bytes
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.sparse.block_batches import WASTE, Batches, block_batches
from gpx.methods.sparse.collapsed_elbo import (
    log_density_noise_gradient,
    nystrom_gradient,
    row_noise_gradient,
)
from gpx.methods.sparse.residual_noise import NOISE, EffectiveSums, Structure, effective_sums
from gpx.methods.sparse.unit_noise import rows_of_one_noise

CPU_BATCH = 2**20
"""Bytes of the matrices of several blocks taken together on a CPU: larger blocks have no overhead
to hide, and padding costs time."""

BLOCK_ARRAYS = 6
"""Arrays of b x b that a block of b rows takes at once, with the derivative of its kernel."""


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
    B^{-1} A D^{-1} r, G the part of S^{-1} - p p^T where D follows K - Q (its diagonal, or its
    diagonal blocks) and C = D^{-1} - G:

        d/dA^T  = D^{-1} A^T (I - B^{-1}) - C A^T + p beta^T   =: W
        d/dK_xz = W L^{-1}
        d/dK_zz = -L^{-T} (W^T A^T) L^{-1} / 2
        d/dK_xx = -G / 2
        d/ds    = -tr(S^{-1} - p p^T) / 2
        W^T A^T = (I - B^{-1}) A D^{-1} A^T - A C A^T + beta beta^T

    Points whose k(x_n, x_n) - [Q_xx]_nn was clamped to zero have no part in G.

    Args:
        x (n, d), z (M, d), residual (n,): inputs, inducing inputs, y - m(x).
        noise () or (n,): noise variance of all rows or of each.
        structure: of D - s I; "blocks" needs ``bounds``, and rows in the order of blocks.
        gradient: whether to make the second pass over the data.
        bounds: 0, the row after each block, ..., n.
        batch_room: numbers that the matrices of several blocks taken together may have.
        memory_budget: bytes of A, and then of D, kept between the passes; what does not fit is
            computed twice.
        jitter, features: see ``factorise``.

    Exactness: exact for the effective prior, and no bound on the evidence of the kernel's own.
    Cost: without residual 2 n M^2 multiply-adds with the gradient, diagonal 3 n M^2, blocks of b
    rows 3 n M^2 + 5 n b M + 2 n b^2; where A is computed twice half a n M^2 more. Memory O(M^2 +
    block) beside the data and the budget; blocks take b^2 as well.
    Raises: NotPositiveDefinite.
    Source: Snelson and Ghahramani (2006, 2007), Quinonero-Candela and Rasmussen (2005); the
    gradient is derived from them.
    """
    with torch.no_grad():
        gathered = KernelGradient(kernel, x, z, features) if gradient else None
        gram = None if gathered is None else gathered.hold_inducing()
        whitener, report = factorise(kernel, z, jitter, features=features, gram=gram)
        kept = memory_budget if gradient else 0
        s, n, target = noise.detach().double(), len(x), residual.detach()
        scale = None
        if structure == "none":  # elsewhere the noise of each row is a part of D
            scale, target, _ = rows_of_one_noise(s, target)
        batches, own_bounds = [], None
        if structure == "blocks" and bounds is not None:
            batches = block_batches(kernel, bounds, batch_room, x.device)
            own_bounds = [0, *(end for end, _ in batches)]
        store = BlockStore(whitener, x, kept, bounds=own_bounds, scale=scale)
        if gathered is not None:
            store.hold(gathered.hold_cross, memory_budget)
        held = _numbers_of_parts(len(x), bounds if batches else None) * store.dtype.itemsize
        keep = gradient and held <= memory_budget - store.kept_bytes
        found = effective_sums(store, target, s, structure, batches=batches, keep_parts=keep)
        inner = found.inner()
        sums = found.sums
        terms = LogDensityTerms(
            fit=0.5
            * (torch.dot(sums.projected, inner.weights) - sums.squared_residual)
            / found.scale,
            complexity=-inner.factor.diagonal().log().sum() - 0.5 * found.logdet,
            constant=s.new_tensor(-0.5 * n * LOG_TWO_PI),
        )
        if gathered is None:
            return terms, None, report
        if structure == "none":
            zero = s.new_zeros(())
            by_residual = nystrom_gradient(
                gathered, target, store, sums, inner, found.scale, zero, report.relative
            )
            by_noise = (
                row_noise_gradient(store, target, by_residual, sums, inner, trace_weight=0.0)
                if s.ndim
                else log_density_noise_gradient(sums, inner, s, n)
            )
        else:
            by_residual, by_noise = _gradient(
                gathered, target, s, structure, store, batches, found, inner, report.relative
            )
    return terms, LogDensityGradient(by_residual, by_noise, gathered), report


def _numbers_of_parts(n: int, bounds: Sequence[int] | None) -> float:
    """That D of all n rows takes; where blocks are padded, at most."""
    return 3 * n if bounds is None else WASTE * sum((b - a) ** 2 for a, b in pairwise(bounds))


def _gradient(
    gathered: KernelGradient,
    residual: Tensor,
    s: Tensor,
    structure: Structure,
    store: BlockStore,
    batches: Batches,
    found: EffectiveSums,
    inner: InnerFactor,
    jitter: float,
) -> tuple[Tensor, Tensor]:
    """The second pass: by the residual (n,) and by the noise, shaped as it is; by the kernel to
    ``gathered``."""
    factor, beta, m = store.whitener.factor, inner.weights, len(inner.weights)
    upper, low_mean = factor.mT.to(store.dtype), beta.to(store.dtype)
    complement = inner.complement
    low_complement = complement.to(store.dtype)
    by_residual, by_noise = torch.empty_like(residual), s.new_empty(len(residual))
    mean_to_cross = torch.linalg.solve_triangular(upper, low_mean.unsqueeze(1), upper=True)
    moment = torch.zeros_like(factor)
    partial = moment if store.dtype == moment.dtype else torch.zeros_like(moment, dtype=store.dtype)
    for number, (rows, block) in enumerate(store):
        known = found.parts[number] if found.parts else None
        own_noise = s[rows] if s.ndim else s
        batch = batches[number][1] if batches else None
        part = NOISE[structure](store, rows, block, own_noise, batch) if known is None else known
        gap = residual[rows].to(store.dtype) - block @ low_mean
        weights = part.solve(gap.unsqueeze(1)).squeeze(1)
        by_residual[rows] = -weights.to(residual.dtype)
        weight, own = part.gradient(rows, block, low_complement, weights, gathered, partial)
        by_noise[rows] = -0.5 * own
        if partial is not moment:
            moment += partial
            partial.zero_()
        column = weight.mT  # LAPACK's layout: solved in place, without a copy
        torch.linalg.solve_triangular(upper, column, upper=True, out=column)
        weight.addr_(weights, mean_to_cross.squeeze(1))
        gathered.add_cross(rows, weight.to(residual.dtype))
    moment = -moment.tril() - moment.tril(-1).mT
    moment += complement @ found.sums.gram + torch.outer(beta, beta)
    low = torch.linalg.solve_triangular(factor.mT, moment, upper=True)
    inducing = -0.5 * torch.linalg.solve_triangular(factor, low, upper=False, left=False)
    inducing = 0.5 * (inducing + inducing.mT)
    gathered.add_inducing(inducing.to(residual.dtype))
    if jitter:  # it follows the mean diagonal of K_zz
        share = (inducing.trace() * jitter / m).to(residual.dtype)
        gathered.add_inducing_diagonal(share.expand(m))
    return by_residual, by_noise if s.ndim else by_noise.sum()


@runtime_checkable
class EffectiveModel(Protocol):
    """What the evidence of an effective prior asks of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    inducing_points: nn.Parameter
    features: InducingFeatures
    jitter: float | None
    structure: Structure

    def block_order(self, x: Tensor, *, largest_first: bool = False) -> tuple[Tensor, list[int]]:
        """Order (n,) of x (n, d) by blocks, and where blocks begin and end in it."""


class EffectiveEvidence(Objective[EffectiveModel]):
    """Evidence of ``EffectivePrior``: exact for its prior, hence an estimate for the kernel's.

    Args:
        memory_budget: bytes of the whitened cross-covariance A (n M numbers) that may be kept
            between the two passes over the data; the rest is computed twice. One block of PITC or
            PIC must fit as well.

    Cost and source: ``effective_evidence``.
    """

    batching = "full"
    takes_row_noise = True
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
            ConfigError: a block that does not fit the memory budget.
        """
        self.check(model)
        residual, bounds, budget, batch = y - model.mean(x), None, self.memory_budget, 0
        if model.structure == "blocks":
            order, bounds = model.block_order(x, largest_first=True)
            x, residual = x[order], residual[order]
            batch = CPU_BATCH if x.device.type == "cpu" else batch_bytes(x.device)
            batch = min(batch, budget // (2 * BLOCK_ARRAYS))
            budget -= max(self._block_memory(bounds, x), BLOCK_ARRAYS * batch)
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
        """Bytes of the largest block."""
        largest = max(stop - start for start, stop in pairwise(bounds))
        needed = BLOCK_ARRAYS * largest**2 * x.element_size()
        if needed > self.memory_budget:
            raise ConfigError(
                f"the largest block has {largest} of {len(x)} training points and needs "
                f"{needed / 2**20:.0f} MiB, more than the memory budget of "
                f"{self.memory_budget / 2**20:.0f} MiB; ask for more blocks"
            )
        return needed
