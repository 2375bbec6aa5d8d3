"""Optimal weight means S^-1 Phi^T alpha of all basis functions, for log-concave sites.

The optimum has this form by the representer theorem. Passes over all functions improve alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gpx.bases.base import Basis
from gpx.inference.variational import SiteLikelihood

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Value and gradient at a point."""

TOLERANCE = 1e-2
"""Passes stop when the norm of the residual is below this fraction of that of the slopes."""
CHUNK_BYTES = 128 * 2**20
"""Bytes of features held at a time (at least one block, at all rows)."""

MAX_HALVINGS = 60
"""Most halvings of the first coefficient, until the bound is no lower than with zero."""


@dataclass(frozen=True)
class RepresenterReport:
    """Result of the passes.

    Attributes:
        passes: number of passes over all features.
        residual: |slopes - coefficients| / |slopes| at the end; 0 at the optimum.
        converged: whether ``residual`` is below the tolerance.
        fitted (n,): Phi mean afterwards.
        alpha (n,): with mean = S^-1 Phi^T alpha.
    """

    passes: int
    residual: float
    converged: bool
    fitted: Tensor = field(repr=False, compare=False)
    alpha: Tensor = field(repr=False, compare=False)


def slopes(likelihood: SiteLikelihood, y: Tensor, latent: Tensor, variance: Tensor) -> Tensor:
    """d/da E log p(y | f), f ~ N(a, v), row by row: (n,), float64."""
    with torch.enable_grad():
        a = latent.detach().clone().requires_grad_()
        total = likelihood.expected_log_prob(y.double(), a, variance.double().expand_as(a)).sum()
        (slope,) = torch.autograd.grad(total, a)
    return slope


@dataclass(frozen=True)
class FewFunctionsPreconditioner:
    """Preconditioner for the passes: a few basis functions that approximate the kernel of all.

    Attributes:
        features (n, b): of the few functions.
        root (b, b): lower Cholesky root of curvature * features^T features + b / m * S.
        curvature: typical -d^2/da^2 E log p.
    """

    features: Tensor
    root: Tensor
    curvature: float

    def precondition(self, residual: Tensor) -> Tensor:
        """(1 + curvature K_B)^-1 residual, K_B the kernel of the few functions; O(n b)."""
        right = (self.features.mT @ residual.to(self.features.dtype)).to(self.root)
        solved = torch.cholesky_solve(right[:, None], self.root)[:, 0]
        return residual - self.curvature * (self.features @ solved.to(self.features.dtype)).double()


def representer_passes(
    basis: Basis,
    mean: Tensor,
    likelihood: SiteLikelihood,
    x: Tensor,
    y: Tensor,
    *,
    latent: Tensor,
    latent_variance: Tensor,
    preconditioner: FewFunctionsPreconditioner,
    passes: int,
    alpha: Tensor | None = None,
) -> RepresenterReport:
    """Maximise the evidence bound over weight means of the form S^-1 Phi^T alpha, in place.

    The optimum has that form, with alpha_l the slope of E log p(y_l | f_l) at the latent means
    K alpha, K = Phi S^-1 Phi^T (representer theorem). The slopes of a solution on few functions
    approximate alpha up to the error of their kernel, so the first pass uses them for all m
    functions. Each further pass adds the direction (1 + curvature K_B)^-1 (slopes - alpha), with
    K_B the kernel of the few functions, and the bound is maximised over the coefficients of all
    directions, so that it never falls.

    With ``alpha`` the current mean is one of the directions, so that passes can start from any
    weights, also after hyperparameters have changed.

    Args:
        basis: phi with S diagonal.
        mean (B, W): weight means; overwritten.
        likelihood: with log-concave sites.
        x (n, d), y (n,): all training data.
        latent (n,): latent means of the solution on the few functions, or of ``mean``.
        latent_variance (): v, the same for all rows.
        preconditioner: the few functions.
        passes: most passes, at least one.
        alpha (n,): slopes from which ``mean`` was computed; None: start from zero weights.

    Cost per pass: O(n m d) time and m numbers; O(n W) memory.
    """
    variance = latent_variance.double()
    slope = slopes(likelihood, y, latent.double(), variance)
    directions: list[Tensor] = []  # alphas
    products: list[Tensor] = []  # K alpha
    tables: list[Tensor] = []  # S^-1 Phi^T alpha
    start_square = None
    found = torch.zeros_like(slope)
    if alpha is None:
        new, coefficients = slope, np.zeros(0)
    else:
        precision = basis.precision_diagonal().view_as(mean).double()
        start_square = float((precision * mean.double().square()).sum())
        directions, products, tables = [alpha.double()], [latent.double()], [mean.clone()]
        new, coefficients = preconditioner.precondition(slope - alpha), np.ones(1)
    done, residual, fitted = 0, 1.0, latent.double()
    while done < passes and residual > TOLERANCE:
        product, table = _kernel_product(basis, x, new)
        done += 1
        size = torch.dot(new, product).clamp_min(torch.finfo(product.dtype).tiny).rsqrt()
        directions.append(new * size)
        products.append(product * size)
        tables.append(table.mul_(size.to(table.dtype)))
        basis_alpha, basis_fit = torch.stack(directions, 1), torch.stack(products, 1)
        start = np.append(coefficients, 0.0 if len(coefficients) else 1.0 / float(size))
        coefficients = _maximise(
            likelihood, y, variance, basis_alpha, basis_fit, start, start_square
        )
        chosen = torch.from_numpy(coefficients).to(slope)
        found, fitted = basis_alpha @ chosen, basis_fit @ chosen
        slope = slopes(likelihood, y, fitted, variance)
        difference = slope - found
        residual = float(difference.norm() / slope.norm().clamp_min(1e-300))
        new = preconditioner.precondition(difference)
    mean.zero_()
    for table, c in zip(tables, coefficients, strict=True):
        mean.add_(table, alpha=float(c))
    return RepresenterReport(done, residual, residual <= TOLERANCE, fitted, found)


