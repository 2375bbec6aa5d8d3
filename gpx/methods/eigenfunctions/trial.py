"""Comparison of starts for training: each is trained briefly on a few rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch
from scipy.optimize import Bounds, minimize
from torch import Tensor, nn

from gpx.bases.base import Spent, never
from gpx.bases.grid_eigenfunctions.data_pass import feature_sums
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.bases.grid_eigenfunctions.start import scales_for
from gpx.bounds import limits_within
from gpx.constraints import is_trained, set_above_floor
from gpx.errors import NotPositiveDefinite
from gpx.flat_parameters import assign, limits_of, values_of
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.eigenfunctions.evidence import eigenfunction_evidence

TRIAL_TOLERANCE = 1e-7
"""Relative gain of an iteration at which a trial ends."""


class _TimeUp(Exception):
    """Ends an optimisation because time is up."""


def best_start(
    basis: GridEigenfunctions,
    mean: Mean,
    likelihood: Gaussian,
    x: Tensor,
    y: Tensor,
    starts: Sequence[Callable[[], object]],
    evaluations: int,
    *,
    correction: bool = False,
    spent: Spent = never,
) -> tuple[int, list[float]]:
    """Train each start briefly, and set the model to the one with the largest evidence.

    The evidence before training does not always indicate the better optimum. Starts are trained
    as the model will be, with eigenfunctions selected at the start and then fixed.

    Args:
        basis, mean, likelihood: of the model; set to the best parameters and selection found.
        x (n, d), y (n,): the rows to train on.
        starts: functions that set the kernel to a start.
        evaluations: of evidence and gradient, for each start (a line search may add a few).
        correction: of the model.
        spent: returns True when time is up; called before every evaluation but the first of each
            start. Then the results so far are compared, and no further start is tried.

    Returns:
        index of the best start, and the evidence per point reached by each.

    Cost: 1.5 n p^2 + p^3 multiply-adds per evaluation.
    Source: Evans thesis, algorithm 4.2 (evidence).
    """
    modules = nn.ModuleList([basis.kernel, mean, likelihood])
    x, y = x.double(), y.double()
    begin = _copied(modules)
    found: list[tuple[float, dict[str, Tensor], Tensor]] = []
    for start in starts:
        if found and spent():
            break
        modules.load_state_dict(begin)
        start()
        basis.select()
        set_scales(basis, likelihood, x, y - mean(x).detach())
        value = _train(basis, modules, x, y, evaluations, correction, spent)
        found.append((value, _copied(modules), basis.index.clone()))
    values = [value for value, _, _ in found]
    best = max(range(len(found)), key=lambda i: values[i])
    modules.load_state_dict(found[best][1])
    basis.choose(found[best][2])
    return best, values


def _copied(modules: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in modules.state_dict().items()}


@torch.no_grad()
def set_scales(basis: GridEigenfunctions, likelihood: Gaussian, x: Tensor, residual: Tensor) -> str:
    """Set outputscale and noise variance to the maximum of the evidence; see ``scales_for``.

    Of a kernel whose scale is fixed only the noise variance is set; a fixed one stays.
    """
    sums = feature_sums(basis, basis.modes(), x, residual)
    fixed = None if basis.factors.learned_scales else basis.factors.outputscale
    learned = is_trained(likelihood, "noise_variance")
    known = None if learned else likelihood.noise_variance.double()
    outputscale, noise, remark = scales_for(sums, x.shape[1], fixed, known)
    basis.factors.set_outputscale(outputscale)
    if learned:
        set_above_floor(likelihood, "noise_variance", noise)
    return remark


def _train(
    basis: GridEigenfunctions,
    modules: nn.ModuleList,
    x: Tensor,
    y: Tensor,
    evaluations: int,
    correction: bool,
    spent: Spent,
) -> float:
    """Train; returns the evidence per point at the best parameters, which are set."""
    parameters = [p for p in modules.parameters() if p.requires_grad]
    _, mean, likelihood = modules
    assert isinstance(likelihood, Gaussian)
    best, place = -math.inf, values_of(parameters)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, place
        if best > -math.inf and spent():
            raise _TimeUp
        vector = torch.from_numpy(point)
        assign(parameters, vector)
        with torch.enable_grad():
            value, _ = eigenfunction_evidence(
                basis, x, y - mean(x), likelihood.noise_variance, correction=correction
            )
            slopes = torch.autograd.grad(
                value, parameters, allow_unused=True, materialize_grads=True
            )
        per_point = float(value.detach()) / len(x)
        if per_point > best:
            best, place = per_point, vector
        return -per_point, values_of(slopes).numpy() / -len(x)

    lowest, highest = (limits_of(parameters, each) for each in limits_within(modules, parameters))
    first = np.clip(place.numpy(), lowest, highest)
    with suppress(NotPositiveDefinite, _TimeUp):  # the best is kept
        minimize(
            loss,
            first,
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(lowest, highest),
            options={"maxfun": evaluations, "ftol": TRIAL_TOLERANCE},
        )
    assign(parameters, place)
    return best
