"""The optimal q(v) of outputs that mix latent functions, from sums over all the data."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gpx.inference.nystrom_matrix import InnerFactor
from gpx.inference.variational.optimum import GAUSSIAN, OutputSums, whitened_optimum
from gpx.likelihoods import Gaussian, GaussianOutputs, Likelihood, MixedOutputs
from gpx.linalg import RelativeResidual, conjugate_gradients

OPTIMAL = (*GAUSSIAN, MixedOutputs)
"""Likelihoods whose optimal q(v), with a Gaussian of each latent function, is known."""

TOLERANCE, MOST_STEPS = 1e-8, 2000
"""Of the one linear system that the means are the solution of; a warning says where they do not
do."""


def best_variational(
    sums: OutputSums, likelihood: Gaussian | GaussianOutputs | MixedOutputs
) -> tuple[Tensor, Tensor]:
    """``mixed_optimum`` or, of outputs with a function each, ``whitened_optimum``."""
    if isinstance(likelihood, MixedOutputs):
        return mixed_optimum(sums, likelihood)
    return whitened_optimum(sums, likelihood)


@torch.no_grad()
def mixed_optimum(sums: OutputSums, likelihood: MixedOutputs) -> tuple[Tensor, Tensor]:
    """Mean (q, M) and lower factor (q, M, M) of the q(v) = prod_l q(v_l) of highest bound.

    With the Gram matrix G_j and the projected residual b_j of each output, over the rows that have
    it, q(v_l) has the precision I + sum_j W_jl^2 G_j / s_j, and the means solve
    m_l + sum_j W_jl / s_j G_j sum_k W_jk m_k = sum_j W_jl / s_j b_j together, s_j the noise.

    Args:
        sums: of each output, residuals around what it has of the prior mean (``mean_shares``).

    Cost: O(q M^3), and p M^2 a step of conjugate gradients.
    """
    mixing = likelihood.mixing.double()
    weighed = mixing / likelihood.noise_variance.double()[:, None]
    grams = [each.gram for each in sums.each]
    right = weighed.mT @ torch.stack([each.projected for each in sums.each])
    own = [
        InnerFactor(
            replace(sums.each[0], gram=_total(share, grams), projected=b), share.new_ones(())
        )
        for share, b in zip((weighed * mixing).unbind(1), right, strict=True)
    ]
    shape = right.shape

    def product(v: Tensor) -> Tensor:
        outputs = mixing @ v.view(shape)
        seen = torch.stack([gram @ each for gram, each in zip(grams, outputs, strict=True)])
        return v + (weighed.mT @ seen).view_as(v)

    def blocks(v: Tensor) -> Tensor:
        pairs = zip(own, v.view(shape), strict=True)
        return torch.cat([each.solve(part[:, None]) for each, part in pairs])

    found = conjugate_gradients(
        product,
        right.reshape(-1, 1),
        preconditioner=blocks,
        stop=RelativeResidual(TOLERANCE),
        max_iterations=MOST_STEPS,
        on_failure="warn",
    )
    return found.solution.view(shape), torch.stack([each.inverse_root() for each in own])


def mean_shares(likelihood: Likelihood) -> Tensor | None:
    """How many times each output has the latents' prior mean, (p,); None: once."""
    return likelihood.mixing.detach().sum(1) if isinstance(likelihood, MixedOutputs) else None


def apart(sums: OutputSums, likelihood: Likelihood) -> OutputSums:
    """Sums of each output as of a function of its own, of the prior variance that it has."""
    if not isinstance(likelihood, MixedOutputs):
        return sums
    variances = likelihood.mixing.detach().double().square().sum(1)
    each = [
        replace(
            own,
            gram=own.gram * variance,
            projected=own.projected * variance.sqrt(),
            trace_error=own.trace_error * variance,
        )
        for own, variance in zip(sums.each, variances, strict=True)
    ]
    return sums._replace(each=each)


def _total(shares: Tensor, matrices: list[Tensor]) -> Tensor:
    total = torch.zeros_like(matrices[0])
    for share, matrix in zip(shares, matrices, strict=True):
        total.addcmul_(share, matrix)
    return total
