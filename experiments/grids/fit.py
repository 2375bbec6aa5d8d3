"""Timed training and solving on a grid, used by every script of this folder."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gpx.bounds import lower_limits
from gpx.kernels import AxisProduct, Matern12
from gpx.kernels.periodic import Periodic
from gpx.kernels.warped import Warped
from gpx.methods.grid.posterior import GridPosterior
from gpx.models import GridGP
from gpx.objectives import GridMLL
from gpx.training.lbfgsb import LBFGSB


class Fit(NamedTuple):
    """What training found.

    Attributes:
        posterior: at the hyperparameters of largest evidence.
        evidence: its log evidence in nats.
        evaluations: of evidence and gradient.
        iterations: of conjugate gradients, all evaluations and the last solve.
        seconds: of the processor, for training and the last solve.
    """

    posterior: GridPosterior
    evidence: float
    evaluations: int
    iterations: int
    seconds: float


def fit(model: GridGP, x: Tensor, y: Tensor, evaluations: int) -> Fit:
    """Maximise the evidence (log-determinant: Nystrom, in every method alike), then solve."""
    objective = GridMLL("nystrom")
    counts: list[int] = []
    values: list[float] = []

    def loss() -> Tensor:
        found = objective.evidence(model, x, y)
        counts.append(int(found.facts.get("solver_iterations", 0)))
        values.append(float(found.value.detach()))
        return -found.value / len(y)

    start = time.process_time()
    if evaluations:
        parameters = [p for p in model.parameters() if p.requires_grad]
        limits = lower_limits(model, parameters)
        LBFGSB().minimise(parameters, loss, evaluations, lambda *_: None, lower=limits)
    model.warm.zero_()  # steps of a cold start
    posterior = model.condition(x, y)
    seconds = time.process_time() - start
    last = posterior.report.iterations if posterior.report else 0
    best = max(values, default=float("nan"))
    return Fit(posterior, best, len(values), sum(counts) + last, seconds)


def lengthscales(kernel: AxisProduct) -> list[float]:
    """One number per axis."""
    return [float(part.lengthscale[0].detach()) for part in kernel.parts]


def copy_parameters(source: GridGP, target: GridGP) -> None:
    """Copy the hyperparameters of one model to another with the same kernel."""
    with torch.no_grad():
        for a, b in zip(source.parameters(), target.parameters(), strict=True):
            b.copy_(a)


def circle(column: int, period: float, lengthscale: float) -> Periodic:
    """A periodic factor whose period is known."""
    kernel = Periodic(lengthscale=lengthscale, outputscale=None, active_dims=[column])
    kernel.period = torch.tensor(period)
    kernel.parametrizations["period"].original.requires_grad_(False)
    return kernel


class OnCircle(nn.Module):
    """g(x) = (cos, sin)(2 pi x / period): any kernel of it is periodic, with its own roughness."""

    def __init__(self, period: float) -> None:
        super().__init__()
        self.period = period

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1) -> (n, 2)."""
        angle = x * (2.0 * math.pi / self.period)
        return torch.cat([angle.cos(), angle.sin()], 1)


def rough_circle(
    column: int, period: float, lengthscale: float, family: type[Any] = Matern12
) -> Warped:
    """A periodic factor: a Matern kernel, 1/2 unless told otherwise, over the chord."""
    kernel = family(lengthscale=lengthscale, outputscale=None)
    return Warped(kernel, OnCircle(period), [column])


def random_share(shape: tuple[int, ...], share: float, seed: int) -> Tensor:
    """Cells chosen at random, flat."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).reshape(-1) < share


def tensors(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    """NumPy arrays in float64."""
    return tuple(torch.from_numpy(np.ascontiguousarray(a, dtype=np.float64)) for a in arrays)


def rmse(a: Tensor, b: Tensor) -> float:
    """Root mean square difference."""
    return float((a - b).square().mean().sqrt())
