"""Kernels of Evans' UCI tables (5.1, 7.1, 7.2), fitted to the rows of all folds of a data set.

An exact Gaussian process is fitted to min(n, 1000) standardised rows of the whole set, and every
fold uses its kernel and noise variance. With these kernels gpx reproduces the published errors,
which ``direct/uci.py`` and ``reweighted/uci.py`` compare with kernels fitted to training rows
only. The errors are optimistic, because test targets influence the lengthscales.

Released code of the same author (github.com/treforevans, gp_grief and direct) starts at
lengthscales, signal and noise variance of one and uses SciPy's L-BFGS-B with default tolerances
for 1000 iterations. Here there are two further starts, with lengthscales of 3 and 10, and the
largest evidence is kept: from one alone, cancer, automobile and energy end at lower maxima, far
from the published errors. The search is over logarithms. Over values behind a softplus, wine and
cancer end at another maximum, without noise and far from the published errors (wine: RMSE 0.54
instead of 0.46 for an exact Gaussian process over ten folds; published 0.47); on the other sets
both searches end alike.
"""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from record import COMMIT
from row_files import add_line, read_lines
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gpx.data import Standardiser
from gpx.data import load as load_data
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.training import LBFGSB

KERNELS = Path(__file__).resolve().parent / "whole_set_kernels.jsonl"
ROWS = 1000
MAX_EVALUATIONS = 1500
"""Largest number of evaluations of the evidence; the released code allows 1000 iterations."""

LENGTHSCALES = (1.0, 3.0, 10.0)
"""Lengthscales at which searches start, in standard deviations of the inputs."""

MIN_GAIN = 1e-3
"""A later start must gain this many nats per row; equivalent searches differ by less."""

MAX_LENGTHSCALE = 1e8
"""Largest lengthscale: the input then has no effect, and a search may end at infinity."""

MIN_NOISE = 1.1e-6
"""Smallest noise variance of a run."""

FTOL, GTOL = 2.2e-9, 1e-5
"""SciPy's default tolerances; that of the gradient is for a loss summed over rows."""


class Exponential(nn.Module):
    """Parametrises a positive parameter by its logarithm."""

    def forward(self, logarithm: Tensor) -> Tensor:
        return logarithm.exp()

    def right_inverse(self, value: Tensor) -> Tensor:
        return value.log()


def search_over_logarithms(model: nn.Module) -> None:
    """Parametrise all positive parameters by their logarithms, without lower bounds."""
    for module in list(model.modules()):
        for name in list(getattr(module, "parametrizations", {})):
            parametrize.remove_parametrizations(module, name)
            parametrize.register_parametrization(module, name, Exponential())


class WholeSetKernel(NamedTuple):
    """A fitted kernel.

    Attributes:
        lengthscales (d,): in the units of the inputs.
        signal, noise: variances, in units of ``target_scale`` squared.
        target_scale: standard deviation of all targets of the set.
    """

    lengthscales: Tensor
    signal: float
    noise: float
    target_scale: float

    def options(self, scaler: Standardiser, squared: bool) -> list[str]:
        """Options of a run on one fold that set this kernel and noise variance.

        Args:
            scaler: of the fold.
            squared: use the signal variance as the prior standard deviation of the function, in
                place of its square root.
        """
        own = (self.lengthscales / scaler.input_scale).tolist()
        share = (self.target_scale / float(scaler.target_scale)) ** 2
        signal = self.signal**2 if squared else self.signal
        return [
            "init=constants",
            "mean=zero",
            f"kernel.lengthscale={own}",
            f"kernel.outputscale={signal * share}",
            f"likelihood.noise_variance={max(self.noise * share, MIN_NOISE)}",
        ]


def scaler_of(name: str, split: int) -> Standardiser:
    """Standardisation of a fold."""
    config = composed([f"data={name}", f"data.split={split}"])
    return load_data(build(config, "data"), task="regression").scaler


def whole_set_kernel(name: str) -> WholeSetKernel:
    """The kernel of a data set, read from the file, or fitted and added to it.

    Args:
        name: of a config; configs of the same data set share one kernel.
    """
    name = str(composed([f"data={name}"]).data.name)
    row = next((row for row in read_lines(KERNELS) if row["data"] == name), None)
    if row is None:
        row = fit_kernel(name)
        add_line(KERNELS, row | {"commit": COMMIT}, itemgetter("data"))
    scales = torch.tensor(row["lengthscales"], dtype=torch.float64)
    return WholeSetKernel(scales, row["signal"], row["noise"], row["target_scale"])


def fit_kernel(name: str) -> dict[str, Any]:
    """Fit a kernel by type-II maximum likelihood to random rows of the whole set."""
    x, y, scaler = random_rows(name)
    best = best_search(x, y)
    # clamp first: an infinite lengthscale would stay infinite in any unit
    lengthscales = (
        best.pop("lengthscales").clamp(max=MAX_LENGTHSCALE) * scaler.input_scale
    ).tolist()
    row = {"data": name, "lengthscales": lengthscales, "target_scale": float(scaler.target_scale)}
    return row | best


def random_rows(
    name: str, seed: int = 0, count: int | None = ROWS
) -> tuple[Tensor, Tensor, Standardiser]:
    """Inputs (n', d) and targets (n',) of min(n, count) random rows of the whole set.

    They are standardised over the whole set. ``count=None``: all rows, in the same order.
    """
    data = load_data(build(composed([f"data={name}"]), "data"), task="regression")
    x = data.scaler.original_inputs(torch.cat([data.train_x, data.test_x]))
    y = data.scaler.original_mean(torch.cat([data.train_y, data.test_y]))
    scaler, _ = Standardiser.fit(x, y, scale_targets=True)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    return scaler.transform_inputs(x)[rows], scaler.transform_targets(y)[rows], scaler


def best_search(x: Tensor, y: Tensor) -> dict[str, Any]:
    """The search with the largest evidence; a later one must be better by MIN_GAIN."""
    best = run_search(x, y, LENGTHSCALES[0])
    ends = [best["evidence"]]
    for lengthscale in LENGTHSCALES[1:]:
        found = run_search(x, y, lengthscale)
        ends.append(found["evidence"])
        if found["evidence"] > best["evidence"] + MIN_GAIN:
            best = found
    return best | {"evidences": ends}


def run_search(x: Tensor, y: Tensor, lengthscale: float) -> dict[str, Any]:
    """Maximise the evidence once, from the same lengthscale for all inputs."""
    model = ExactGP(
        kernel=RBF(x.shape[1], lengthscale=lengthscale), mean=Zero(), likelihood=Gaussian(1.0)
    ).double()
    search_over_logarithms(model)
    objective, parameters = ExactMLL(), list(model.parameters())
    counts: list[float] = []
    LBFGSB(ftol=FTOL, gtol=GTOL / len(y)).minimise(
        parameters,
        lambda: objective.evidence(model, x, y).value / -len(y),
        MAX_EVALUATIONS,
        lambda count, loss, replayed: counts.append(loss),
    )
    kernel = model.kernel
    assert isinstance(kernel, RBF)
    return {
        "start": lengthscale,
        "lengthscales": kernel.lengthscale.detach(),
        "signal": float(kernel.outputscale.detach()),
        "noise": float(model.likelihood.noise_variance.detach()),
        "evidence": -min(counts),
        "evaluations": len(counts),
    }