def _kernel_product(basis: Basis, x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """K alpha (n,), float64, and S^-1 Phi^T alpha (B, W), in one pass over all features."""
    at_once = max(1, CHUNK_BYTES // (basis.block_size * x.shape[0] * x.element_size()))
    product = torch.zeros_like(alpha)
    right = alpha.to(x.dtype)
    weights = []
    for blocks in torch.arange(basis.num_blocks, device=x.device).split(at_once):
        features = basis.block_features(x, blocks)
        precision = basis.block_precision(blocks).to(x.dtype)
        chunk = (right @ features) / precision
        product += features @ chunk
        weights.append(chunk.view(-1, basis.block_size))
    return product, torch.cat(weights)


def _maximise(
    likelihood: SiteLikelihood,
    y: Tensor,
    variance: Tensor,
    directions: Tensor,
    products: Tensor,
    start: np.ndarray,
    start_square: float | None,
) -> np.ndarray:
    """Coefficients (k,) of the directions (n, k) that maximise the bound.

    ``start_square`` is w^T S w of the first weights if these are not exactly S^-1 Phi^T alpha.
    """
    gram = directions.T @ products
    if start_square is not None:
        gram[0, :] = gram[:, 0]
        gram[0, 0] = start_square
    gram = 0.5 * (gram + gram.T)

    def loss(c: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            free = torch.from_numpy(c).to(products).requires_grad_()
            latent = products @ free
            fit = likelihood.expected_log_prob(y.double(), latent, variance.expand_as(latent)).sum()
            value = 0.5 * free @ gram @ free - fit
            (gradient,) = torch.autograd.grad(value, free)
        return float(value), gradient.cpu().numpy()

    # rates of large counts overflow at the first guess, K slopes, if the slopes are inaccurate
    without = loss(np.append(start[:-1], 0.0))[0]
    for _ in range(MAX_HALVINGS):
        if loss(start)[0] <= without:
            break
        start[-1] *= 0.5
    options = {"maxiter": 200}
    found = minimize(stepping_back(loss), start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x)


def stepping_back(loss: Loss) -> Loss:
    """``loss`` for a line search: high where it is not finite, so that the search steps back.

    Rates of counts overflow at large latent values.
    """
    lowest = np.inf

    def finite(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal lowest
        value, gradient = loss(point)
        if np.isfinite(lowest) and not (np.isfinite(value) and np.isfinite(gradient).all()):
            return lowest + 1e3 * (1.0 + abs(lowest)), np.zeros_like(point)
        lowest = min(lowest, value)
        return value, gradient

    return finite
