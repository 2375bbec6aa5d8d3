"""Collapsed evidence lower bound of sparse Gaussian process regression, streamed over the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gpx.constants import LOG_TWO_PI
from gpx.constraints import cached_parameters
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityGradient
from gpx.inference.nystrom import BlockStore, NystromSums, factorise, nystrom_sums
from gpx.inference.nystrom_matrix import InnerFactor
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import training_noise
from gpx.linalg import CholeskyReport, budget_in_bytes
from gpx.linalg.cholesky import noted_checks
from gpx.linalg.processes import ALONE, sharing
from gpx.linalg.triangular import inverse_lower
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.sparse.unit_noise import scale_to_common_noise


class CollapsedTerms(NamedTuple):
    """Terms of the collapsed bound, or of the conjugate gradient bound (CG), in nats.

    Attributes:
        fit: -r^T Q^{-1} r / 2. CG: -(r^T Q^{-1} r + v^T (y + r)) / 2 with r = y - K v.
        complexity: -log det(Q / noise) / 2.
        trace: -T / (2 noise), the penalty for variance that the inducing points do not explain. CG:
            minus half of an upper bound of log det K - log det Q.
        constant: -n log(2 pi noise) / 2.
    """

    fit: Tensor
    complexity: Tensor
    trace: Tensor
    constant: Tensor

    def total(self) -> Tensor:
        """The bound."""
        return self.fit + self.complexity + self.trace + self.constant


def collapsed_elbo(
    kernel: Kernel,
    x: Tensor,
    z: Tensor,
    residual: Tensor,
    noise: Tensor,
    *,
    gradient: bool,
    memory_budget: int = 2**30,
    jitter: float | None = None,
    escalate: bool = True,
    features: InducingFeatures = POINTS,
) -> tuple[CollapsedTerms, LogDensityGradient | None, CholeskyReport]:
    """Titsias's bound log N(r; 0, Q) - T / (2 noise), Q = Q_xx + noise I, and its gradient.

    With A = L^{-1} K_zx, s the noise variance, B = I + A A^T / s and beta = B^{-1} A r / s:

        d/dA    = ((I - B^{-1} - beta beta^T) A + beta r^T) / s   =: W
        d/dK_zx = L^{-T} W
        d/dK_zz = -L^{-T} W A^T L^{-1} / 2
        W A^T   = (I - B^{-1}) A A^T / s + beta beta^T            (symmetric)

    so one pass over blocks of data gives the value, and a second one contracts the weights of each
    block with the kernel's derivative. Rows whose t_n was clamped to zero have no A / s in W.

    With a noise variance for each row, D = diag(s_n): the same for A D^{-1/2} and D^{-1/2} r with
    s = 1, minus log det D / 2; the trace term is -sum_n t_n / (2 s_n).

    Args:
        x (n, d), z (M, d), residual (n,): inputs, inducing inputs, y - m(x).
        noise () or (n,): noise variance of all rows or of each.
        gradient: whether to make the second pass.
        memory_budget: bytes of A kept between the passes; the rest of A is computed twice.
        jitter, escalate, features: see ``factorise``.

    Exactness: lower bound on the log marginal likelihood, also with jitter.
    Cost: 2 n M^2 multiply-adds with the gradient (2.5 where A is computed twice); memory
    O(M^2 + block) beside the data, the residuals and the budget.
    Raises: NotPositiveDefinite.
    Source: Burt thesis, sections 2.3 and 2.6.1; the gradient is derived from it.
    """
    # inputs that require a gradient come from another layer, and are not split over processes
    processes = ALONE if x.requires_grad else sharing()
    n, part = x.shape[0], processes.part(x.shape[0])
    x, own_residual = x[part], residual.detach()[part]
    with torch.no_grad():
        s = noise.detach().double()
        logs = s.log() + LOG_TWO_PI
        constant = -0.5 * logs.sum() if s.ndim else -0.5 * n * logs
        scale, own_residual, s = scale_to_common_noise(s[part] if s.ndim else s, own_residual)
        kernel_gradient = KernelGradient(kernel, x, z, features, processes) if gradient else None
        gram = None if kernel_gradient is None else kernel_gradient.hold_inducing()
        whitener, report = factorise(
            kernel, z, jitter, escalate=escalate, features=features, gram=gram
        )
        store = BlockStore(whitener, x, memory_budget if gradient else 0, scale=scale)
        if kernel_gradient is not None:
            store.hold(kernel_gradient.hold_cross, memory_budget)
        sums = nystrom_sums(store, own_residual).summed_over(processes)
        inner = InnerFactor(sums, s)
        terms = _terms(sums, inner, s, constant)
        if kernel_gradient is None:
            return terms, None, report
        own_gradient = nystrom_gradient(
            kernel_gradient, own_residual, store, sums, inner, s, None, report.relative
        )
        residual_gradient = processes.all_gather(own_gradient, n)
        if scale is None:
            noise_gradient = log_density_noise_gradient(sums, inner, s, n, sums.trace_error)
        else:
            by_row = row_noise_gradient(store, own_residual, own_gradient, sums, inner)
            noise_gradient = processes.all_gather(by_row, n)
    return terms, LogDensityGradient(residual_gradient, noise_gradient, kernel_gradient), report


def _terms(sums: NystromSums, inner: InnerFactor, s: Tensor, constant: Tensor) -> CollapsedTerms:
    minus_half = -0.5 / s
    return CollapsedTerms(
        fit=(sums.squared_residual - torch.dot(sums.projected, inner.weights)) * minus_half,
        complexity=-inner.factor.diagonal().log().sum(),
        trace=sums.trace_error * minus_half,
        constant=constant,
    )


def log_density_noise_gradient(
    sums: NystromSums, inner: InnerFactor, s: Tensor, n: int, trace_error: Tensor | None = None
) -> Tensor:
    """d / d s of log N(r; 0, Q_xx + s I) - T / (2 s); without ``trace_error`` T = 0."""
    beta = inner.weights
    # tr(B^{-1} A A^T) / s = tr(I - B^{-1})
    effective = inner.complement.trace()
    fit = sums.squared_residual - torch.dot(sums.projected, beta)
    if trace_error is not None:
        fit = fit + trace_error
    return 0.5 * (fit / s - torch.dot(beta, beta) + effective - n) / s


def row_noise_gradient(
    store: BlockStore,
    residual: Tensor,
    residual_gradient: Tensor,
    sums: NystromSums,
    inner: InnerFactor,
    trace_weight: float = 1.0,
) -> Tensor:
    """d / d s_n of log N(r; 0, Q_xx + D) - w T / 2, D = diag(s_n), T = sum_n t_n / s_n: (n,).

    In scaled rows a~_n = a_n / sqrt(s_n), r~_n = r_n / sqrt(s_n), with W~ as in ``collapsed_elbo``
    and g = d / dr, it is -(W~_n . a~_n + g_n r_n + 1 - w k_nn / s_n) / (2 s_n), without the trace
    term for clamped rows.

    Args:
        store: of the first pass, with a scale, 1 / sqrt(s_n).
        residual (n,): r~.
        residual_gradient (n,): g, what ``nystrom_gradient`` returned.
        sums, inner: of the first pass, s = 1.
        trace_weight: w, 1 for the collapsed bound and 0 for the density alone.

    Cost: n M^2 multiply-adds.
    """
    assert store.scale is not None
    beta, scale = inner.weights, store.scale.double()
    weighted = torch.addr(inner.complement, beta, beta, alpha=-1.0)
    weighted.diagonal().add_(trace_weight - 1.0)
    weighted, beta = weighted.to(store.dtype), beta.to(store.dtype)
    found = torch.empty(len(residual), dtype=torch.float64, device=residual.device)
    for rows, block in store:
        target, unclamped = residual[rows].to(store.dtype), ~sums.clamped[rows]
        explained = torch.linalg.vecdot(block, block)
        part = torch.linalg.vecdot(block @ weighted, block) + (block @ beta) * target
        part += (
            trace_weight * unclamped * (explained - store.diagonal(rows)) - trace_weight * explained
        )
        found[rows] = part.double() + target.double() * (residual_gradient[rows] / scale[rows])
    return -0.5 * (found + 1.0) * scale.square()


def nystrom_gradient(
    kernel_gradient: KernelGradient,
    residual: Tensor,
    store: BlockStore,
    sums: NystromSums,
    inner: InnerFactor,
    s: Tensor,
    trace_weight: Tensor | None,
    jitter: float,
    extra: Callable[[slice], Tensor] | None = None,
) -> Tensor:
    """Gradient of log N(r; 0, Q_xx + s I) - w T / 2 at a fixed w = ``trace_weight``.

    With w = 1 / s this is the collapsed bound (see ``collapsed_elbo`` for the algebra). A function
    g(T) in place of -w T / 2 has the gradient for w = -2 g'(T).

    Args:
        kernel_gradient: the gradient with respect to kernel, x (n, d) and z (M, d) is added to it.
            Each of several processes passes its own rows, and ``sums`` over all rows.
        residual (n,): r, scaled as ``store`` is (then s = 1).
        store, sums, inner: of the first pass, with the same residual.
        s (): noise variance.
        trace_weight (): w; None: 1 / s.
        jitter: on K_zz, relative to its mean diagonal.
        extra: rows -> (rows, M), an additional gradient with respect to these rows of A^T.

    Returns:
        -Q^{-1} r (n,).
    """
    factor, dtype = store.whitener.factor, residual.dtype
    beta, m = inner.weights, factor.shape[0]
    # rows of L^{-T} W: block @ right + r u^T
    weighted = torch.addr(inner.complement, beta, beta, alpha=-1.0) / s
    excess = None if trace_weight is None else trace_weight - 1.0 / s
    if excess is not None:
        weighted.diagonal().add_(excess)
    right = _times_inverse(factor, weighted).to(dtype)
    outer = (_times_inverse(factor, beta.unsqueeze(0)).squeeze(0) / s).to(dtype)
    mean_weights = beta.to(dtype)
    w = 1.0 / s if trace_weight is None else trace_weight
    diagonal_weight = (-0.5 * w).to(dtype)
    residual_gradient = torch.empty_like(residual)
    correction: Tensor | None = None  # of W A^T, for clamped rows and ``extra``
    inverse: Tensor | None = None
    for rows, block in store:
        weight = torch.mm(block, right).addr_(residual[rows], outer)
        clamped = _clamped_rows(sums.clamped[rows])
        if inverse is None and (extra is not None or clamped.numel()):
            inverse = inverse_lower(factor).to(dtype)
        if clamped.numel():
            assert inverse is not None
            zero_gap = block[clamped]
            weight[clamped] -= w.to(dtype) * (zero_gap @ inverse)
            correction = _sum(correction, -w * (zero_gap.mT @ zero_gap).double())
        if extra is not None:
            assert inverse is not None
            more = extra(rows)
            weight.addmm_(more, inverse)
            correction = _sum(correction, (more.mT @ block).double())
        by_diagonal = diagonal_weight * ~sums.clamped[rows]
        torch.addmv(residual[rows], block, mean_weights, beta=-1.0, out=residual_gradient[rows])
        if store.scale is not None:
            scale = store.scale[rows].to(dtype)
            weight.mul_(scale.unsqueeze(1))
            by_diagonal = by_diagonal * scale.square()
            residual_gradient[rows] *= scale
        kernel_gradient.add_cross(rows, weight)
        kernel_gradient.add_diagonal(rows, by_diagonal)
    residual_gradient /= s.to(dtype)
    processes = kernel_gradient.processes
    if processes.count > 1:
        correction = torch.zeros_like(sums.gram) if correction is None else correction
        processes.all_sum(correction)
        if processes.number:  # the rest does not depend on rows: the first process adds it
            return residual_gradient

    # A A^T / s is the Gram matrix of the inner factor
    moment = (inner.complement @ inner.gram).addr_(beta, beta)
    if excess is not None:
        moment += excess * sums.gram
    if correction is not None:
        moment += correction
    inducing = _times_inverse(factor, _times_inverse(factor, moment).mT).mul_(-0.5).to(dtype)
    kernel_gradient.add_inducing(inducing)
    if jitter:  # relative to the mean diagonal of K_zz
        kernel_gradient.add_inducing_diagonal((inducing.trace() * (jitter / m)).expand(m))
    return residual_gradient


def _clamped_rows(clamped: Tensor) -> Tensor:
    """Numbers of the clamped rows; a recording takes it that there are none, and is repeated if
    there are."""
    noted = noted_checks()
    if noted is None:
        return clamped.nonzero().squeeze(1)
    noted.append(clamped.any())
    return clamped.new_empty(0, dtype=torch.int64)


def _sum(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


def _times_inverse(factor: Tensor, left: Tensor) -> Tensor:
    """left L^{-1}."""
    return torch.linalg.solve_triangular(factor, left, upper=False, left=False)


@runtime_checkable
class SparseModel(Protocol):
    """What the collapsed bound needs of a model with inducing variables."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    inducing_points: nn.Parameter
    features: InducingFeatures
    jitter: float | None
    escalate: bool


