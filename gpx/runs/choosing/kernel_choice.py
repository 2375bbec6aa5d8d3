"""``kernel=auto``: compare kernels on some of the rows, before the model is built.

Every candidate is fitted to a few hundred rows, and the best of them again to more. They are
compared by evidence and leave-one-out predictions (``gpx.runs.choosing.kernel_fit.score``), those
of classes and of many inputs under a prior that the run keeps. The candidates were selected by
``experiments/auto``. Further ones follow from their fits: sums and seasons of a series, one
lengthscale for all inputs, sums of kernels of one input each, seasons of dates beside other inputs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from omegaconf import DictConfig
from torch import Tensor

from gpx.data import Dataset
from gpx.data.target_transform import TargetTransform
from gpx.errors import ConfigError, DataError, class_name
from gpx.likelihoods import Gaussian, Likelihood
from gpx.likelihoods.base import is_classification
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.linalg.processes import sharing
from gpx.options.build import build
from gpx.options.kernel_expression import kernel_node, with_terms_per_input
from gpx.runs.categorical_kernel import columns_of_kernel
from gpx.runs.choosing.additive_kernels import JOINT, additive_kernels, is_additive
from gpx.runs.choosing.date_seasons import seasons_of_dates
from gpx.runs.choosing.kernel_candidates import (
    FACTORING,
    MANY_VARIANCES,
    SIMPLE,
    candidates_for,
    taken_by_method,
)
from gpx.runs.choosing.kernel_fit import Fit, KernelFitter, Node
from gpx.runs.choosing.kernel_options import options_of_choice, require_free_kernel
from gpx.runs.choosing.kernel_prior import PRIOR, has_many_inputs, set_prior, takes_priors
from gpx.runs.choosing.learned_ties import without_learned_ties
from gpx.runs.choosing.method_choice import EXACT_ROWS
from gpx.runs.choosing.series_kernels import composed_kernel, decomposed
from gpx.runs.data import require_outputs, with_facts
from gpx.sampling.seeds import stream
from gpx.training.exact_outputs import rows_of_outputs
from gpx.training.several_fits import with_lengthscales

Item = TypeVar("Item")

NUM_ROWS, NUM_SERIES_ROWS = 500, 300
"""Rows that every kernel is fitted to, with several inputs and with one (a longer search)."""
NUM_REFIT_ROWS = 1000
"""Rows that the best kernels are fitted to again; cost is cubic in it."""
NUM_REFITS = 4
"""Number of kernels that are fitted again."""
REQUIRED_LEAD = 3.0
"""Nats by which a kernel must lead one of fewer hyperparameters (odds of 20 to 1)."""
FORECAST_LEAD = 0.1
"""Nats per row by which a series must be forecast better, to prefer more hyperparameters."""
SEASONAL_LEAD = 0.1
"""Nats per row by which seasons of dates must lead where there are many rows: methods that follow
the nearest rows do not see seasons, and the one that is taken in their place is less exact."""
SUBSET, CONSTANTS = "gpx.training.SubsetInitialisation", "gpx.training.ConstantInitialisation"
NUM_SHOWN = 4
"""Number of other kernels that the reason names."""
MIN_ROWS = 10
"""With fewer rows kernels are not compared."""
DEFAULT = "matern52"
"""Used if kernels cannot be compared."""


def with_kernel_chosen(
    config: DictConfig,
    data: Dataset,
    grid: bool,
    folders: Sequence[Path],
    seconds: float = math.inf,
    say: Callable[[str], None] = lambda line: None,
) -> DictConfig:
    """A copy of the config with the best kernel, fitted, and the reason in its ``facts``.

    Args:
        config: composed with ``kernel=auto``.
        data: the rows that the run trains on.
        grid: whether the kernel must factor over the inputs.
        folders: of config groups.
        seconds: no further kernel is tried after this time; at least one is.
        say: takes lines for the user.

    Raises:
        ConfigError: options of a certain kernel, another number of targets than the likelihood
            takes, or no kernel with a finite evidence.
    """
    options = options_of_choice(config.kernel)
    require_free_kernel(config)
    made = with_facts(config, data)
    likelihood: Likelihood = build(made, "likelihood")
    gaussian = isinstance(likelihood, (Gaussian, NoisyOutputs))
    require_outputs(data, likelihood.num_outputs, f"the likelihood {class_name(likelihood)}")
    if why_not := _why_not_compared(likelihood, gaussian, data):
        made.kernel = kernel_node(DEFAULT, folders)
        made.facts.kernel_choice = (
            f"kernel={DEFAULT}, the default of kernel=auto: {why_not} to compare kernels"
        )
        return made
    many = gaussian and not grid and has_many_inputs(data) and made.get("prior") is None
    with_prior = made.get("prior") is None and is_classification(likelihood.task)
    if with_prior:
        set_prior(made, PRIOR)
    seen = data.in_memory
    x, y = seen.train_x.double(), data.modelled(seen.train_y)
    order = torch.randperm(len(x), generator=stream(config.seed, "kernel"))
    count = options["num_points"] or (NUM_ROWS if data.num_inputs > 1 else NUM_SERIES_ROWS)
    if not gaussian:  # each evaluation of Laplace's approximation takes Newton steps
        count //= 2

    def fitter_on(rows: Tensor, under_prior: bool = False) -> KernelFitter:
        values = y[rows].double() if gaussian else y[rows]
        more, noise = order[:NUM_REFIT_ROWS], None
        if gaussian and seen.train_noise is not None:
            noise = seen.train_noise.of(rows), seen.train_noise.of(more)
        most = options["max_evaluations"]
        priors = build(made, "prior") if under_prior or not gaussian else None
        return KernelFitter(made, x[rows], values, x[more], most, noise, priors)

    fitter, clock = fitter_on(order[:count]), _Clock(seconds)
    plane = len(fitter.y) == data.num_train and config.get("prior") is None
    usual = FACTORING if grid else candidates_for(data.num_train, data.num_inputs, plane)
    if fitter.of_classes:
        usual = tuple(name for name in usual if name not in MANY_VARIANCES)
    names = options["candidates"] or usual
    columns = columns_of_kernel(made, data)
    nodes = {name: with_terms_per_input(kernel_node(name, folders), columns) for name in names}
    if names is usual:
        names = usual = taken_by_method(nodes, made)
        nodes = {name: nodes[name] for name in names}
    starts = list(nodes.values())
    say(f"kernel=auto: comparing on {len(fitter.y):,} rows: {', '.join(names)}")
    fits = [fitter.fit(name, nodes[name]) for name in clock.until(names)]
    if data.num_inputs == 1 and not grid:
        best = max(fits, key=lambda fit: fit.score)
        first_x, first_y = rows_of_outputs(x, y)[0]
        series = decomposed(first_x[:, 0], first_y)
        rounds = options["rounds"] * clock.left
        composed_kernel(best, fitter, series, folders, fits, rounds, clock.until)
    elif data.num_inputs > 1 and clock.left:
        sums, seasons = names is usual, names is usual and not grid
        for fit, start in _of_several_inputs(
            tuple(fits), nodes, fitter, seen, folders, sums, seasons, clock
        ):
            fits.append(fit)
            starts.append(start)
    fits = sorted(without_learned_ties(fits, fitter.y), key=lambda fit: -fit.score)
    if gaussian and len(fitter.y) < min(len(x), NUM_REFIT_ROWS):
        fitter = fitter_on(order[:NUM_REFIT_ROWS])
        again = clock.until(_for_refits(fits, names))
        refined = [fitter.fit(fit.name, fit.node, fit.likelihood) for fit in again]
        if any(fit.score > -math.inf for fit in refined):
            refined = without_learned_ties(refined, fitter.y)
            fits = sorted(refined, key=lambda fit: -fit.score)
    if fits[0].score == -math.inf:
        raise ConfigError(
            "kernel=auto: no kernel has a finite evidence on these data; name one, such as "
            "kernel=rbf"
        )
    lead = 0.0 if fitter.of_classes else REQUIRED_LEAD
    best = _preferred([fit for fit in fits if fit.score >= fits[0].score - lead])
    if many and best.hyperparameters < data.num_inputs and clock.left:
        set_prior(made, PRIOR)
        under = fitter_on(order[: len(fitter.y)], under_prior=True)
        able = [name for name in names if name in SIMPLE]
        others = [under.fit(name, nodes[name]) for name in clock.until(able)]
        first = max(others, key=lambda fit: fit.score, default=best)
        with_prior = _predicts_better(first, best, len(fitter.y))
        if with_prior:
            best, fits = first, [*others, *fits]
        else:
            set_prior(made, None)
    made.kernel, made.likelihood = best.node, best.likelihood
    scaled = with_prior and bool(with_lengthscales(build(made, "kernel"))) and takes_priors(made)
    if with_prior and not scaled:
        set_prior(made, None)
    # the config takes over the values of the kernel, but not the level of a function
    replaced = not fitter.has_level and _replaces_init(made.init, len(fitter.y), len(x))
    if best.node not in starts and replaced:
        made.init = {"_target_": CONSTANTS}
    made.facts.kernel_choice = _describe(best, fits, len(fitter.y), clock)
    if scaled:
        made.facts.kernel_choice += "; with prior=dimension_scaled, which the run keeps"
    single = data.num_inputs == data.num_outputs == 1 and data.train_noise is None
    if gaussian and single and clock.left:
        lead = _lead_of_logarithm(best, fitter, seen, order[: len(fitter.y)])
        if lead > REQUIRED_LEAD:
            made.facts.kernel_choice += (
                f"; the logarithm of the target has an evidence {lead:.1f} nats higher: "
                "try data.target_transform=log"
            )
    return made


def _why_not_compared(likelihood: Likelihood, gaussian: bool, data: Dataset) -> str:
    """Why the default kernel is taken without a comparison; empty where there is one."""
    if not gaussian and not likelihood.suits_laplace():
        name = class_name(likelihood)
        return f"Laplace's approximation takes no {name} likelihood, and bounds are too slow"
    if data.num_train < MIN_ROWS:
        return f"{data.num_train} rows are too few"
    if data.derivatives:  # a comparison takes targets for functions that share a kernel
        return "derivatives are no independent targets"
    return ""


def _predicts_better(first: Fit, second: Fit, rows: int) -> bool:
    """Whether rows left out one at a time are better predicted by more than a nat for each further
    hyperparameter, by which fits to the same rows raise their density (Akaike 1974)."""
    if first.predictive is None or second.predictive is None:
        return False
    further = first.hyperparameters - second.hyperparameters
    return rows * (first.predictive - second.predictive) > further


def _lead_of_logarithm(best: Fit, fitter: KernelFitter, data: Dataset, rows: Tensor) -> float:
    """Evidence of the kernel fitted to logarithms of the targets minus that of the targets, nats.

    Both are densities of the targets in their own unit: the Jacobian is included. -inf where a
    target is not positive, where all logarithms are equal to rounding, or where targets are
    transformed already.
    """
    y = data.scaler.original_mean(data.train_y[rows].double())
    if data.target_transform is not None or not bool((y > 0.0).all()) or y.min() == y.max():
        return -math.inf
    try:
        log = TargetTransform.fitted("log", y.cpu().numpy())
    except DataError:
        return -math.inf
    other = KernelFitter(fitter.config, fitter.x, log(y), fitter.more, fitter.max_evaluations)
    fit = other.fit(best.name, best.node, best.likelihood)
    unit = data.scaler.original_std(torch.ones_like(y)).log().sum()
    return len(y) * (fit.evidence - best.evidence) + float(log.log_slope(y).sum() + unit)


def _preferred(near: Sequence[Fit]) -> Fit:
    """The kernel of fewest hyperparameters among those of about equal score.

    Of a series those alone that forecast its later part about as well as the best: kernels that
    describe the rows equally well can differ widely beyond them.
    """
    most = max((fit.forecast for fit in near if fit.forecast is not None), default=-math.inf)
    able = [f for f in near if f.forecast is None or f.forecast >= most - FORECAST_LEAD]
    # of equals the first has the best score
    return min(able, key=lambda fit: fit.hyperparameters)


def _replaces_init(init: DictConfig | None, rows: int, total: int) -> bool:
    """Whether the fit to ``rows`` of ``total`` rows makes that of ``init=`` unnecessary."""
    if init is None or init.get("_target_") != SUBSET:
        return False
    return bool(min(init.get("num_points", total), total) <= rows)


def _for_refits(fits: Sequence[Fit], names: Sequence[str]) -> list[Fit]:
    """The best ``NUM_REFITS`` of fits in order, but one alone of the sums of a kernel per input.

    These are alike, and would leave no place for a kernel of all inputs, which more rows may
    favour. Those among the candidates ``names`` stay.
    """
    able = [fit for fit in fits if fit.score > -math.inf]
    additive = [fit for fit in able if is_additive(fit.name) and fit.name not in names]
    return [fit for fit in able if fit not in additive[1:]][:NUM_REFITS]


def _of_several_inputs(
    fits: Sequence[Fit],
    nodes: Mapping[str, Node],
    fitter: KernelFitter,
    data: Dataset,
    folders: Sequence[Path],
    sums: bool,
    seasons: bool,
    clock: _Clock,
) -> Iterator[tuple[Fit, Node]]:
    """Fits of kernels that follow from ``fits``, each with the config that it started from.

    Args:
        fits: of the candidates.
        nodes: configs of the candidates before their fit.
        fitter: fits kernels.
        data: the training rows.
        folders: of config groups.
        sums, seasons: whether sums of a kernel per input may follow, and seasons of dates.
        clock: nothing follows after its end.
    """
    known = list(fits)
    for fit, start in _with_one_lengthscale(fits, nodes, fitter):
        known.append(fit)
        yield fit, start
    if sums and any(fit.name == JOINT for fit in known):
        joint = nodes[JOINT]
        additive = additive_kernels(tuple(known), joint, fitter, folders, lambda: clock.left)
        for fit, start in additive:
            known.append(fit)
            yield fit, start
    if seasons:
        few = data.num_train <= EXACT_ROWS["cpu"]
        least = max(fit.score for fit in known) + (0.0 if few else SEASONAL_LEAD * len(fitter.y))
        for fit, start in seasons_of_dates(known, data, fitter, folders, lambda: clock.left):
            if fit.score > least:
                yield fit, start


def _with_one_lengthscale(
    fits: Sequence[Fit], nodes: Mapping[str, Node], fitter: KernelFitter
) -> Iterator[tuple[Fit, Node]]:
    """The best kernel with a lengthscale for each input, fitted with one for all, and its start."""
    for fit in sorted(fits, key=lambda fit: -fit.score):
        node = nodes[fit.name]
        if node.get("ard_num_dims") is not None and not isinstance(node.get("lengthscale"), list):
            start = {**node, "ard_num_dims": None}
            yield fitter.fit(f"{fit.name}(ard_num_dims=null)", start), start
            return


def _describe(best: Fit, fits: Sequence[Fit], rows: int, clock: _Clock) -> str:
    """The choice and its reason, for the user and metrics.json."""
    # fits of the same name started from different values (a period): only the best is shown
    first = {fit.name: fit for fit in sorted(fits, key=lambda fit: fit.score)}
    others = [fit for fit in fits if fit is first[fit.name] and fit.name != best.name]
    others = [fit for fit in others if fit.score > -math.inf]
    text = (
        f"kernel='{best.name}', chosen by kernel=auto on {rows:,} rows: "
        f"evidence/point {best.evidence:+.3f}"
    )
    if best.predictive is not None:
        text += f", leave-one-out log density/point {best.predictive:+.3f}"
    shown = others[:NUM_SHOWN]
    if shown:
        listed = ", ".join(f"{fit.name} {fit.score - best.score:+.1f}" for fit in shown)
        text += f"; scores of others relative to it, in nats: {listed}"
        if any(fit.score > best.score for fit in shown):
            text += f" (one with more hyperparameters must lead by {REQUIRED_LEAD:g})"
    if best.forecast is not None:
        text += f"; forecasts of its last three tenths, log density/point {best.forecast:+.3f}"
    if clock.skipped:
        text += f"; trainer.budget left no time to compare {clock.skipped} kernels"
    return text


class _Clock:
    """Limits a loop to a number of seconds from now."""

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds
        self.skipped = 0

    @property
    def left(self) -> bool:
        """Whether there is time left."""
        (late,) = sharing().all_max(float(time.perf_counter() >= self.end))
        return not late

    def until(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yield the first item, and further ones while there is time."""
        for place, item in enumerate(items):
            if place and not self.left:
                self.skipped += len(items) - place
                return
            yield item
