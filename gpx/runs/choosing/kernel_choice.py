"""kernel=auto: kernels compared on some rows, before the model is built.

Every candidate is fitted to a few hundred rows, and the best of them again to more. They are
compared by evidence and by what each row is predicted to be from the others
(``gpx.runs.choosing.kernel_fit.score``). Figures behind the candidates: ``experiments/auto``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from gpx.data import Dataset
from gpx.errors import ConfigError, class_name
from gpx.likelihoods import Gaussian, Likelihood
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.linalg.processes import sharing
from gpx.options.build import build
from gpx.options.kernel_expression import kernel_node, sum_of
from gpx.runs.choosing.kernel_fit import Fit, Judge, Node
from gpx.runs.choosing.method_choice import EXACT_ROWS
from gpx.runs.choosing.series_kernels import composed_kernel, likely_periods
from gpx.runs.data import require_outputs, with_facts
from gpx.sampling.seeds import stream
from gpx.training.initialisation import rows_of_outputs

Item = TypeVar("Item")

MANY_ROWS, SERIES_ROWS = 500, 300
"""Rows that every kernel is fitted to, of several inputs and of one, where the search is longer."""
MORE_ROWS = 1000
"""Rows that the best kernels are fitted to again; cost is cubic in it."""
REFINED = 4
"""Kernels that are."""
TIE = 3.0
"""Nats by which a kernel has to lead one of fewer hyperparameters (odds of 20 to 1)."""
SUBSET, CONSTANTS = "gpx.training.SubsetInitialisation", "gpx.training.ConstantInitialisation"
SHOWN = 4
"""Kernels that are named in the reason beside the one that was taken."""
OPTIONS = ("choose", "candidates", "num_points", "max_evaluations", "rounds")
FEWEST = 10
"""Rows below which kernels are not compared."""
DEFAULT = "matern52"
"""Taken where kernels cannot be compared."""
SIMPLE = ("rbf", "matern12", "matern32", "matern52", "rational_quadratic")
"""Candidates for one input."""
SUMS = ("rbf + matern12", "matern52 + matern12", "matern52(ard_num_dims=null) + matern12")
"""Further candidates for several: what is smooth in some inputs and rough in others."""
FEW_ROWS = ("rbf + linear", "matern32 + matern32 per input")
"""Further ones where no method needs correlations that fall to zero with distance."""
MOST_TERMS = 20
"""Inputs that a sum over all of them may have."""
FACTORING = ("rbf", "product_matern12", "product_matern32", "product_matern52")
"""Candidates for grids, over whose inputs a kernel has to factor."""
PER_INPUT = " per input"
"""After the name of a kernel in a candidate: a sum over the inputs of one kernel for each."""


def is_open(config: DictConfig) -> bool:
    """Whether a composed config leaves the kernel to choose."""
    node = config.get("kernel")
    return isinstance(node, DictConfig) and node.get("choose") == "auto"


def with_kernel_chosen(
    config: DictConfig,
    data: Dataset,
    grid: bool,
    folders: Sequence[Path],
    seconds: float = math.inf,
    say: Callable[[str], None] = lambda line: None,
) -> DictConfig:
    """A copy of the config with the kernel that suits the data, fitted; says why in ``facts``.

    Args:
        config: composed with ``kernel=auto``.
        data: the rows that the run trains on.
        grid: whether the model may need a kernel that factors over the inputs.
        folders: of config groups.
        seconds: after which no other kernel is tried; one is in any case.
        say: takes a line for the user, before what takes its time.

    Raises:
        ConfigError: options of another kernel, another number of targets than the likelihood takes,
            or kernels that have no evidence on the data.
    """
    options = _options(config.kernel)
    made = with_facts(config, data)
    likelihood: Likelihood = build(made, "likelihood")
    gaussian = isinstance(likelihood, (Gaussian, NoisyOutputs))
    require_outputs(data, likelihood.num_outputs, f"the likelihood {class_name(likelihood)}")
    why_not = ""
    if not gaussian and not likelihood.log_concave:
        why_not = f"under a {class_name(likelihood)} likelihood no evidence is quick enough"
    elif data.num_train < FEWEST:
        why_not = f"{data.num_train} rows are too few"
    if why_not:
        made.kernel = kernel_node(DEFAULT, folders)
        made.facts.kernel_choice = (
            f"kernel={DEFAULT}, taken by kernel=auto: {why_not} to compare kernels by"
        )
        return made
    seen = data.in_memory
    x, y = seen.train_x.double(), data.modelled(seen.train_y)
    order = torch.randperm(len(x), generator=stream(config.seed, "kernel"))
    count = options["num_points"] or (MANY_ROWS if data.num_inputs > 1 else SERIES_ROWS)
    if not gaussian:  # Newton steps to a mode for every evaluation
        count //= 2

    def judge_on(rows: Tensor) -> Judge:
        values = y[rows].double() if gaussian else y[rows]
        return Judge(made, x[rows], values, x[order[:MORE_ROWS]], options["max_evaluations"])

    judge, clock = judge_on(order[:count]), _Clock(seconds)
    usual = FACTORING if grid else candidates_for(data.num_train, data.num_inputs)
    names = options["candidates"] or usual
    nodes = {name: candidate_node(name, folders, data) for name in names}  # all can be read
    say(f"kernel=auto: compared on {len(judge.y):,} rows are {', '.join(names)}")
    fits = [judge.fit(name, nodes[name]) for name in clock.until(names)]
    if data.num_inputs == 1 and not grid:
        best = max(fits, key=lambda fit: fit.score)
        first_x, first_y = rows_of_outputs(x, y)[0]
        periods = likely_periods(first_x[:, 0], first_y)
        composed_kernel(best, judge, periods, folders, fits, options["rounds"] * clock.left)
    elif data.num_inputs > 1 and clock.left:
        fits += _with_one_lengthscale(fits, nodes, judge)
    fits.sort(key=lambda fit: -fit.score)
    if gaussian and len(judge.y) < min(len(x), MORE_ROWS):
        judge = judge_on(order[:MORE_ROWS])
        again = clock.until([fit for fit in fits[:REFINED] if fit.score > -math.inf])
        refined = [judge.fit(fit.name, fit.node, fit.likelihood) for fit in again]
        if any(fit.score > -math.inf for fit in refined):
            fits = sorted(refined, key=lambda fit: -fit.score)
    if fits[0].score == -math.inf:
        raise ConfigError(
            "kernel=auto: no kernel has a finite evidence on these data; name one, kernel=rbf"
        )
    near = [fit for fit in fits if fit.score > fits[0].score - TIE]
    best = min(near, key=lambda fit: fit.hyperparameters)  # of equals the first, which scores most
    made.kernel, made.likelihood = best.node, best.likelihood
    if best.node != nodes.get(best.name) and _starts_as_well(made.init, len(judge.y), len(x)):
        made.init = {"_target_": CONSTANTS}
    made.facts.kernel_choice = _told(best, fits, len(judge.y), clock)
    return made


def _starts_as_well(init: DictConfig | None, rows: int, total: int) -> bool:
    """Whether a fit to so many of all rows is what ``init=`` would do once more."""
    if init is None or init.get("_target_") != SUBSET:
        return False
    return bool(min(init.get("num_points", total), total) <= rows)


def _with_one_lengthscale(
    fits: Sequence[Fit], nodes: Mapping[str, Node], judge: Judge
) -> Iterator[Fit]:
    """The best kernel that has a lengthscale for each input, fitted with one for all."""
    for fit in sorted(fits, key=lambda fit: -fit.score):
        node = nodes[fit.name]
        if node.get("ard_num_dims") is not None and not isinstance(node.get("lengthscale"), list):
            yield judge.fit(f"{fit.name}(ard_num_dims=null)", {**node, "ard_num_dims": None})
            return


def _told(best: Fit, fits: Sequence[Fit], rows: int, clock: _Clock) -> str:
    """The choice as the run says it."""
    # of fits of one name, which differ in where they began (a period), the best is told
    first = {fit.name: fit for fit in sorted(fits, key=lambda fit: fit.score)}
    others = [fit for fit in fits if fit is first[fit.name] and fit.name != best.name]
    text = f"kernel='{best.name}', chosen by kernel=auto: evidence/point {best.evidence:+.3f}"
    if best.predictive is not None:
        text += f", each point given the others {best.predictive:+.3f}"
    text += f", on {rows:,} rows"
    if others:
        listed = ", ".join(f"{fit.name} {fit.score - best.score:+.1f}" for fit in others[:SHOWN])
        text += f"; others, in nats against it (more parameters need +{TIE:g}): {listed}"
    if clock.skipped:
        text += f"; trainer.budget left no time for {clock.skipped} kernels"
    return text


class _Clock:
    """Ends a list when time is up.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds
        self.skipped = 0

    @property
    def left(self) -> bool:
        """Whether there is time left."""
        (late,) = sharing().all_max(float(time.perf_counter() >= self.end))
        return not late

    def until(self, items: Sequence[Item]) -> Iterator[Item]:
        """The first of the items, and the others while there is time."""
        for place, item in enumerate(items):
            if place and not self.left:
                self.skipped += len(items) - place
                return
            yield item


