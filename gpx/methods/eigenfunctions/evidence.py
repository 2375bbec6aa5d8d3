"""Log marginal likelihood of regression on the eigenfunctions of a grid, streamed over the data."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.data_pass import (
    EigenfunctionPass,
    feature_sums,
    point_noise,
    unit_parameters,
)
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, GridModes
from gpx.bases.sufficient_statistics import FittedWeights
from gpx.constants import LOG_TWO_PI
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import inverse_of_factor, with_gradient
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective


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
    """Posterior of the weights of the unit eigenfunctions; arguments as ``eigenfunction_evidence``.

    Cost: n p^2 / 2 + p^3 / 3 multiply-adds, memory O(p^2 + block).
    """
    wide, outputscale = noise.double(), basis.factors.outputscale.double()
    scale = outputscale.sqrt().expand(len(modes.plan.index))
    if correction:
        return FittedWeights(feature_sums(basis, modes, x, residual, wide, outputscale), scale)
    return FittedWeights(feature_sums(basis, modes, x, residual), scale, wide)


def evidence_terms(weights: FittedWeights, num_data: int) -> EigenfunctionTerms:
    """The terms from the posterior of the weights."""
    complexity = -weights.factor.diagonal().log().sum()
    return EigenfunctionTerms(
        fit=-0.5 * weights.fit,
        complexity=complexity,
        constant=-0.5 * (weights.log_determinant + num_data * LOG_TWO_PI) - complexity,
    )


def eigenfunction_evidence(
    basis: GridEigenfunctions, x: Tensor, residual: Tensor, noise: Tensor, *, correction: bool
) -> tuple[Tensor, EigenfunctionTerms]:
    """log N(r; 0, s F^T F + D), differentiable in the kernel, the residual and the noise.

    F (p, n) are the eigenfunctions of the kernel with outputscale one, s the outputscale,
    D = noise I, or with ``correction`` D_i = noise + s (1 - |f_i|^2). With E = D^{-1},
    B = I + s F E F^T, u = B^{-1} F E r and e = r - s F^T u:

        d / df_i = s E_i (e_i u - B^{-1} f_i)   (- 2 s (d / dD_i) f_i with ``correction``)
        d / dD_i = (E_i^2 e_i^2 - E_i + s E_i^2 f_i^T B^{-1} f_i) / 2
        d / ds   = (u^T u - tr(B^{-1} F E F^T)) / 2   (+ sum_i (1 - |f_i|^2) d / dD_i)
        d / dr_i = -E_i e_i

    The gradient takes a second pass over the data, which recomputes the features. It accumulates
    the derivative with respect to the one-dimensional functions, and differentiates through the
    small eigenproblems once (``EigenfunctionPass``).

    Args:
        basis: its grid is placed.
        x (n, d), residual (n,), noise (): inputs, y - m(x), noise variance.
        correction: see above.

    Returns:
        (): in nats, float64, and its terms without a graph.

    Exactness: exact for the kernel F^T F (+ correction).
    Cost: 1.5 n p^2 + p^3 multiply-adds with the gradient, a third of the first without; memory
    O(p^2 + block) beside the data.
    Source: Evans thesis, algorithm 4.2; the gradient is derived from it.
    """
    modes = basis.modes()
    fixed = modes._replace(transforms=modes.transforms.detach())
    inputs, r, s2 = x.detach(), residual.detach(), noise.detach()
    weights = fitted_weights(basis, fixed, inputs, r, s2, correction=correction)
    terms = evidence_terms(weights, len(x))
    value = sum(terms[1:], terms[0])
    if torch.is_grad_enabled():
        learned = [residual, noise, basis.factors.outputscale, *unit_parameters(basis)]
        gradients = _gradients(basis, modes, inputs, r, s2, weights, correction)
        value = with_gradient(
            value, learned, [g.to(t.dtype) for g, t in zip(gradients, learned, strict=True)]
        )
    return value, terms


@torch.no_grad()
def _gradients(
    basis: GridEigenfunctions,
    modes: GridModes,
    x: Tensor,
    residual: Tensor,
    noise: Tensor,
    weights: FittedWeights,
    correction: bool,
) -> list[Tensor]:
    """Gradients by residual, noise, outputscale and the kernel's parameters."""
    scale = basis.factors.outputscale.double()
    s = scale.to(x.dtype)
    u = (weights.mean / scale.sqrt()).to(x.dtype)
    inverse = inverse_of_factor(weights.factor)
    # s B^{-1}, divided by the noise if it is the same for all points
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
    effective = (1.0 - inverse.diagonal()).sum()
    squared = torch.dot(weights.mean, weights.mean)
    scale_gradient = 0.5 * (squared - effective) / scale
    if correction:
        scale_gradient = scale_gradient + gap_gradient
    else:
        # from the sums and tr(I - B^{-1})
        noise_gradient = 0.5 * (weights.fit - squared + effective - len(x)) / noise.double()
    return [residual_gradient, noise_gradient, scale_gradient, *functions.gradients()]


@runtime_checkable
class EigenfunctionModel(Protocol):
    """What the evidence needs of a model on eigenfunctions of a grid."""

    basis: GridEigenfunctions
    mean: Mean
    likelihood: Gaussian
    correction: bool

    def facts(self) -> Facts:
        """Facts for metrics.json."""


class EigenfunctionEvidence(Objective[EigenfunctionModel]):
    """Log marginal likelihood of ``GRIEF``: exact for the kernel of its eigenfunctions.

    Exactness: an estimate, but no bound, of the log marginal likelihood under the kernel itself.
    Cost and source: ``eigenfunction_evidence``.
    """

    gradient_of_inputs = False
    batching = "full"
    kind = "estimate"
    models = (EigenfunctionModel,)
    made_for = "GRIEF"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self,
        model: EigenfunctionModel,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Evidence in nats, in float64; parts are those of ``EigenfunctionTerms``."""
        value, terms = eigenfunction_evidence(
            model.basis,
            x,
            y - model.mean(x),
            model.likelihood.noise_variance,
            correction=model.correction,
        )
        return Evidence(value, self.kind, terms._asdict(), None, model.facts())
