"""Gauss and Gauss-Radau quadrature of w^T f(K) w from Lanczos coefficients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.linalg.lanczos import tridiagonal


def gauss(function: Callable[[Tensor], Tensor], alphas: Tensor, betas: Tensor) -> Tensor:
    """Gauss rule e_1^T f(T) e_1 with t nodes; times ||w||^2 it estimates w^T f(K) w.

    The nodes are the eigenvalues of T, the weights the squared first components of its
    eigenvectors. Exact for polynomials of degree 2 t - 1. For f = log it lies above the true value
    (even derivatives are negative).

    Args:
        function: f, elementwise.
        alphas (..., t), betas (..., >= t - 1): of ``Lanczos``.

    Returns:
        (...,), computed in float64: an eigensolver's rounding in float32, a unit of the largest
        eigenvalue, would hide the smallest ones.

    Cost: one symmetric eigenproblem of size t each.
    Source: Burt thesis, section 4.1.5 (the weights corrected there).
    """
    return _rule(function, tridiagonal(alphas.double(), betas.double())).to(alphas.dtype)


def gauss_radau(
    function: Callable[[Tensor], Tensor], alphas: Tensor, betas: Tensor, node: float
) -> Tensor:
    """Gauss-Radau rule with t free nodes and one prescribed ``node`` at or below the spectrum.

    For f = log it lies below the true value. Where the Krylov space is exhausted (last coupling
    zero) it equals the Gauss rule, which is exact there. Where an inner coupling is zero (a column
    padded to the length of others), the rule is that of T's leading block, the only part that the
    start vector reaches.

    Args:
        function, alphas (..., t): as for ``gauss``.
        betas (..., t): including, as the last, the coupling that leads out of T or its leading
            block.
        node: a <= smallest eigenvalue: the noise variance sigma^2 for K, 1 for
            Q^{-1/2} K Q^{-1/2} with Q <= K.

    Raises:
        NotPositiveDefinite: a Ritz value lies below ``node``, so that it is no lower bound.

    Source: Burt thesis, section 4.1.5; Golub 1973.
    """
    t = alphas.shape[-1]
    if betas.shape[-1] != t:
        raise ConfigError(
            f"Gauss-Radau needs one coupling per step, got {betas.shape[-1]} for {t} steps"
        )
    dtype = alphas.dtype
    alphas, betas = alphas.double(), betas.double()
    inner = betas[..., :-1]
    whole = t == 1 or bool((inner != 0.0).all())
    size = None if whole else 1 + (inner != 0.0).long().cumprod(-1).sum(-1)  # of leading blocks
    pivot = alphas[..., 0] - node
    lowest = final = pivot
    for i in range(1, t):
        coupling = betas[..., i - 1]
        pivot = alphas[..., i] - node - coupling * (coupling / pivot)  # no square: any scale
        lowest = torch.minimum(lowest, pivot)
        final = pivot if size is None else torch.where(i < size, pivot, final)
    # rounding may put the smallest Ritz value a hair below a node that is the smallest eigenvalue
    slack = 1e4 * torch.finfo(dtype).eps * alphas.abs().amax(-1)
    if not bool((lowest >= -slack).all()):
        raise NotPositiveDefinite(
            f"Gauss-Radau node {node:.6g} is above an eigenvalue (T - a I has pivot "
            f"{float(lowest.min()):.3g}): a bracket needs a lower bound of the spectrum; use the "
            "noise variance, or 1 with a preconditioner below K"
        )
    coupling = betas[..., -1]
    safe = final.clamp(min=torch.finfo(alphas.dtype).tiny)
    last = node + coupling * (coupling / safe)
    ended = (coupling == 0.0) | (final <= 0.0)
    last = torch.where(ended, alphas[..., 0], last).unsqueeze(-1)
    coupling = torch.where(ended, 0.0, coupling).unsqueeze(-1)
    if size is None:
        extended, couplings = torch.cat([alphas, last], -1), torch.cat([inner, coupling], -1)
        return _rule(function, tridiagonal(extended, couplings)).to(dtype)
    place = size.unsqueeze(-1)
    extended = torch.cat([alphas, alphas[..., :1]], -1).scatter(-1, place, last)
    couplings = torch.nn.functional.pad(inner, (0, 1)).scatter(-1, place - 1, coupling)
    return _rule(function, tridiagonal(extended, couplings)).to(dtype)


def _rule(function: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
    values, vectors = at_ritz_values(function, matrix)
    return (vectors[..., 0, :].square() * values).sum(-1)


def at_ritz_values(function: Callable[[Tensor], Tensor], matrix: Tensor) -> tuple[Tensor, Tensor]:
    """f at the eigenvalues of symmetric matrices (..., t, t), and the eigenvectors.

    Raises:
        NotPositiveDefinite: a value that is not finite.
    """
    nodes, vectors = torch.linalg.eigh(matrix)
    values = function(nodes)
    if not bool(torch.isfinite(values).all()):
        raise NotPositiveDefinite(
            f"the function is not finite at all Ritz values, which range from "
            f"{float(nodes.min()):.3g} to {float(nodes.max()):.3g}; a logarithm needs a positive "
            "definite matrix, raise the noise variance"
        )
    return values, vectors