def candidates_for(num_train: int, num_inputs: int) -> tuple[str, ...]:
    """The kernels that are compared where none are named."""
    if num_inputs == 1:
        return SIMPLE
    found = (*SIMPLE, *SUMS)
    if num_train > EXACT_ROWS["cpu"]:
        return found
    return (*found, *(FEW_ROWS if num_inputs <= MOST_TERMS else FEW_ROWS[:1]))


def candidate_node(name: str, folders: Sequence[Path], data: Dataset) -> Node:
    """The config of a candidate: a kernel's name or expression, in which the last term may end in
    `` per input``."""
    if not name.endswith(PER_INPUT):
        return kernel_node(name, folders)
    rest, plus, each = name.removesuffix(PER_INPUT).rpartition("+")
    if not each.strip().isidentifier():
        raise ConfigError(
            f"kernel.candidates={name}: '{PER_INPUT.strip()}' goes after the name of one kernel, "
            f"the last term, for example 'matern32 + rbf{PER_INPUT}'"
        )
    terms = []
    for place in range(data.num_inputs):
        term = kernel_node(f"{each.strip()}(active_dims=[{place}])", folders)
        if "outputscale" in term:  # together they have the variance of one kernel
            term["outputscale"] = 1.0 / data.num_inputs
        terms.append(term)
    return sum_of([kernel_node(rest, folders), *terms] if plus else terms)


def _options(node: DictConfig) -> dict[str, Any]:
    unknown = [str(name) for name in node if name not in OPTIONS]
    if unknown:
        raise ConfigError(
            f"kernel.{unknown[0]} is an option of certain kernels, and kernel=auto chooses the "
            "kernel itself: name one, for example kernel=matern32"
        )
    for name in ("num_points", "max_evaluations"):
        if name == "num_points" and node[name] is None:
            continue
        if not isinstance(node[name], int) or node[name] < 2:
            raise ConfigError(f"kernel.{name}={node[name]}: expected a whole number above 1")
    if not isinstance(node.rounds, int) or node.rounds < 0:
        raise ConfigError(f"kernel.rounds={node.rounds}: expected a whole number, 0 or more")
    found: dict[str, Any] = {name: node[name] for name in OPTIONS}
    candidates = node.candidates
    if candidates is None:
        return found
    if not OmegaConf.is_list(candidates) or not len(candidates):
        raise ConfigError(
            f"kernel.candidates={candidates}: expected a list of kernels, such as [rbf,matern32]"
        )
    found["candidates"] = [str(name) for name in candidates]
    return found
