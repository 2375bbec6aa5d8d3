"""Preconditioned conjugate gradients for many right-hand sides, with a reported outcome."""

from __future__ import annotations

import math
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpx.errors import (
    ConfigError,
    DidNotConverge,
    DTypeError,
    GPXError,
    NotPositiveDefinite,
    ShapeError,
)
from gpx.linalg.cg_blocks import make_blocks
from gpx.linalg.cg_iteration import CGIteration, Product
from gpx.linalg.cg_one_side import OneSide
from gpx.linalg.report import SolveReport
from gpx.linalg.stopping import RelativeResidual, StoppingRule
from gpx.tensor_checks import check_one_of
from gpx.warned_line import users_line

EARLY_CHECK_INTERVAL = 2
"""Steps between convergence checks within the first ten steps on a GPU. A solve with a good start
or preconditioner takes few steps, and a superfluous step costs far more than a check."""

REDUCED_PRECISION_REFRESH = 25
"""Steps between recomputations of the true residual where products run in a lower precision than
the recurrence."""


class UnconvergedWarning(UserWarning):
    """A solve stopped before its criterion was met, and the caller asked to be warned."""


@dataclass(frozen=True)
class CGResult:
    """Outcome of ``conjugate_gradients``.

    Attributes:
        solution: v, of the shape and dtype of the right-hand sides.
        report: worst case over the right-hand sides; ``residual`` is the relative residual norm.
        residual: r = b - K v, of the same shape; a true residual (one product), not the recurrence,
            unless ``verify`` was off.
        history (t + 1, ..., c): the stopping rule's measure of the recurrence's residual before
            the first step and after each; constant once a right-hand side has stopped.
        iterations (..., c): steps taken by each right-hand side.
        converged (..., c): which of them met the rule.
        step_sizes (t, ..., c), ratios (t, ..., c): the coefficients a_i and b_i = gamma_{i+1} /
            gamma_i, from which ``lanczos.tridiagonal_of_cg`` reads the Lanczos matrix.
        undisturbed: how many of the first steps precede any refresh or restart, so that their
            coefficients belong to one Krylov space.
        products: how often ``matmul`` was called.
        preconditioned: Q^{-1} b (n, c) or (n,), where ``keep_preconditioned`` asked for it.
    """

    solution: Tensor
    report: SolveReport
    residual: Tensor
    history: Tensor
    iterations: Tensor
    converged: Tensor
    step_sizes: Tensor
    ratios: Tensor
    undisturbed: int
    products: int
    preconditioned: Tensor | None = None


