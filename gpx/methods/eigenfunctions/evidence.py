"""Log marginal likelihood of regression on the eigenfunctions of a grid, streamed over the data."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.data_pass import (
    EigenfunctionPass,
    feature_sums,
    point_noise,
    unit_parameters,
)
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, GridModes
from gpx.bases.sufficient_statistics import LOG_TWO_PI, FittedWeights
from gpx.linalg import with_gradient


class EigenfunctionTerms(NamedTuple):
    """Terms of log N(r; 0, Phi Phi^T + D), in nats.

    Attributes:
        fit: -r^T (Phi Phi^T + D)^{-1} r / 2.
        complexity: -log det (I + Phi^T D^{-1} Phi) / 2.
        constant: -(log det D + n log(2 pi)) / 2.
    """

    fit: Tensor
    complexity: Tensor
    constant: Tensor


class BasisGradient(NamedTuple):
    """Gradient of the evidence at a moving basis.

    Attributes:
        residual (n,): with respect to r = y - m(x).
        noise (), outputscale (): with respect to these.
        parameters: with respect to the kernel's parameters through the unit eigenfunctions.
    """

    residual: Tensor
    noise: Tensor
    outputscale: Tensor
    parameters: list[Tensor]


@torch.no_grad()
def fitted_weights(
    basis: GridEigenfunctions,
    modes: GridModes,
    x: Tensor,
    residual: Tensor,
    noise: Tensor,
    *,
    correction: bool,
) -> FittedWeights:
    """Posterior of the weights of the unit eigenfunctions; arguments as ``moving_basis_evidence``.

    Cost: n p^2 / 2 + p^3 / 3 multiply-adds, memory O(p^2 + block).
    """
    wide, outputscale = noise.double(), basis.factors.outputscale.double()
    scale = outputscale.sqrt().expand(len(modes.plan.index))
    if not correction:
        return FittedWeights(feature_sums(basis, modes, x, residual), scale, wide)
    return FittedWeights(feature_sums(basis, modes, x, residual, wide, outputscale), scale)


def evidence_terms(weights: FittedWeights, num_data: int) -> EigenfunctionTerms:
    """The terms from the posterior of the weights."""
    complexity = -weights.factor.diagonal().log().sum()
    return EigenfunctionTerms(
        fit=-0.5 * weights.fit,
        complexity=complexity,
        constant=-0.5 * (weights.log_determinant + num_data * LOG_TWO_PI) - complexity,
    )


def moving_basis_evidence(
    basis: GridEigenfunctions,
    x: Tensor,
    residual: Tensor,
    noise: Tensor,
    *,
    correction: bool,
    gradient: bool,
) -> tuple[EigenfunctionTerms, BasisGradient | None]:
    """log N(r; 0, s F^T F + D) at the kernel's current parameters, and its gradient.

    F (p, n) are the eigenfunctions of the kernel with outputscale one, s the outputscale,
    D = noise I, or with ``correction`` D_i = noise + s (1 - |f_i|^2). With E = D^{-1},
    B = I + s F E F^T, u = B^{-1} F E r and e = r - s F^T u:

        d / df_i = s E_i (e_i u - B^{-1} f_i)   (- 2 s (d / dD_i) f_i with ``correction``)
        d / dD_i = (E_i^2 e_i^2 - E_i + s E_i^2 f_i^T B^{-1} f_i) / 2
        d / ds   = (u^T u - tr(B^{-1} F E F^T)) / 2   (+ sum_i (1 - |f_i|^2) d / dD_i)
        d / dr_i = -E_i e_i

    Features are formed anew in the second pass; each block's meet their derivative with respect to
    what describes the one-dimensional functions, whose total goes back through the small
    eigenproblems once (``EigenfunctionPass``).

    Args:
        basis: its grid is placed.
        x (n, d), residual (n,), noise (): inputs, y - m(x), noise variance.
        correction: see above.
        gradient: whether to make the second pass.

    Exactness: exact for the kernel that the basis stands for.
    Cost: 1.5 n p^2 + p^3 multiply-adds with the gradient, a third of the first without; memory
    O(p^2 + block) beside the data.
    Source: Evans thesis, algorithm 4.2; the gradient is derived from it.
    """
    with torch.set_grad_enabled(gradient):
        modes = basis.modes()
    leaf = modes.transforms.detach()
    with torch.no_grad():
        scale = basis.factors.outputscale.detach().double()
        fixed = GridModes(leaf, modes.log_values, modes.plan)
        r, s2 = residual.detach(), noise.detach()
        weights = fitted_weights(basis, fixed, x.detach(), r, s2, correction=correction)
        terms = evidence_terms(weights, len(x))
        if not gradient:
            return terms, None
        found = _second_pass(basis, modes, x.detach(), r, s2, scale, weights, correction)
    return terms, found


def _second_pass(
    basis: GridEigenfunctions,
    modes: GridModes,
    x: Tensor,
    residual: Tensor,
    noise: Tensor,
    scale: Tensor,
    weights: FittedWeights,
    correction: bool,
) -> BasisGradient:
    s = scale.to(x.dtype)
    u = (weights.mean / scale.sqrt()).to(x.dtype)
    inverse = torch.cholesky_inverse(weights.factor)
    # s B^{-1}, divided by the noise at once where all points have the same
    solve = (s * inverse if correction else scale / noise.double() * inverse).to(x.dtype)
    functions = EigenfunctionPass(basis, modes, x, gradient=True)
    residual_gradient = torch.empty_like(residual)
    noise_gradient, gap_gradient = scale.new_zeros(()), scale.new_zeros(())
    for rows in functions.blocks():
        f = functions(rows)
        error = residual[rows] - s * (u @ f)
        d = noise.to(x.dtype).expand(f.shape[1])
        if correction:
            d = point_noise(f, noise.to(x.dtype), s)
        alpha = error / d
        residual_gradient[rows] = -alpha
        weight = functions.weights()
        torch.mul((s * u).unsqueeze(1), alpha, out=weight)
        if correction:
            solved = solve @ f
            gap = 1.0 - f.square().sum(0)
            each = alpha.square() - 1.0 / d + torch.linalg.vecdot(f, solved, dim=0) / d.square()
            each *= 0.5
            noise_gradient += each.double().sum()
            each *= gap > 0.0
            weight -= solved / d
            weight -= (2.0 * s * each) * f
            gap_gradient += torch.dot(each, gap).double()
        else:
            weight.addmm_(solve, f, alpha=-1.0)
        functions.add(weight)
    kernel = functions.gradients()
    effective = (1.0 - inverse.diagonal()).sum()
    scale_gradient = 0.5 * (torch.dot(weights.mean, weights.mean) - effective) / scale
    if correction:
        scale_gradient = scale_gradient + gap_gradient
    else:
        # from the sums and tr(I - B^{-1}) alone
        misfit = weights.fit - torch.dot(weights.mean, weights.mean)
        noise_gradient = 0.5 * (misfit + effective - len(x)) / noise.double()
    return BasisGradient(residual_gradient, noise_gradient, scale_gradient, kernel)


def eigenfunction_evidence(
    basis: GridEigenfunctions, x: Tensor, residual: Tensor, noise: Tensor, *, correction: bool
) -> tuple[Tensor, EigenfunctionTerms]:
    """``moving_basis_evidence`` as a scalar, differentiable in everything learned, and its terms.

    Args:
        basis, x, residual, noise, correction: as there, residual and noise with their graphs.
    """
    terms, gradient = moving_basis_evidence(
        basis, x, residual, noise, correction=correction, gradient=torch.is_grad_enabled()
    )
    value = sum(terms[1:], terms[0])
    if gradient is not None:
        outputscale = basis.factors.outputscale
        value = with_gradient(
            value,
            [residual, noise, outputscale, *unit_parameters(basis)],
            [
                gradient.residual,
                gradient.noise.to(noise.dtype),
                gradient.outputscale.to(outputscale.dtype),
                *gradient.parameters,
            ],
        )
    return value, terms