class CollapsedELBO(Objective[SparseModel]):
    """Collapsed bound of ``SGPR``: q(u) is at its optimum; Z and hyperparameters are trained.

    Args:
        memory_budget: bytes of the whitened cross-covariance A (n M numbers) that are kept between
            the two passes over the data; the rest is computed twice.

    Exactness: lower bound. Cost and source: ``collapsed_elbo``.
    """

    batching = "full"
    takes_row_noise = True
    fixed_shapes = True
    kind = "lower_bound"
    models = (SparseModel,)
    made_for = "SGPR"
    shared = "evidence"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def __init__(self, memory_budget: int | str | None = None) -> None:
        super().__init__()
        self.memory_budget = budget_in_bytes(memory_budget)

    def evidence(
        self, model: SparseModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Collapsed bound in nats, in float64; parts are those of ``CollapsedTerms``."""
        residual = y - model.mean(x)
        noise = training_noise(model, residual)
        with cached_parameters(x.device, model.kernel):
            terms, gradient, report = collapsed_elbo(
                model.kernel,
                x,
                model.inducing_points,
                residual,
                noise,
                gradient=torch.is_grad_enabled(),
                memory_budget=self.memory_budget,
                jitter=model.jitter,
                escalate=model.escalate,
                features=model.features,
            )
        value = terms.total()
        if gradient is not None:
            value = gradient.attached(value, residual, noise)
        facts: Facts = {"jitter": report.relative}
        return Evidence(value, self.kind, terms._asdict(), report, facts)
