"""Predictions for rows that lack a value, averaged over the values it may have had."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

from gpx.data import Standardiser
from gpx.data.columns.coding import Coding
from gpx.likelihoods.bernoulli import Sign

Law = Callable[[Tensor, Tensor | None], Distribution]
"""Standardised inputs (m, d), and which rows (m,) they stand for (None: all, in order), to the law
of their targets."""

LATTICE = 13
"""Multiplier of a Korobov lattice; it has no factor in common with the number of stand-ins."""


def over_gaps(law: Law, x: Tensor, coding: Coding | None, scaler: Standardiser) -> Distribution:
    """The law at inputs of which some lack a value, given that it is like those of training.

    A row that lacks values of columns with ``stand_ins`` is predicted at each of these, as a row
    that has it, and the laws are averaged: of numbers mean and variance (a normal law that has
    those of the mixture), of classes the probabilities. Laws of other kinds are left as they are.

    Args:
        law: of complete rows.
        x (n, d): standardised.
        coding: of the columns; None: inputs are the columns.
        scaler: of the inputs.

    Cost: ``STAND_INS`` predictions for each row that lacks a value, one for the others.
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
        probs = parts.probs.unflatten(0, (count, -1)).mean(0)
        probs = found.probs.index_copy(0, rows, probs)
        return Sign(probs) if isinstance(found, Sign) else Categorical(probs=probs)


def completions(x: Tensor, coding: Coding, scaler: Standardiser) -> tuple[Tensor, Tensor] | None:
    """Rows (m,) that lack a value with stand-ins, and their inputs (S, m, d) with these.

    Arguments as for ``over_gaps``. None where no row lacks one.
    """
    found, place = [], 0
    for coded in coding.columns:
        stop = place + len(coded.names)
        if coded.stand_ins:  # its last input says that the value is missing
            lacking = x[:, stop - 1] > 0.5
            if bool(lacking.any()):
                found.append((place, stop, lacking, coded.inputs(np.array(coded.stand_ins))))
        place = stop
    if not found:
        return None
    rows = torch.stack([lacking for _, _, lacking, _ in found]).any(0).nonzero()[:, 0]
    filled = x[rows].expand(len(found[0][3]), -1, -1).clone()
    for number, (start, stop, lacking, inputs) in enumerate(found):
        # where a row lacks several values, theirs are paired as a lattice, not low with low
        inputs = inputs[np.arange(len(inputs)) * LATTICE**number % len(inputs)]
        mean, scale = scaler.input_mean[start:stop], scaler.input_scale[start:stop]
        made = (torch.from_numpy(inputs).to(mean) - mean) / scale
        there = lacking[rows].nonzero()[:, 0]
        filled[:, there, start:stop] = made.to(x)[:, None, :]
    return rows, filled
