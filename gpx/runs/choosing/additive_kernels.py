"""``kernel=auto`` for several inputs: whether the function is a sum of functions of one input.

The sum of a kernel of all inputs and one of each input is fitted like any other candidate. Where
the former may be unnecessary the latter are fitted alone, and exchanged for smoother ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpx.options.kernel_expression import kernel_node, sum_of
from gpx.runs.choosing.kernel_fit import Fit, KernelFitter, Node

PER_INPUT = " per input"
FIRST = "matern32"
JOINT = f"{FIRST} + {FIRST}{PER_INPUT}"
"""The sum that is looked at, with the kernel of all inputs first."""
LINEAR = "linear"
SMOOTHER = {"matern52": math.sqrt(5.0 / 9.0), "rbf": math.sqrt(3.0 / 5.0)}
"""Kernels that follow it, and the factor of lengthscales with which the derivative keeps its
variance."""
KEPT = ("active_dims", "ard_num_dims", "outputscale")
"""Options that a term hands on to the one it is exchanged for."""
TRIAL = 10
"""Evaluations of the evidence after which terms that are behind the sum are given up. They start
from the values that they have in it; where these could not be kept, all evaluations are made."""


def additive_kernels(
    fits: Sequence[Fit],
    unfitted: Node,
    fitter: KernelFitter,
    folders: Sequence[Path],
    has_time: Callable[[], bool],
) -> Iterator[tuple[Fit, Node]]:
    """Fits of sums of one kernel per input, each with the config that it started from.

    The first is ``JOINT`` without its kernel of all inputs, if that may be unnecessary. While the
    score improves, its terms are then exchanged for smoother ones.

    Args:
        fits: of other kernels to the same rows, ``JOINT`` among them.
        unfitted: config of ``JOINT`` before its fit.
        fitter: fits kernels.
        folders: of config groups.
        has_time: whether there is time for another fit.
    """
    joint = next(fit for fit in fits if fit.name == JOINT)
    terms = joint.node["kernels"][1:]
    # a matern32.yaml of the user may have no lengthscale
    if not all("lengthscale" in each for each in terms):
        return
    # a function that linear terms describe may be such a sum as well
    highest = max(fit.score for fit in fits if LINEAR not in fit.name)
    if not (_first_is_negligible(joint) or _score_without_first(joint, fitter) >= highest):
        return
    if joint.score == -math.inf or not has_time():
        return
    trial = copy.copy(fitter)
    if joint.node != unfitted:
        trial.max_evaluations = min(TRIAL, fitter.max_evaluations)
    start = sum_of(terms)
    best = trial.fit(f"{FIRST}{PER_INPUT}", start, joint.likelihood)
    yield best, start
    if best.score < joint.score:
        return
    for name, factor in SMOOTHER.items():
        if not has_time():
            return
        start = _exchanged(best.node["kernels"], kernel_node(name, folders), factor)
        found = fitter.fit(f"{name}{PER_INPUT}", start, best.likelihood)
        yield found, start
        if found.score < best.score:
            return
        best = found


def _first_is_negligible(joint: Fit) -> bool:
    """Whether the kernel of all inputs has less variance than the noise."""
    noise = joint.likelihood.get("noise_variance")
    variance = joint.node["kernels"][0].get("outputscale")
    return isinstance(noise, float) and isinstance(variance, float) and variance < noise


def _score_without_first(joint: Fit, fitter: KernelFitter) -> float:
    """The score of the sum if the hyperparameters of its kernel of all inputs were not counted.

    Without that kernel the evidence can only be lower.
    """
    spared = fitter.hyperparameters(joint.node["kernels"][0])
    count = joint.hyperparameters - spared
    return fitter.score(count, joint.evidence, joint.predictive)


def is_additive(name: str) -> bool:
    """Whether it is the name of a sum of one kernel per input, and of nothing else."""
    return "+" not in name and name.endswith(PER_INPUT)


def _exchanged(terms: Sequence[Node], kernel: Node, factor: float) -> Node:
    """The sum of the terms with another kernel in each, and lengthscales times a factor.

    Args:
        terms: configs of kernels of one input each.
        kernel: config of the other kernel.
        factor: of the lengthscales.
    """

    def exchanged(term: Node) -> Node:
        length = term["lengthscale"]
        scaled = [factor * each for each in length] if isinstance(length, list) else factor * length
        return {**kernel, **{name: term[name] for name in KEPT}, "lengthscale": scaled}

    return sum_of([exchanged(term) for term in terms])
