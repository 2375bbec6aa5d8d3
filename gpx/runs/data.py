"""The data of a run: loading, held-out rows, checks against model and likelihood, and facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from gpx.calibration import Recalibration, held_out_rows, require_classes
from gpx.data import Dataset, DataSource, Task
from gpx.data import load as load_data
from gpx.data.images.pixels import pixel_shape
from gpx.errors import ConfigError, class_name
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.options.build import build, target_of
from gpx.options.kernel_expression import with_terms_per_input
from gpx.runs.categorical_kernel import columns_of_kernel
from gpx.sampling.seeds import stream


def likelihood_task(config: DictConfig) -> Task:
    """The task of the likelihood, from its class, as building it may need the data."""
    return getattr(target_of(config.likelihood, "likelihood"), "task", "regression")


def load_run_data(config: DictConfig, source: DataSource | None = None) -> Dataset:
    """Load all rows of the run.

    Args:
        config: of the run.
        source: the data source, if it is built already.

    Raises:
        GPXError: anything wrong with the data.
    """
    source = build(config, "data") if source is None else source
    order, approx = config.likelihood.get("order"), config.get("approx")
    task = likelihood_task(config)
    known = OmegaConf.is_dict(approx) and approx.get("_target_") is not None
    if known and getattr(target_of(approx, "approx"), "observes_derivatives", False):
        by = approx.get("with_respect_to")
        return load_data(
            source, task=task, order=order, derivatives=True, with_respect_to=_as_columns(by)
        )
    return load_data(source, task=task, order=order)


def _as_columns(named: Any) -> list[str | int] | None:
    """Columns as ``approx.with_respect_to`` names them; one of them needs no list."""
    if named is None:
        return None
    return [named] if isinstance(named, (str, int)) else list(named)


def hold_out(
    data: Dataset, calibration: Recalibration | None, seed: int
) -> tuple[Dataset, tuple[Tensor, Tensor] | None]:
    """Split the training rows into rows to train on and rows held out for recalibration.

    Method, kernel and hyperparameters are chosen by the former only. The split depends on the seed.

    Args:
        data: all rows.
        calibration: of the run; without one, and for rows in files, nothing is held out.
        seed: of the run.

    Returns:
        the data without the held-out rows; and inputs (r, d) and targets (r,) of these, or None.

    Raises:
        GPXError: the recalibration is for another task, or there are several targets, too few rows,
            or too few of a class.
    """
    if calibration is None or data.sample is not None:
        return data, None
    calibration.require_task(data.task)
    calibration.require_one_output(data.num_outputs)
    kept = held_out_rows(data.num_train, calibration.fraction, stream(seed, "calibration"))
    calibration.require_enough(int(kept.sum()))
    if data.task != "regression":
        require_classes(data.train_y, kept)
    rest = replace(data, train_x=data.train_x[~kept], train_y=data.train_y[~kept])
    return rest, (data.train_x[kept], data.train_y[kept])


NAMED_INPUTS = 10
"""Inputs that are told by name, in the order in which hyperparameters are told."""


def describe_rows(data: Dataset, held_out: int) -> str:
    """What is trained on and what is predicted from what, in one line.

    Args:
        data: the rows that the run trains on.
        held_out: rows that it recalibrates on.
    """
    inputs = f"{data.num_inputs} input" + ("s" if data.num_inputs > 1 else "")
    if data.num_inputs <= NAMED_INPUTS:
        inputs += f" ({', '.join(data.input_names)})"
    targets = data.target_names or (data.target_name,)
    slopes = zip(targets[1:], data.derivatives, strict=False)  # without numbers: no derivatives
    by = [f"{name} (d {targets[0]} / d {data.input_names[i]})" for name, i in slopes]
    targets = (targets[0], *by) if by else targets
    named = f"target {targets[0]}" if len(targets) == 1 else f"targets {', '.join(targets)}"
    return (
        f"data {data.name} split {data.split}: {data.num_train:,} training and "
        f"{data.num_test:,} test rows, {inputs}, {named}"
        + ("" if data.num_test else "; trained on all rows, so there will be no test metrics")
        + (f"; {held_out:,} training rows are held out to recalibrate" if held_out else "")
    )


def require_outputs(data: Dataset, taken: int, by: str) -> None:
    """Raise ConfigError unless the data have ``taken`` targets, which ``by`` (a name) takes."""
    if data.num_outputs != taken:
        names = ", ".join(data.target_names) or data.target_name
        raise ConfigError(
            f"data {data.name} has {data.num_outputs} targets ({names}) and {by} takes {taken}: "
            "choose as many target columns, or use approx=independent, which models each exactly "
            "and by itself, or approx=coregional or approx=svgp likelihood=gaussian_outputs, which "
            "model them together"
        )


def require_all_targets(data: Dataset, model: Model, objective: Objective) -> None:
    """Raise ConfigError if targets are missing and model or objective need all of them."""
    if not data.missing_targets:
        return
    for part, takes in (
        (model, model.takes_missing_targets),
        (objective, objective.takes_missing_targets),
    ):
        if not takes:
            raise ConfigError(
                f"data {data.name} lacks {data.missing_targets:,} of {data.train_y.numel():,} "
                f"training targets, and {class_name(part)} needs them all: use approx=coregional "
                "or independent, or approx=svgp with likelihood=gaussian_outputs or mixed_outputs, "
                "which only skip the missing cells, or data.missing=drop, which drops their rows"
            )


def with_facts(config: DictConfig, data: Dataset, **chosen: str | None) -> DictConfig:
    """A copy of the config with ``facts`` of the data, which building the model needs.

    Terms of the kernel for each input are written out, as their number is known now.

    Args:
        config: of the run; its ``choice`` and ``kernel_choice`` are kept.
        data: the rows that the run trains on.
        chosen: further facts (``choice``, ``kernel_choice``).
    """
    filled = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    assert isinstance(filled, DictConfig)
    before = {name: chosen_by_data(config, name) for name in ("choice", "kernel_choice")}
    filled.facts = {
        "num_train": data.num_train,
        "num_inputs": data.num_inputs,
        "num_outputs": data.num_outputs,
        "num_classes": data.num_classes,
        "image_shape": pixel_shape(data.input_names),
        **before,
        **chosen,
    }
    if data.derivatives:
        filled.approx.with_respect_to = list(data.derivatives)
    if OmegaConf.is_dict(filled.get("kernel")):
        node: Any = OmegaConf.to_container(filled.kernel, resolve=False)
        written = with_terms_per_input(node, columns_of_kernel(filled, data))
        if written != node:
            _require_kernel_of_inputs(filled)
        filled.kernel = written
    return filled


def _require_kernel_of_inputs(config: DictConfig) -> None:
    """Raise ConfigError if the kernel has terms for each input and the model's is of others."""
    model = target_of(config.approx, "approx") if OmegaConf.is_dict(config.get("approx")) else None
    if model is not None and not getattr(model, "kernel_of_inputs", True):
        raise ConfigError(
            "kernel=... per input has a term for each column of the data, and the kernels of "
            f"{model.__name__} are of features that it makes of them: leave out per input"
        )


def chosen_by_data(config: DictConfig, what: str = "choice") -> str | None:
    """Which method (or ``kernel_choice``) gpx chose and why; None if the user named it."""
    found = OmegaConf.select(config, f"facts.{what}")
    return found if isinstance(found, str) else None
