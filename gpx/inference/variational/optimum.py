"""The optimal q(v) under Gaussian noise, of separate or mixed outputs, from sums over the data."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.constraints import is_trained
from gpx.errors import DataError
from gpx.inference.nystrom import BlockStore, NystromSums, nystrom_sums
from gpx.inference.nystrom_matrix import InnerFactor, best_noise
from gpx.inference.variational.strategy import InducingVariables
from gpx.likelihoods import Gaussian, GaussianOutputs, Likelihood, MixedOutputs
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import RelativeResidual, conjugate_gradients
from gpx.means.base import Mean

GAUSSIAN = (Gaussian, GaussianOutputs)
"""Likelihoods whose optimal q(v) has a closed form."""

OPTIMAL = (*GAUSSIAN, MixedOutputs)
"""Likelihoods whose optimal q(v), independent over the latent functions, is known."""

TOLERANCE, MAX_STEPS = 1e-8, 2000
"""Relative residual and step limit (with a warning) of the linear system for the means of mixed
outputs."""

SUMS_CHUNK = 2**16
"""Rows whose residuals are in memory at once while sums over all data are computed."""


def row_scale(noise: RowNoise | None, likelihood: Gaussian | NoisyOutputs) -> Tensor | None:
    """Factors (n,) that scale each row to the likelihood's noise variance; None: no scaling.

    Args:
        noise: known noise of each row; with several outputs only its weights are used.
    """
    if noise is None:
        return None
    if likelihood.num_outputs > 1:
        return noise.relative.double().rsqrt()
    learned = likelihood.noise_variance.double()
    return (learned / noise.like(learned).variance(learned)).sqrt()


def whitened_sums(
    variables: InducingVariables,
    mean: Mean,
    x: Tensor,
    y: Tensor,
    scale: Tensor | None = None,
    mean_shares: Tensor | None = None,
) -> NystromSums:
    """The sums that the optimal q(v) depends on, in float64: O(n M^2), memory independent of n.

    Args:
        variables: u at the current hyperparameters.
        mean: prior mean of f.
        x (n, d), y (n,) or (n, p).
        scale (n,): factors of rows, ``row_scale``; None: ones.
        mean_shares (p,) or (): multiples of the prior mean in each output; None: one.
    """
    whitener, found = variables.whitener(), None
    start = 0
    for rows, targets in zip(x.split(SUMS_CHUNK), y.split(SUMS_CHUNK), strict=True):
        own = None if scale is None else scale[start : start + len(rows)]
        start += len(rows)
        store = BlockStore(whitener, rows, dtype=torch.float64, scale=own)
        column = (-1, *(1 for _ in y.shape[1:]))
        prior = mean(rows).view(column)
        residual = targets - (prior if mean_shares is None else prior * mean_shares)
        part = nystrom_sums(store, residual if own is None else residual * own.view(column))
        found = part if found is None else found.plus(part)
    assert found is not None  # there are rows
    return found


class OutputSums(NamedTuple):
    """Sums of each output over the rows that have a target of it.

    Attributes:
        each: p sums, of one output.
        counts: rows of each.
    """

    each: list[NystromSums]
    counts: list[int]

    def outputs(self) -> list[NystromSums]:
        """Those of each output alone."""
        return self.each


def observed_sums(
    variables: InducingVariables,
    mean: Mean,
    x: Tensor,
    y: Tensor,
    scale: Tensor | None = None,
    mean_shares: Tensor | None = None,
) -> OutputSums:
    """``whitened_sums`` of each output over its own rows, where targets y (n, p) are missing (NaN).

    Raises:
        DataError: an output without any target.

    Cost: p times that of ``whitened_sums``, or once where none is missing.
    """
    # of rows that are read from files (``gpx.lazy_rows``) no target is missing
    if y.ndim == 1 or not isinstance(y, Tensor) or not bool(y.isnan().any()):
        found = whitened_sums(variables, mean, x, y, scale, mean_shares).outputs()
        return OutputSums(found, [len(x)] * len(found))
    each, counts = [], []
    for j, targets in enumerate(y.unbind(1)):
        rows = ~targets.isnan()
        if not bool(rows.any()):
            raise DataError(f"output {j} of {y.shape[1]} has no target in any row; leave it out")
        own = None if scale is None else scale[rows]
        share = None if mean_shares is None else mean_shares[j]
        each.append(whitened_sums(variables, mean, x[rows], targets[rows], own, share))
        counts.append(int(rows.sum()))
    return OutputSums(each, counts)


def whitened_optimum(
    sums: NystromSums | OutputSums, likelihood: Gaussian | GaussianOutputs
) -> tuple[Tensor, Tensor]:
    """Mean (p, M) and lower factor (p, M, M) of the q(v) of highest bound at this noise."""
    noises = likelihood.noise_variance.double().view(-1)
    inner = [InnerFactor(s, n) for s, n in zip(sums.outputs(), noises, strict=True)]
    return torch.stack([i.weights for i in inner]), torch.stack([i.inverse_root() for i in inner])


@torch.no_grad()
def raise_noise(
    sums: NystromSums | OutputSums,
    num_data: int | list[int],
    likelihood: Gaussian | NoisyOutputs,
) -> None:
    """Raise the noise variance of every output to the maximiser of its collapsed bound, if larger.

    Hyperparameters fitted to a subset have too little noise for a sparse model, whose noise also
    covers the variance that the inducing points cannot explain. A noise variance that is not
    trained stays as it is.
    """
    if not is_trained(likelihood, "noise_variance"):
        return
    current = likelihood.noise_variance
    noises = current.double().view(-1)
    counts = num_data if isinstance(num_data, list) else [num_data] * len(noises)
    best = [
        best_noise(s, n, noise) for s, n, noise in zip(sums.outputs(), counts, noises, strict=True)
    ]
    likelihood.noise_variance = torch.maximum(
        current, torch.stack(best).view_as(current).to(current.dtype)
    )


def optimal_variational(
    sums: OutputSums, likelihood: Gaussian | GaussianOutputs | MixedOutputs
) -> tuple[Tensor, Tensor]:
    """``mixed_optimum`` for mixed outputs, else ``whitened_optimum``."""
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
        sums: of each output, of residuals around its multiple of the prior mean (``mean_shares``).

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
        max_iterations=MAX_STEPS,
        on_failure="warn",
    )
    return found.solution.view(shape), torch.stack([each.inverse_root() for each in own])


def mean_shares(likelihood: Likelihood) -> Tensor | None:
    """Multiples of the latents' prior mean in each output, (p,); None: one."""
    return likelihood.mixing.detach().sum(1) if isinstance(likelihood, MixedOutputs) else None


def per_output_sums(sums: OutputSums, likelihood: Likelihood) -> OutputSums:
    """Sums of each output as if it were one function of its total prior variance."""
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
