"""Predictions for rows with missing inputs, averaged over values that these may have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

from gpx.data import Standardiser
from gpx.data.columns.coding import Coding
from gpx.likelihoods.base import class_law
from gpx.likelihoods.bernoulli import Sign

Law = Callable[[Tensor, Tensor | None], Distribution]
"""Maps standardised inputs (m, d), and the row (m,) that each belongs to (None: in order), to the
predictive distribution of their targets."""

LATTICE = 13
"""Multiplier of a Korobov lattice; must be coprime to the number of stand-ins."""


def averaged_over_gaps(
    law: Law, x: Tensor, coding: Coding | None, scaler: Standardiser
) -> Distribution:
    """Predictive distribution at inputs with missing values, averaged over stand-in values.

    A row that lacks the value of a column with ``stand_ins`` (quantiles of the training values) is
    predicted with each of them, and the distributions are averaged: normal ones become a normal
    with mean and variance of the mixture, class probabilities their mean. Other distributions are
    left as they are, with the mean filled in.

    Args:
        law: predictive distribution of complete rows.
        x (n, d): standardised inputs.
        coding: of the columns; None: the inputs are the columns.
        scaler: of the inputs.

    Cost: ``STAND_INS`` predictions for each row with a missing value, one for every other row.
    """
    found = law(x, None)
    completed = None if coding is None else completions(x, coding, scaler)
    if completed is None or type(found) not in (Normal, Categorical, Sign):
        return found
    rows, filled = completed
    count = len(filled)
    parts = law(filled.flatten(0, 1), rows.repeat(count))
    with torch.no_grad():
        if isinstance(found, Normal):
            assert isinstance(parts, Normal)
            means = parts.mean.unflatten(0, (count, -1))
            variance = parts.variance.unflatten(0, (count, -1)).mean(0)
            variance = variance + means.var(0, correction=0)
            return Normal(
                found.loc.index_copy(0, rows, means.mean(0)),
                found.scale.index_copy(0, rows, variance.sqrt()),
                validate_args=False,
            )
        assert isinstance(found, (Categorical, Sign))
        assert isinstance(parts, (Categorical, Sign))

        def average_of(name: str) -> Tensor:
            average = getattr(parts, name).unflatten(0, (count, -1)).mean(0)
            return getattr(found, name).index_copy(0, rows, average)

        if isinstance(found, Sign):
            return Sign(average_of("probs"), average_of("complement"))
        return class_law(average_of("probs"))


def completions(x: Tensor, coding: Coding, scaler: Standardiser) -> tuple[Tensor, Tensor] | None:
    """Rows (m,) with missing values, and their inputs (S, m, d) with S stand-ins filled in.

    Arguments as for ``averaged_over_gaps``. None if no row lacks a value that has stand-ins.
    """
    found, place = [], 0
    for coded in coding.columns:
        stop = place + len(coded.names)
        if coded.stand_ins:  # its last input indicates a missing value
            lacking = x[:, stop - 1] > 0.5
            if bool(lacking.any()):
                found.append((place, stop, lacking, coded.inputs(np.array(coded.stand_ins))))
        place = stop
    if not found:
        return None
    rows = torch.stack([lacking for _, _, lacking, _ in found]).any(0).nonzero()[:, 0]
    filled = x[rows].expand(len(found[0][3]), -1, -1).clone()
    for number, (start, stop, lacking, inputs) in enumerate(found):
        # several missing values of a row are paired by a lattice, not low with low
        inputs = inputs[np.arange(len(inputs)) * LATTICE**number % len(inputs)]
        mean, scale = scaler.input_mean[start:stop], scaler.input_scale[start:stop]
        made = (torch.from_numpy(inputs).to(mean) - mean) / scale
        there = lacking[rows].nonzero()[:, 0]
        filled[:, there, start:stop] = made.to(x)[:, None, :]
    return rows, filled
