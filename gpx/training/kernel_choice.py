"""kernel=auto: kernels compared by their evidence on some rows, before the model is built."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from scipy.signal import lombscargle
from torch import Tensor, nn

from gpx.constraints import lower_limits
from gpx.data import Dataset
from gpx.errors import ConfigError, DidNotConverge, NotPositiveDefinite, class_name
from gpx.kernels import Kernel
from gpx.likelihoods import Gaussian, GaussianOutputs, Likelihood
from gpx.methods.base.model import Hyperparameters
from gpx.models import LaplaceGP
from gpx.objectives import ExactMLL, LaplaceEvidence
from gpx.sampling.seeds import stream
from gpx.training.build import build
from gpx.training.initialisation import exact_outputs, take_over
from gpx.training.kernel_expression import kernel_node, product_of, sum_of
from gpx.training.lbfgsb import LBFGSB
from gpx.training.run_data import with_facts

Node = dict[str, Any]

SEASONS = 2
"""Periods that are tried in a series, those of the highest peaks of its periodogram."""
LEAST_NOISE = 1e-6
MORE_ROWS = 1000
"""A run starts from a fit whose noise is at least this share of the prior variance, and whose
kernel matrix of so many rows has a Cholesky factor; else from the constants of the kernel, as it
does where a kernel is named."""
SHOWN = 4
"""Kernels that are named in the reason beside the one that was taken."""
OPTIONS = ("choose", "candidates", "num_points", "max_evaluations", "rounds")


@dataclass(frozen=True)
class Fit:
    """A kernel fitted to the rows.

    Attributes:
        name: its expression.
        node: its config, with the hyperparameters found.
        likelihood: that of the likelihood beside it: a kernel with little left to explain does not
            start from noise that explains it all.
        evidence: nats per row.
        score: nats, the evidence less half of log n for every hyperparameter (Schwarz 1978).
    """

    name: str
    node: Node
    likelihood: Node
    evidence: float
    score: float


def is_open(config: DictConfig) -> bool:
    """Whether a composed config leaves the kernel to choose."""
    node = config.get("kernel")
    return isinstance(node, DictConfig) and node.get("choose") == "auto"


def with_kernel_chosen(
    config: DictConfig, data: Dataset, grid: bool, folders: Sequence[Path]
) -> DictConfig:
    """A copy of the config with the kernel that suits the data, fitted; says why in ``facts``.

    Args:
        config: composed with ``kernel=auto``.
        data: the run's.
        grid: whether the model may need a kernel that factors over the inputs.
        folders: of config groups.

    Raises:
        ConfigError: options of another kernel, or kernels that have no evidence on the data.
    """
    options = _options(config.kernel, grid)
    made = with_facts(config, data)
    seen = data.in_memory
    draws = stream(config.seed, "kernel")
    order = torch.randperm(len(seen.train_x), generator=draws)
    rows = order[: options["num_points"]]
    likelihood: Likelihood = build(made, "likelihood")
    gaussian = isinstance(likelihood, (Gaussian, GaussianOutputs))
    if not gaussian and not likelihood.log_concave:
        made.kernel = kernel_node(DEFAULT, folders)
        made.facts.kernel_choice = (
            f"kernel={DEFAULT}, taken by kernel=auto: under a {class_name(likelihood)} likelihood "
            "no evidence is quick enough to compare kernels by"
        )
        return made
    if not gaussian:  # Newton steps to a mode for every evaluation
        rows = rows[: options["num_points"] // 2]
    judge = _Judge(
        made,
        seen.train_x[rows].double(),
        seen.train_y[rows],
        seen.train_x[order[:MORE_ROWS]].double(),
        options["max_evaluations"],
    )
    fits = [judge.fit(name, kernel_node(name, folders)) for name in options["candidates"]]
    best = max(fits, key=lambda fit: fit.score)
    if data.num_inputs == 1 and not grid:
        best = _composed(best, judge, seen, folders, fits, options["rounds"])
    elif data.num_inputs > 1 and best.node.get("ard_num_dims") is not None:
        shared = f"{best.name}(ard_num_dims=null)"
        fits.append(judge.fit(shared, kernel_node(shared, folders)))
        best = max(fits, key=lambda fit: fit.score)
    if best.score == -math.inf:
        raise ConfigError(
            "kernel=auto: no kernel has a finite evidence on these data; name one, kernel=rbf"
        )
    made.kernel, made.likelihood = best.node, best.likelihood
    others = sorted((f for f in fits if f is not best), key=lambda fit: -fit.score)[:SHOWN]
    listed = ", ".join(f"{fit.name} {fit.evidence:+.3f}" for fit in others)
    made.facts.kernel_choice = (
        f"kernel='{best.name}', chosen by kernel=auto: evidence/point {best.evidence:+.3f} on "
        f"{len(rows):,} rows; {listed}"
    )
    return made


def _options(node: DictConfig, grid: bool) -> dict[str, Any]:
    unknown = [str(name) for name in node if name not in OPTIONS]
    if unknown:
        raise ConfigError(
            f"kernel.{unknown[0]} is an option of certain kernels, and kernel=auto chooses the "
            "kernel itself: name one, for example kernel=matern32"
        )
    for name in ("num_points", "max_evaluations"):
        if not isinstance(node[name], int) or node[name] < 2:
            raise ConfigError(f"kernel.{name}={node[name]}: expected a whole number above 1")
    if not isinstance(node.rounds, int) or node.rounds < 0:
        raise ConfigError(f"kernel.rounds={node.rounds}: expected a whole number, 0 or more")
    found: dict[str, Any] = {name: node[name] for name in OPTIONS}
    candidates = node.candidates
    if candidates is None:
        candidates = FACTORING if grid else GENERAL
    elif not OmegaConf.is_list(candidates) or not len(candidates):
        raise ConfigError(
            f"kernel.candidates={candidates}: expected a list of kernels, such as [rbf,matern32]"
        )
    found["candidates"] = [str(name) for name in candidates]
    return found


DEFAULT = "matern52"
"""Taken where kernels cannot be compared."""
GENERAL = ("rbf", "matern12", "matern32", "matern52", "rational_quadratic")
FACTORING = ("rbf", "product_matern12", "product_matern32", "product_matern52")
"""Candidates for grids, over whose inputs a kernel has to factor."""


class _Judge:
    """Fits kernels to the same rows.

    Args:
        config: with ``facts``; its mean and likelihood are fitted with every kernel.
        x (n, d), y (n,) or (n, p): the rows.
        more (m, d): these and more inputs, which the start of a run has to bear.
        max_evaluations: of the evidence, for each kernel.
    """

    def __init__(
        self, config: DictConfig, x: Tensor, y: Tensor, more: Tensor, max_evaluations: int
    ) -> None:
        self.config, self.x, self.y, self.more = config, x, y, more
        self.max_evaluations = max_evaluations
        self.mean = build(config, "mean")
        self.likelihood: Likelihood = build(config, "likelihood")
        self.gaussian = isinstance(self.likelihood, (Gaussian, GaussianOutputs))

    def fit(self, name: str, node: Node) -> Fit:
        """The kernel of ``node`` at its largest evidence; score -inf where it has none."""
        filled = copy.deepcopy(self.config)
        filled.kernel = node
        kernel: Kernel = build(filled, "kernel")
        kernel.double()
        parts = Hyperparameters(
            kernel, copy.deepcopy(self.mean).double(), copy.deepcopy(self.likelihood).double()
        )
        try:
            fitted, evidence = self._maximise(parts)
        except (NotPositiveDefinite, DidNotConverge):
            return Fit(name, node, {}, -math.inf, -math.inf)
        count = sum(p.numel() for p in fitted.kernel.parameters() if p.requires_grad)
        n = len(self.y)
        score = n * evidence - 0.5 * count * math.log(n)
        stored = OmegaConf.to_container(self.config.likelihood, resolve=False)
        assert isinstance(stored, dict)
        likelihood: Node = {str(option): value for option, value in stored.items()}
        if isinstance(fitted.likelihood, Gaussian):  # that of several outputs takes one number
            if not self._is_start(fitted.kernel, fitted.likelihood.noise_variance.detach()):
                return Fit(name, node, likelihood, evidence, score)
            likelihood = with_values(likelihood, fitted.likelihood)
        return Fit(name, with_values(node, fitted.kernel), likelihood, evidence, score)

    @torch.no_grad()
    def _is_start(self, kernel: Kernel, noise: Tensor) -> bool:
        """Whether more rows than were fitted have a Cholesky factor with something to spare."""
        variance = kernel.diagonal(self.more).max()
        if not bool(noise >= LEAST_NOISE * variance):
            return False
        covariance = kernel.evaluate(self.more, self.more)
        covariance.diagonal().add_(0.5 * noise)
        return int(torch.linalg.cholesky_ex(covariance).info) == 0

    def _maximise(self, parts: Hyperparameters) -> tuple[Hyperparameters, float]:
        """The parts at the largest evidence, and that evidence per row."""
        module: nn.Module
        if self.gaussian:
            exact, objective = exact_outputs(parts), ExactMLL()
            outputs = self.y.double().reshape(len(self.y), -1).unbind(1)
            module = nn.ModuleList(exact)

            def loss() -> Tensor:
                pairs = zip(exact, outputs, strict=True)
                return torch.stack([objective(each, self.x, y) for each, y in pairs]).sum()
        else:
            laplace, approximate = LaplaceGP(**parts._asdict()), LaplaceEvidence()
            module = laplace

            def loss() -> Tensor:
                return approximate(laplace, self.x, self.y)

        parameters = list(module.parameters())
        if parameters:
            LBFGSB(ftol=1e-6, gtol=1e-3).minimise(
                parameters,
                loss,
                self.max_evaluations,
                lambda *_: None,
                lower=lower_limits(module, parameters),
            )
        with torch.no_grad():
            value = -float(loss())
        if self.gaussian:
            take_over(exact, parts)
        return parts, value if math.isfinite(value) else -math.inf


def with_values(node: Node, part: Any) -> Node:
    """The config of a kernel or likelihood with what it has learned in the place of what it began
    with."""
    made = dict(node)
    if isinstance(node.get("kernels"), list):
        pairs = zip(node["kernels"], part.kernels, strict=True)
        made["kernels"] = [with_values(each, kernel) for each, kernel in pairs]
        return made
    if isinstance(node.get("kernel"), dict):
        made["kernel"] = with_values(node["kernel"], part.kernel)
    for option, initial in node.items():
        value = getattr(part, option, None)
        if initial is not None and isinstance(value, Tensor):
            made[option] = value.detach().tolist()
    return made


def _composed(
    best: Fit,
    judge: _Judge,
    data: Dataset,
    folders: Sequence[Path],
    fits: list[Fit],
    rounds: int,
) -> Fit:
    """Of a series: terms and factors are added as long as the score rises.

    Every round starts from the kernel found, so that what it has learned is not lost.
    Source: Duvenaud et al. 2013 (greedy search), with Schwarz's criterion.
    """
    periods = likely_periods(data.train_x[:, 0], data.train_y.reshape(len(data.train_y), -1)[:, 0])
    for _ in range(rounds):
        grown = [judge.fit(name, node) for name, node in _grown(best, periods, folders)]
        fits.extend(grown)
        found = max(grown, key=lambda fit: fit.score)
        if found.score <= best.score:
            break
        best = found
    return best


def _grown(
    best: Fit, periods: Sequence[float], folders: Sequence[Path]
) -> Iterator[tuple[str, Node]]:
    """The kernel with one more term: a trend, a smooth part, or a season, fixed or fading."""
    for name in ("rbf",) if "linear" in best.name else ("linear", "rbf"):
        yield f"{best.name} + {name}", sum_of([*_terms(best.node), kernel_node(name, folders)])
    for period in periods:
        season = kernel_node("periodic", folders) | {"period": period}
        fading = product_of([kernel_node("rbf", folders) | {"lengthscale": 3.0}, season])
        for name, node in (("periodic", season), ("rbf*periodic", fading)):
            yield f"{best.name} + {name}", sum_of([*_terms(best.node), node])


def _terms(node: Node) -> list[Node]:
    return list(node["kernels"]) if node["_target_"] == "gpx.kernels.Sum" else [node]


def likely_periods(x: Tensor, y: Tensor) -> list[float]:
    """Periods, in the unit of x, of the highest peaks of the periodogram of a series.

    Args:
        x (n,), y (n,): positions in any order, and values; at most 5,000 of them are looked at. A
            cubic trend is taken off first.

    Source: Lomb 1976, Scargle 1982.
    """
    step = max(1, len(x) // 5000)
    at, values = x[::step].double().numpy(), y[::step].double().numpy()
    span = float(at.max() - at.min())
    if len(at) < 20 or span == 0.0:
        return []
    values = values - np.polyval(np.polyfit(at, values, 3), at)
    # from three cycles over the data to two rows a cycle, at a third of the width of a peak
    cycles = np.arange(3.0, len(at) / 2, 1 / 3)
    if not len(cycles) or not values.any():
        return []
    power = lombscargle(at, values, 2.0 * math.pi * cycles / span)
    found: list[float] = []
    for place in np.argsort(-power):
        if all(abs(cycles[place] - span / known) > 1.0 for known in found):
            found.append(span / float(cycles[place]))
        if len(found) == SEASONS:
            break
    return found
