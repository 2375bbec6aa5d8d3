"""Predictions for rows with missing inputs, averaged over values that these may have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)

from gpx.data import Standardiser
from gpx.data.columns.coding import Coding
from gpx.inference.finite_mixture import mixture_moments
from gpx.likelihoods.base import class_law
from gpx.likelihoods.bernoulli import Sign
from gpx.likelihoods.quantiles import RowsReplaced, select_rows
from gpx.methods.base.posterior import Marginals

logger = logging.getLogger(__name__)

Law = Callable[[Tensor, Tensor | None], Distribution]
"""Maps standardised inputs (m, d), and the row (m,) that each belongs to (None: in order), to the
predictive distribution of their targets."""

FIRST_SEED = 380
"""Seed of the order of the first column's stand-ins. With it the orders of the first six columns
have correlations of at most 0.15."""


def averaged_over_gaps(
    law: Law, x: Tensor, coding: Coding | None, scaler: Standardiser
) -> Distribution:
    """Predictive distribution at inputs with missing values, averaged over stand-in values.

    A row that lacks the value of a column with ``stand_ins`` (quantiles of the training values) is
    predicted with each of them, and the distributions are averaged: normal ones become a normal
    with mean and variance of the mixture, also as components of mixtures and jointly for several
    outputs; class probabilities become their mean; others (counts, proportions) a mixture of all.
    A distribution that ``select_rows`` does not know is left as it is, with the mean filled in and
    a warning in the log.

    Args:
        law: predictive distribution of complete rows.
        x (n, d): standardised inputs.
        coding: of the columns; None: the inputs are the columns.
        scaler: of the inputs.

    Cost: ``STAND_INS`` predictions for each row with a missing value, one for every other row.
    """
    found = law(x, None)
    completed = None if coding is None else completions(x, coding, scaler)
    if completed is None:
        return found
    rows, filled = completed
    count = len(filled)
    parts = law(filled.flatten(0, 1), rows.repeat(count))
    with torch.no_grad():
        if isinstance(found, (Categorical, Sign)):

            def average_of(name: str) -> Tensor:
                average = getattr(parts, name).unflatten(0, (count, -1)).mean(0)
                return getattr(found, name).index_copy(0, rows, average)

            if isinstance(found, Sign):
                return Sign(average_of("probs"), average_of("complement"))
            return class_law(average_of("probs"))
        try:
            weights = parts.mean.new_full((count, len(rows)), 1.0 / count)
            return _averaged_normals(found, parts, rows, weights)
        except NotImplementedError:
            pass
        try:
            places = torch.arange(count * len(rows), device=rows.device).view(count, -1).mT
            each = select_rows(parts, places)
            share = Categorical(probs=torch.ones_like(places, dtype=each.mean.dtype))
            return RowsReplaced(found, rows, MixtureSameFamily(share, each))
        except NotImplementedError:
            logger.warning(
                "a %s cannot be averaged over missing values: the mean is filled in",
                type(found).__name__,
            )
            return found


Family = TypeVar("Family", bound=Distribution)


def _averaged_normals(found: Family, parts: Family, rows: Tensor, weights: Tensor) -> Distribution:
    """``found`` (n, ...) with averages in place of some rows, which have the moments of mixtures.

    Args:
        found: normal, or multivariate normal; independent ones or a mixture of normal ones.
        parts: of the same family, batch shape (S * m, ...): S distributions for each row.
        rows (m,): to replace.
        weights (S, m, ...): of the parts, adding up to one over S.

    Raises:
        NotImplementedError: another family.
    """
    split = len(weights), -1
    if isinstance(found, Independent):
        one, base = weights.unsqueeze(-1), parts.base_dist  # type: ignore[attr-defined]
        each = one.expand(*weights.shape, *base.batch_shape[weights.ndim - 1 :])
        averaged = _averaged_normals(found.base_dist, base, rows, each)
        return Independent(averaged, found.reinterpreted_batch_ndims)
    if isinstance(found, MixtureSameFamily):
        shares = parts.mixture_distribution.probs.unflatten(0, split)  # type: ignore[attr-defined]
        joint = weights.unsqueeze(-1) * shares
        total = joint.sum(0)
        # a component without any probability has no conditional weights
        given = torch.where(total > 0.0, joint / total, weights.unsqueeze(-1))
        of_parts = parts.component_distribution  # type: ignore[attr-defined]
        averaged = _averaged_normals(found.component_distribution, of_parts, rows, given)
        probs: Tensor = found.mixture_distribution.probs
        probs = probs.index_copy(0, rows, total.to(probs))
        return MixtureSameFamily(Categorical(probs=probs), averaged)
    means = parts.mean.unflatten(0, split)
    if isinstance(found, Normal):
        variances = parts.variance.unflatten(0, split)
        weights = weights.reshape(*weights.shape, *[1] * (means.ndim - weights.ndim))
        weights = weights.expand_as(means)  # of several outputs: one weight of all
        moments = mixture_moments(
            Marginals(means.flatten(1), variances.flatten(1)), weights.flatten(1)
        )
        mean, variance = (moment.view_as(means[0]) for moment in moments)
        return Normal(
            found.loc.index_copy(0, rows, mean),
            found.scale.index_copy(0, rows, variance.sqrt()),
            validate_args=False,
        )
    if isinstance(found, (LowRankMultivariateNormal, MultivariateNormal)):
        covariances = parts.covariance_matrix.unflatten(0, split)  # type: ignore[attr-defined]
        share = weights[..., None]
        mean = (share * means).sum(0)
        away = (means - mean).double()
        between = away.unsqueeze(-1) * away.unsqueeze(-2)
        covariance = (share[..., None] * (covariances.double() + between)).sum(0)
        factor = torch.linalg.cholesky(covariance).to(mean)
        return MultivariateNormal(
            found.loc.index_copy(0, rows, mean),
            scale_tril=found.scale_tril.index_copy(0, rows, factor),
            validate_args=False,
        )
    raise NotImplementedError


def order_of(number: int, count: int) -> NDArray[np.int64]:
    """A fixed order of 0 .. count - 1 for the column with this number.

    Several missing values of a row are paired as if they were independent, not low with low.
    """
    # of the generators of NumPy only this one has the same numbers in every version
    return np.random.RandomState(FIRST_SEED + number).permutation(count)


def completions(x: Tensor, coding: Coding, scaler: Standardiser) -> tuple[Tensor, Tensor] | None:
    """Rows (m,) with missing values, and their inputs (S, m, d) with S stand-ins filled in.

    Arguments as for ``averaged_over_gaps``. None if no row lacks a value that has stand-ins.
    """
    found = []
    averaged = [(coded, span) for coded, span in coding.spans if coded.stand_ins]
    # numbered among all such columns: a prediction does not depend on other rows
    for number, (coded, span) in enumerate(averaged):
        lacking = x[:, span[-1]] > 0.5  # their last input indicates a missing value
        if bool(lacking.any()):
            values = np.array(coded.stand_ins)
            inputs = coded.inputs(values[order_of(number, len(values))])
            found.append((span.start, span.stop, lacking, inputs))
    if not found:
        return None
    rows = torch.stack([lacking for _, _, lacking, _ in found]).any(0).nonzero()[:, 0]
    filled = x[rows].expand(len(found[0][3]), -1, -1).clone()
    for start, stop, lacking, inputs in found:
        mean, scale = scaler.input_mean[start:stop], scaler.input_scale[start:stop]
        made = (torch.from_numpy(inputs).to(mean) - mean) / scale
        there = lacking[rows].nonzero()[:, 0]
        filled[:, there, start:stop] = made.to(x)[:, None, :]
    return rows, filled