def conjugate_gradients(
    matmul: Product | Tensor,
    rhs: Tensor,
    *,
    preconditioner: Product | None = None,
    x0: Tensor | None = None,
    stop: StoppingRule | None = None,
    max_iterations: int = 1000,
    product_dtype: torch.dtype | None = None,
    check_every: int | None = None,
    refresh_every: int | None = None,
    restart: bool = False,
    verify: bool = True,
    on_failure: Literal["raise", "warn", "return"] = "raise",
    keep_preconditioned: bool = False,
) -> CGResult:
    """Solve K v = b for symmetric positive definite K known by its products.

    The recurrence's residual drifts from the true one. When every right-hand side meets the rule,
    the true residual is computed and the rule applied to it; sides that fail continue from it until
    they meet the rule or the true residual stops falling (reported as stagnation). After one step
    from zero the recurrence's residual is the true one.

    Args:
        matmul: (..., n, c) -> K times it, same shape; linear. Or a dense K (..., n, n) itself: its
            products are written into one buffer.
        rhs (n,) or (..., n, c): right-hand sides b, solved together; each stops by itself and has
            its own scale (``matmul`` sees them scaled to entries below two).
        preconditioner: r -> Q^{-1} r for a symmetric positive definite Q near K; a
            ``Preconditioner``'s ``solve``.
        x0: where to start, broadcastable to ``rhs``; default zero (which saves a product).
        stop: default ``RelativeResidual(1e-6)``.
        max_iterations: most steps.
        product_dtype: dtype in which the products of the steps are asked for (float32 under float64
            recurrences); ``matmul`` must take both. True residuals use ``rhs``'s own dtype.
        check_every: steps between convergence checks, which synchronise with the device; default 1
            on a CPU, else 10 and 2 within the first ten steps. Converged sides stop changing at
            once either way. On a GPU blocks of this many steps are recorded as a CUDA graph from
            the fourth block on and replayed with bit-identical results, except inside
            ``gpx.linalg.replayed.solves_recorded(None)``.
        refresh_every: steps between replacements of the residual by the true one (one more product
            each); default never, or 25 when ``product_dtype`` is lower.
        restart: also start from the steepest descent again at each refresh (as published for
            certified bounds, with 40).
        verify: compute the true residual at the end; off saves one product and trusts the
            recurrence (for callers who compute the residual themselves).
        keep_preconditioned: also return Q^{-1} b, the first direction; without ``x0`` only.
        on_failure: "raise", "warn" (``UnconvergedWarning``) or "return" (read ``report``).

    Raises:
        DidNotConverge: the rule is not met after ``max_iterations``, at stagnation, or because of
            NaN or infinite values.
        NotPositiveDefinite: a direction p with p^T K p <= 0 (or r^T Q^{-1} r < 0) was met.
        ShapeError, DTypeError, ConfigError: before the first product.

    Cost: one product and one preconditioner solve per step, about 10 n c operations more; memory
    6 n c. A product or a solve that returns columns in one piece (the transpose of a contiguous
    (c, n)) is not copied. Not differentiable.
    Source: Burt thesis, sections 4.1.1 and 4.1.2.
    """
    stop = RelativeResidual() if stop is None else stop
    _check(rhs, x0, stop, preconditioner, on_failure)
    _check_matrix(matmul, rhs)
    for name, count, least in (
        ("max_iterations", max_iterations, 0),
        ("check_every", check_every, 1),
        ("refresh_every", refresh_every, 1),
    ):
        if count is not None and count < least:
            raise ConfigError(f"{name}={count} must be at least {least}")
    reduced = product_dtype is not None and product_dtype != rhs.dtype
    if check_every is None:
        check_every, early = (1, 1) if rhs.device.type == "cpu" else (10, EARLY_CHECK_INTERVAL)
    else:
        early = check_every
    if refresh_every is None and reduced:
        refresh_every = REDUCED_PRECISION_REFRESH
    with torch.no_grad(), ExitStack() as at_end:
        sides = math.prod(rhs.shape) // max(1, rhs.shape[-1 if rhs.ndim == 1 else -2])
        alone = rhs.is_cpu and sides == 1 and check_every == 1
        state = (OneSide if alone else CGIteration)(
            matmul, rhs, preconditioner, x0, stop, product_dtype, keep_preconditioned and x0 is None
        )
        state.begin()
        blocks = make_blocks(state, check_every)
        if blocks is not None:
            at_end.callback(blocks.release)
        done, best, stagnated = 0, math.inf, False
        while True:
            while done < max_iterations:
                due = done % (early if done < check_every else check_every) == 0
                if due and not bool(state.active.any()):
                    break
                end = max_iterations
                if refresh_every:
                    end = min(end, (done // refresh_every + 1) * refresh_every)
                whole = done >= check_every and done % check_every == 0
                if blocks is not None and whole and done + check_every <= end:
                    blocks.advance()
                    done += check_every
                else:
                    done += 1
                    state.step(looking=check_every == 1)
                if refresh_every and done % refresh_every == 0:
                    state.refresh(restart)
            # one step from zero: the recurrence has computed b - K v itself
            if not verify or not done or (done == 1 and x0 is None and not reduced):
                break
            worst, done = state.verify()
            stagnated = worst > 0.5 * best and done < max_iterations
            if stagnated or done >= max_iterations or worst == 0.0:
                break
            best = min(best, worst)
            state.restart()
        return _finish(state, rhs, stop, max_iterations, stagnated, on_failure)


def _finish(
    state: CGIteration,
    rhs: Tensor,
    stop: StoppingRule,
    max_iterations: int,
    stagnated: bool,
    on_failure: str,
) -> CGResult:
    steps = state.trim()
    converged = state.measure <= stop.tolerance
    relative = torch.linalg.vector_norm(state.r, dim=-2) / state.rhs_norm.clamp(
        min=torch.finfo(rhs.dtype).tiny
    )
    error: type[GPXError] = DidNotConverge
    success, worst, largest = True, 0.0, 0.0
    if relative.numel():
        found = [converged.all(), state.measure.max(), relative.max()]
        met, worst, largest = torch.stack([each.double() for each in found]).tolist()
        success = bool(met)
    measured = f"{stop.describe()} {worst:.3g} against {stop.tolerance:.3g}"
    if success:
        reason = f"converged: {measured}"
    elif bool((state.gamma < 0.0).any()):  # before the NaN that its root in a stopping rule is
        error = NotPositiveDefinite
        reason = (
            f"the preconditioner is not positive definite (r^T Q^-1 r = "
            f"{float(state.gamma.nan_to_num(0.0).min()):.3g}); rebuild it in float64 or with more "
            "noise"
        )
    elif bool(state.broken().any()) or not bool(torch.isfinite(state.met_curvatures()).all()):
        reason = (
            "NaN or infinite values in the right-hand sides, the products or the preconditioner's "
            "solves; check the inputs and hyperparameters"
        )
    elif bool((state.flat() & ~converged).any()):
        error = NotPositiveDefinite
        better = "" if state.product_dtype == torch.float64 else "use dtype=float64 or "
        reason = (
            "the matrix is not positive definite: a direction has curvature "
            f"{float(state.met_curvatures().min()):.3g}; {better}add a positive diagonal (noise "
            "variance)"
        )
    elif stagnated:
        reason = (
            f"stagnation: {measured}, and the true residual no longer falls; the tolerance is "
            f"below what {str(state.product_dtype).removeprefix('torch.')} products reach, raise "
            "it or raise the noise variance"
        )
    elif steps < max_iterations:  # r^T Q^-1 r was negative in the recurrence, but not in truth
        error = NotPositiveDefinite
        reason = (
            f"rounding broke the recurrence: {measured}; the matrix or its preconditioner is not "
            f"positive definite in {str(state.product_dtype).removeprefix('torch.')}, use float64 "
            "or raise the noise variance"
        )
    else:
        reason = (
            f"{max_iterations} steps were not enough: {measured}; allow more steps, use a "
            "preconditioner of higher rank or raise the noise variance"
        )
    report = SolveReport(steps, largest, success, reason)
    if not success:
        text = f"conjugate gradients (n = {state.rhs.shape[-2]}) after {steps} steps: {reason}"
        if on_failure == "raise":
            raise error(text)
        if on_failure == "warn":
            warnings.warn(text, UnconvergedWarning, stacklevel=users_line())
    return _result(state, rhs, report, converged, steps)


def _result(
    state: CGIteration, rhs: Tensor, report: SolveReport, converged: Tensor, steps: int
) -> CGResult:
    sides = state.rhs_norm.shape
    empty = state.rhs_norm.new_empty(0, *sides)
    sizes = state.step_sizes.stacked() if steps else empty
    ratios = state.ratios.stacked() if steps else empty
    history, iterations = state.history(), state.iterations()
    if state.is_vector:
        history, sizes, ratios = history[:, 0], sizes[:, 0], ratios[:, 0]
        converged, iterations = converged[0], iterations[0]

    def unscaled(block: Tensor) -> Tensor:
        out = block.new_empty(block.shape)  # a block lies by columns; this does not
        return torch.mul(block, state.scale.unsqueeze(-2), out=out).reshape(rhs.shape)

    return CGResult(
        unscaled(state.x),
        report,
        unscaled(state.r),
        history,
        iterations,
        converged,
        sizes,
        ratios,
        steps if state.undisturbed is None else min(state.undisturbed, steps),
        state.products,
        None if state.first is None else unscaled(state.first),
    )


def _check(
    rhs: Tensor,
    x0: Tensor | None,
    stop: StoppingRule,
    preconditioner: Product | None,
    on_failure: str,
) -> None:
    if rhs.ndim == 0:
        raise ShapeError("right-hand sides must be (n,) or (..., n, c), got a scalar")
    if not rhs.is_floating_point():
        raise DTypeError(f"right-hand sides must be real floating point, got {rhs.dtype}")
    if x0 is not None:
        if x0.dtype != rhs.dtype or x0.device != rhs.device:
            raise DTypeError(
                f"x0 is {x0.dtype} on {x0.device}, the right-hand sides {rhs.dtype} on {rhs.device}"
            )
        fits = (x0.ndim == 1) == (rhs.ndim == 1) and x0.ndim <= rhs.ndim
        rows = -1 if rhs.ndim == 1 else -2
        pairs = zip(reversed(x0.shape), reversed(rhs.shape), strict=False)
        if not fits or x0.shape[rows] != rhs.shape[rows] or any(a not in (1, b) for a, b in pairs):
            raise ShapeError(f"x0 {tuple(x0.shape)} does not fit rhs {tuple(rhs.shape)}")
    if stop.needs_preconditioner and preconditioner is None:
        raise ConfigError(
            f"{type(stop).__name__} without a preconditioner certifies nothing; "
            "give it noise_variance (sigma^2 I is below every noisy kernel matrix)"
        )
    check_one_of(("raise", "warn", "return"), on_failure=on_failure)


def _check_matrix(matrix: Product | Tensor, rhs: Tensor) -> None:
    if not isinstance(matrix, Tensor):
        return
    rows = rhs.shape[-1 if rhs.ndim == 1 else -2]
    if matrix.ndim < 2 or tuple(matrix.shape[-2:]) != (rows, rows):
        raise ShapeError(
            f"a matrix {tuple(matrix.shape)} does not fit {rows} rows; expected square"
        )
    if matrix.dtype != rhs.dtype or matrix.device != rhs.device:
        raise DTypeError(
            f"the matrix is {matrix.dtype} on {matrix.device}, the right-hand sides {rhs.dtype} on "
            f"{rhs.device}"
        )
