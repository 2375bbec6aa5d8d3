"""The data of a run: loaded, divided into rows to train on and rows held out, and their facts."""

from __future__ import annotations

from dataclasses import replace

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
from gpx.sampling.seeds import stream


def likelihood_task(config: DictConfig) -> Task:
    """What kind of target the likelihood models, without building it (it may need the data)."""
    return getattr(target_of(config.likelihood, "likelihood"), "task", "regression")


def load_run_data(config: DictConfig, source: DataSource | None = None) -> Dataset:
    """All rows of the run.

    Args:
        config: of the run.
        source: where they come from, if it is built already.

    Raises:
        GPXError: anything wrong with the data.
    """
    source = build(config, "data") if source is None else source
    order = config.likelihood.get("order")
    return load_data(source, task=likelihood_task(config), order=order)


def hold_out(
    data: Dataset, calibration: Recalibration | None, seed: int
) -> tuple[Dataset, tuple[Tensor, Tensor] | None]:
    """The rows that a run trains on, and those that it recalibrates on.

    Whatever is chosen by the data (method, kernel, hyperparameters) may see the former only. The
    same seed holds the same rows out.

    Args:
        data: all rows.
        calibration: of the run; None: nothing is held out. Rows in files are left together.
        seed: of the run.

    Returns:
        the data without the rows held out, and inputs (r, d) and targets (r,) of these; None where
        there are none.

    Raises:
        GPXError: a recalibration for another task, several targets, or too few rows or classes.
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


def rows_said(data: Dataset, held_out: int) -> str:
    """What is trained on and what is predicted from what, in one line.

    Args:
        data: the rows that the run trains on.
        held_out: rows that it recalibrates on.
    """
    inputs = f"{data.num_inputs} input" + ("s" if data.num_inputs > 1 else "")
    if data.num_inputs <= NAMED_INPUTS:
        inputs += f" ({', '.join(data.input_names)})"
    targets = data.target_names or (data.target_name,)
    named = f"target {targets[0]}" if len(targets) == 1 else f"targets {', '.join(targets)}"
    return (
        f"data {data.name} split {data.split}: {data.num_train:,} training and "
        f"{data.num_test:,} test rows, {inputs}, {named}"
        + ("" if data.num_test else "; trained on all rows, so there will be no test metrics")
        + (f"; {held_out:,} training rows are held out to recalibrate" if held_out else "")
    )


def require_outputs(data: Dataset, taken: int, by: str) -> None:
    """Raises ConfigError unless the data have ``taken`` targets, as many as ``by`` takes."""
    if data.num_outputs != taken:
        names = ", ".join(data.target_names) or data.target_name
        raise ConfigError(
            f"data {data.name} has {data.num_outputs} targets ({names}), {by} takes {taken}: give "
            "it as many, or take approx=coregional or approx=svgp likelihood=gaussian_outputs, "
            "which take several"
        )


def require_all_targets(data: Dataset, model: Model, objective: Objective) -> None:
    """Raises ConfigError where targets are missing and model or objective do not take that."""
    if not data.missing_targets:
        return
    for part, takes in (
        (model, model.takes_missing_targets),
        (objective, objective.takes_missing_targets),
    ):
        if not takes:
            raise ConfigError(
                f"data {data.name} lacks {data.missing_targets:,} of {data.train_y.numel():,} "
                f"training targets, and {class_name(part)} needs them all: take approx=coregional, "
                "or approx=svgp with likelihood=gaussian_outputs or mixed_outputs, which leave out "
                "the cells alone, or data.missing=drop, which leaves out their rows"
            )


def with_facts(config: DictConfig, data: Dataset, **chosen: str | None) -> DictConfig:
    """A copy of the config with ``facts`` filled in, so that it rebuilds the model.

    Args:
        config: of the run; what it says was chosen for it stays.
        data: the rows that the run trains on.
        chosen: facts to add (``choice``, ``kernel_choice``).
    """
    filled = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    assert isinstance(filled, DictConfig)
    before = {name: choice_of(config, name) for name in ("choice", "kernel_choice")}
    filled.facts = {
        "num_train": data.num_train,
        "num_inputs": data.num_inputs,
        "num_outputs": data.num_outputs,
        "num_classes": data.num_classes,
        "image_shape": pixel_shape(data.input_names),
        **before,
        **chosen,
    }
    return filled


def choice_of(config: DictConfig, what: str = "choice") -> str | None:
    """Which method (or ``kernel_choice``) was chosen for a run and why; None where it was named."""
    found = OmegaConf.select(config, f"facts.{what}")
    return found if isinstance(found, str) else None
