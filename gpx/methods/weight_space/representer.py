"""Weight means S^-1 Phi^T alpha over all basis functions, for models with log-concave sites.

By the representer theorem the optimum has that form. Passes over all functions improve alpha.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gpx.bases.base import Basis
from gpx.likelihoods.base import Likelihood

TOLERANCE = 1e-2
"""Norm of the residual, relative to that of the slopes, at which passes stop."""
CHUNK_BYTES = 128 * 2**20
"""Of features held at once, all rows of at least one block."""


@dataclass(frozen=True)
class RepresenterReport:
    """What the passes did.

    Attributes:
        passes: over all features.
        residual: |slopes - coefficients| / |slopes| at the end; 0 at the optimum.
        converged: whether it is below the tolerance.
        fitted (n,): Phi mean afterwards.
        alpha (n,): of which the mean is S^-1 Phi^T alpha.
    """

    passes: int
    residual: float
    converged: bool
    fitted: Tensor = field(repr=False, compare=False)
    alpha: Tensor = field(repr=False, compare=False)


def slopes(likelihood: Likelihood, y: Tensor, latent: Tensor, variance: Tensor) -> Tensor:
    """d/da E log p(y | f), f ~ N(a, v), row by row: (n,), float64."""
    with torch.enable_grad():
        a = latent.detach().clone().requires_grad_()
        total = likelihood.expected_log_prob(y.double(), a, variance.double().expand_as(a)).sum()
        (slope,) = torch.autograd.grad(total, a)
    return slope


@dataclass(frozen=True)
class StandIn:
    """Preconditioner for the passes: a few basis functions that approximate the kernel of all m.

    Attributes:
        features (n, b): of those functions.
        root (b, b): lower Cholesky root of curvature * features^T features + b / m * S.
        curvature: typical -d^2/da^2 E log p.
    """

    features: Tensor
    root: Tensor
    curvature: float

    def precondition(self, miss: Tensor) -> Tensor:
        """(1 + curvature K_B)^-1 miss, K_B the kernel of the few functions; O(n b)."""
        right = (self.features.mT @ miss.to(self.features.dtype)).to(self.root)
        solved = torch.cholesky_solve(right[:, None], self.root)[:, 0]
        return miss - self.curvature * (self.features @ solved.to(self.features.dtype)).double()


def representer_passes(
    basis: Basis,
    mean: Tensor,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    *,
    latent: Tensor,
    latent_variance: Tensor,
    stand_in: StandIn,
    passes: int,
    alpha: Tensor | None = None,
) -> RepresenterReport:
    """Maximise the evidence bound over weight means of the form S^-1 Phi^T alpha, in place.

    The optimum has that form, with alpha_l the slope of E log p(y_l | f_l) at its own latent means
    K alpha, K = Phi S^-1 Phi^T (representer theorem). A solution on few functions that stood for
    all of them knows alpha to the error of their kernel, so that one pass hands it to all m. Each
    further pass adds the direction (1 + curvature K_B)^-1 (slopes - alpha), K_B the kernel of those
    few, and the bound is maximised over the coefficients of all directions: it never falls.

    With ``alpha`` the mean as it stands is kept as one of the directions, so that passes go on from
    any weights, whatever moved them or the features since alpha was right.

    Args:
        basis: phi with S diagonal.
        mean (B, W): weight means; overwritten.
        likelihood: with log-concave sites.
        x (n, d), y (n,): all training data.
        latent (n,): latent means of the solution on the few functions, or of ``mean``.
        latent_variance (): v, the same for all rows.
        stand_in: those few functions.
        passes: at most, at least one.
        alpha (n,): slopes that ``mean`` was made of; without, it is ignored.

    Cost per pass: O(n m d) time and m numbers; O(n W) memory.
    """
    variance = latent_variance.double()
    slope = slopes(likelihood, y, latent.double(), variance)
    directions: list[Tensor] = []  # alphas
    products: list[Tensor] = []  # K alpha
    tables: list[Tensor] = []  # S^-1 Phi^T alpha
    kept = None
    found = torch.zeros_like(slope)
    if alpha is None:
        new, coefficients = slope, np.zeros(0)
    else:
        precision = basis.precision_diagonal().view_as(mean).double()
        kept = float((precision * mean.double().square()).sum())
        directions, products, tables = [alpha.double()], [latent.double()], [mean.clone()]
        new, coefficients = stand_in.precondition(slope - alpha), np.ones(1)
    done, residual, fitted = 0, 1.0, latent.double()
    while done < passes and residual > TOLERANCE:
        product, table = _pass(basis, x, new)
        done += 1
        size = torch.dot(new, product).clamp_min(torch.finfo(product.dtype).tiny).rsqrt()
        directions.append(new * size)
        products.append(product * size)
        tables.append(table.mul_(size.to(table.dtype)))
        basis_alpha, basis_fit = torch.stack(directions, 1), torch.stack(products, 1)
        start = np.append(coefficients, 0.0 if len(coefficients) else 1.0 / float(size))
        coefficients = _maximise(likelihood, y, variance, basis_alpha, basis_fit, start, kept)
        chosen = torch.from_numpy(coefficients).to(slope)
        found, fitted = basis_alpha @ chosen, basis_fit @ chosen
        slope = slopes(likelihood, y, fitted, variance)
        miss = slope - found
        residual = float(miss.norm() / slope.norm().clamp_min(1e-300))
        new = stand_in.precondition(miss)
    mean.zero_()
    for table, c in zip(tables, coefficients, strict=True):
        mean.add_(table, alpha=float(c))
    return RepresenterReport(done, residual, residual <= TOLERANCE, fitted, found)


def _pass(basis: Basis, x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """K alpha (n,), float64, and S^-1 Phi^T alpha (B, W)."""
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
    likelihood: Likelihood,
    y: Tensor,
    variance: Tensor,
    directions: Tensor,
    products: Tensor,
    start: np.ndarray,
    kept: float | None,
) -> np.ndarray:
    """Coefficients (k,) of the directions (n, k) at the largest bound.

    With ``kept``, the prior square of the first table, that table need not be its own alpha's.
    """
    gram = directions.T @ products
    if kept is not None:
        gram[0, :] = gram[:, 0]
        gram[0, 0] = kept
    gram = 0.5 * (gram + gram.T)

    def loss(c: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            free = torch.from_numpy(c).to(products).requires_grad_()
            latent = products @ free
            fit = likelihood.expected_log_prob(y.double(), latent, variance.expand_as(latent)).sum()
            value = 0.5 * free @ gram @ free - fit
            (gradient,) = torch.autograd.grad(value, free)
        return float(value), gradient.cpu().numpy()

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return np.asarray(found.x)
