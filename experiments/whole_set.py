"""Kernels of Evans' UCI tables (5.1, 7.1, 7.2): an exact Gaussian process on a whole set.

One kernel a set, of min(n, 1000) of all its rows, those of the test folds among them, standardised;
every fold then takes this kernel and noise variance. It is the reading under which the published
errors come out (``direct/uci.py`` and ``reweighted/uci.py`` show them beside kernels fitted to
training rows alone), and it flatters them: test targets have a part in the lengthscales.

Released code of the same author (github.com/treforevans, gp_grief and direct) fits from
lengthscales, signal and noise variance of one by SciPy's L-BFGS-B at its default tolerances, for
1000 iterations; so here, and from lengthscales of 3 and 10 as well, of which the largest evidence
is kept: from one alone cancer, automobile and energy end at lower maxima, far from the published
errors. Over logarithms: over values behind a softplus the search on wine and
cancer, whose evidence has another maximum without noise, ends there, far from the published errors
(wine 0.54 for 0.46, an exact Gaussian process over ten folds; published 0.47); elsewhere both end
alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from record import COMMIT
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
MOST = 1500
"""Evaluations of the evidence; 1000 iterations in the source."""

LENGTHSCALES = (1.0, 3.0, 10.0)
"""Where searches start, in standard deviations of the inputs."""

WORTHWHILE = 1e-3
"""Nats a row that a later start must gain: searches that end alike differ by less."""

FLAT = 1e8
"""Lengthscale beyond which an input is off; a search over logarithms may end at infinity."""

LEAST_NOISE = 1.1e-6
"""Variance that a run takes in the place of none."""

FTOL, GTOL = 2.2e-9, 1e-5
"""SciPy's defaults, the second for a loss that is a sum over rows."""


class Exponential(nn.Module):
    """A positive parameter by its logarithm."""

    def forward(self, logarithm: Tensor) -> Tensor:
        return logarithm.exp()

    def right_inverse(self, value: Tensor) -> Tensor:
        return value.log()


def by_logarithms(model: nn.Module) -> None:
    """Let a search see the logarithms of all positive parameters, without floors."""
    for module in list(model.modules()):
        for name in list(getattr(module, "parametrizations", {})):
            parametrize.remove_parametrizations(module, name)
            parametrize.register_parametrization(module, name, Exponential())


class WholeSetKernel(NamedTuple):
    """A fitted kernel.

    Attributes:
        lengthscales (d,): in the units of the inputs.
        signal, noise: variances, in squared standard deviations of all targets.
        target_scale: that standard deviation, in the unit of the targets.
    """

    lengthscales: Tensor
    signal: float
    noise: float
    target_scale: float

    def options(self, scaler: Standardiser, squared: bool) -> list[str]:
        """What gives a run on one fold this kernel.

        Args:
            scaler: of the fold.
            squared: the prior deviation of the function is the signal variance, not its root.
        """
        own = (self.lengthscales / scaler.input_scale).tolist()
        share = (self.target_scale / float(scaler.target_scale)) ** 2
        signal = self.signal**2 if squared else self.signal
        return [
            "init=constants",
            "mean=zero",
            f"kernel.lengthscale={own}",
            f"kernel.outputscale={signal * share}",
            f"likelihood.noise_variance={max(self.noise * share, LEAST_NOISE)}",
        ]


def scaler_of(name: str, split: int) -> Standardiser:
    """Units of a fold."""
    config = composed([f"data={name}", f"data.split={split}"])
    return load_data(build(config, "data"), task="regression").scaler


def whole_set_kernel(name: str) -> WholeSetKernel:
    """The kernel of a set, from the file or fitted and added to it.

    Args:
        name: of its config; several configs may name one set, which has one kernel.
    """
    name = str(composed([f"data={name}"]).data.name)
    lines = KERNELS.read_text().splitlines() if KERNELS.exists() else []
    known = [json.loads(line) for line in lines]
    row = next((row for row in known if row["data"] == name), None)
    if row is None:
        row = fitted(name)
        with KERNELS.open("a") as file:
            file.write(json.dumps(row | {"commit": COMMIT}) + "\n")
    scales = torch.tensor(row["lengthscales"], dtype=torch.float64)
    return WholeSetKernel(scales, row["signal"], row["noise"], row["target_scale"])


def fitted(name: str) -> dict[str, Any]:
    """Type-II maximum likelihood on random rows of the whole set."""
    x, y, scaler = random_rows(name)
    best = best_search(x, y)
    # before it takes units, so that what is off stays a number
    lengthscales = (best.pop("lengthscales").clamp(max=FLAT) * scaler.input_scale).tolist()
    row = {"data": name, "lengthscales": lengthscales, "target_scale": float(scaler.target_scale)}
    return row | best


def random_rows(
    name: str, seed: int = 0, count: int | None = ROWS
) -> tuple[Tensor, Tensor, Standardiser]:
    """Inputs (n', d) and targets (n',) of min(n, count) rows of the whole set, in its own units.

    None: all of them, in the order in which fewer would be taken.
    """
    data = load_data(build(composed([f"data={name}"]), "data"), task="regression")
    x = data.scaler.original_inputs(torch.cat([data.train_x, data.test_x]))
    y = data.scaler.original_mean(torch.cat([data.train_y, data.test_y]))
    scaler, _ = Standardiser.fit(x, y, scale_targets=True)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    return scaler.transform_inputs(x)[rows], scaler.transform_targets(y)[rows], scaler


def best_search(x: Tensor, y: Tensor) -> dict[str, Any]:
    """The search with the largest evidence; one that ends alike leaves an earlier one in place."""
    best = searched(x, y, LENGTHSCALES[0])
    ends = [best["evidence"]]
    for lengthscale in LENGTHSCALES[1:]:
        found = searched(x, y, lengthscale)
        ends.append(found["evidence"])
        if found["evidence"] > best["evidence"] + WORTHWHILE:
            best = found
    return best | {"evidences": ends}


def searched(x: Tensor, y: Tensor, lengthscale: float) -> dict[str, Any]:
    """One search for the largest evidence, from a lengthscale that all inputs have."""
    model = ExactGP(
        kernel=RBF(x.shape[1], lengthscale=lengthscale), mean=Zero(), likelihood=Gaussian(1.0)
    ).double()
    by_logarithms(model)
    objective, parameters = ExactMLL(), list(model.parameters())
    counts: list[float] = []
    LBFGSB(ftol=FTOL, gtol=GTOL / len(y)).minimise(
        parameters,
        lambda: objective.evidence(model, x, y).value / -len(y),
        MOST,
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
