"""Closed forms of basis functions that a program without gpx can evaluate."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Waves(NamedTuple):
    """phi_j(x) = amplitude_j cos(2 pi (turns_j . x + start_j)).

    Attributes:
        turns (m, d): frequencies in turns per unit of x.
        start (m,): phase at the origin in turns: 0 for a cosine, 3/4 for a sine.
        amplitude (m,).
    """

    turns: Tensor
    start: Tensor
    amplitude: Tensor


class AxisProducts(NamedTuple):
    """phi_j(x) = amplitude_j prod_k g_k,which_jk(x_k), of functions of one input each.

    Attributes:
        functions: t points of every axis (t, d) -> the c functions of every axis there (d, c, t).
        low (d,), high (d,): range of validity; inputs beyond are moved to the nearer end.
        which (m, d): int64, below c.
        amplitude (m,).
    """

    functions: Callable[[Tensor], Tensor]
    low: Tensor
    high: Tensor
    which: Tensor
    amplitude: Tensor


class Radial(NamedTuple):
    """phi_j(x) = amplitude_j h(|rate * x - centre_j|^2).

    Attributes:
        centres (m, d), rate (d,): a rate of zero excludes a column.
        profile: h, elementwise; largest at zero.
        amplitude (m,).
    """

    centres: Tensor
    rate: Tensor
    profile: Callable[[Tensor], Tensor]
    amplitude: Tensor


ClosedForm = Waves | AxisProducts | Radial
