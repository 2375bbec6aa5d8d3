"""Preparation of a run: options, data, model, objective and optimiser, with all their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.distributions import Distribution

from gpx.backends.triton.availability import slow_float64
from gpx.calibration import Recalibration
from gpx.data import Dataset, FrameFolder
from gpx.errors import ConfigError, DataError, class_name
from gpx.likelihoods import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import budget_in_bytes, memory_for_all, total_memory
from gpx.methods.base.model_checks import why_rows_are_refused
from gpx.methods.base.optimizer import Optimizer
from gpx.metrics import evaluate, trivial_law
from gpx.models import Model
from gpx.objectives import Objective
from gpx.options.build import build, build_model, check_parts, target_of
from gpx.options.config import TrainerConfig, trainer_options
from gpx.options.groups import REQUIRED_GROUPS
from gpx.options.names import with_option_names
from gpx.options.types import check_numbers
from gpx.runs.categorical_kernel import explain_categorical_kernel, with_categorical_kernel
from gpx.runs.certification import require_certifiable
from gpx.runs.choosing.kernel_prior import has_many_inputs
from gpx.runs.data import (
    chosen_by_data,
    describe_rows,
    hold_out,
    likelihood_task,
    load_run_data,
    require_all_targets,
    require_outputs,
    with_facts,
)
from gpx.runs.folder import RunFolder
from gpx.runs.predictor import Predictor
from gpx.runs.streaming import check_streamed, require_streams, settle_streamed
from gpx.runs.trust import PLACES
from gpx.runs.watching.console import Console
from gpx.runs.watching.loggers import Logger, require_loggers
from gpx.training.device import DTYPES, configure_torch
from gpx.training.launched import require_shared
from gpx.training.progress import Monitor

OUTLIER_DISTANCE = 10.0
"""A target farther than this many interdecile ranges from the median is reported as an outlier."""

POSITIVE_RANGE = {torch.float32: (1e-44, 3e38), torch.float64: (1e-150, 1e120)}
"""Sizes of targets that are not standardised: of float32 those that it holds, of float64 those
whose predictions have a variance (``gpx.likelihoods.smooth_mixture.MAX_LOG_MEAN``)."""


@dataclass
class PreparedRun:
    """The parts of a run, checked and ready to train; nothing has been written yet."""

    config: DictConfig
    options: TrainerConfig
    folder: RunFolder
    device: torch.device
    data: Dataset
    model: Model
    objective: Objective
    optimizer: Optimizer
    start: Callable[..., None] | None
    console: Console
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    sample: tuple[Tensor, Tensor]
    calibration: Recalibration | None = None
    held_out: tuple[Tensor, Tensor] | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    loggers: list[Logger] = field(default_factory=list)
    monitors: list[Monitor] = field(default_factory=list)

    def with_option_names(self, text: str) -> str:
        """A message of model, objective or optimiser, with arguments written as options."""
        return with_option_names(text, self.config)

    def predictor(self) -> Predictor:
        """A predictor with the model in its current state, as its objective completes it."""
        with torch.no_grad():
            model = self.objective.for_prediction(self.model, *self.train)
            posterior = model.condition(*self.train)
        return Predictor(
            posterior,
            model.likelihood,
            self.data.scaler,
            self.data.input_names,
            self.data.target_name,
            self.data.labels,
            self.data.target_names,
            coding=self.data.coding,
            target_transform=self.data.target_transform,
        )

    def evaluate(self, predictive: Distribution | None = None) -> dict[str, float]:
        """Test metrics of a prediction at the test inputs, by default of the current model.

        Empty if there are no test rows.
        """
        if not self.data.num_test:
            return {}
        if predictive is None:
            predictive = self.predictor().distribution(self.test[0], self.data.test_noise)
        data = self.data
        return evaluate(
            data.task,
            predictive,
            self.test[1],
            data.scaler,
            data.target_names,
            trivial=trivial_law(data.in_memory.train_y.to(self.test[1].device).double()),
        )


def checked_options(config: DictConfig) -> TrainerConfig:
    """The options of the trainer; raises ConfigError for a config with missing or wrong parts."""
    check_values(config)
    for group in REQUIRED_GROUPS:
        if config.get(group) is None:
            chooser = "; approx= usually chooses it" if group in ("objective", "optimizer") else ""
            raise ConfigError(f"{group}= is not chosen{chooser}")
    check_parts(config)
    options = trainer_options(config.trainer)
    require_loggers(options.loggers)
    if options.certify:
        _require_certifiable(config)
    return options


def check_values(config: DictConfig) -> None:
    """Raise ConfigError for an option without value, an invalid number or a class out of place."""
    valueless = sorted(OmegaConf.missing_keys(config))
    if valueless:
        raise ConfigError(f"{valueless[0]} has no value: give it as {valueless[0]}=...")
    check_numbers(config)
    if "seed" not in config:
        raise ConfigError("the seed is missing among the options: write back that of the run")
    if not isinstance(config.seed, int) or isinstance(config.seed, bool):
        raise ConfigError(f"seed={config.seed}: expected a whole number")
    for group, wanted in PLACES.items():
        node = config.get(group)
        if not isinstance(node, DictConfig):
            continue
        if node.get("_target_") is None:
            if node.get("choose", "auto") != "auto":
                raise ConfigError(
                    f"{group}.choose={node.choose}: expected auto; to choose yourself, write "
                    f"{group}=NAME"
                )
            continue
        kind = target_of(node, group)
        if isinstance(kind, type) and not issubclass(kind, wanted):
            expected = " or ".join(base.__name__ for base in wanted)
            raise ConfigError(
                f"{group}={node._target_}: expected a subclass of {expected} as {group}._target_"
            )


def solves_refined(config: DictConfig) -> bool:
    """Whether the run solves in float64 with matrix products in float32."""
    exact = OmegaConf.select(config, "approx.iterative.product_dtype") == "float32"
    iterative = OmegaConf.select(config, "approx.solver") == "iterative"
    bound = OmegaConf.select(config, "objective.solver.product_dtype") == "float32"
    return (exact and iterative) or bound


def prepare(
    config: DictConfig,
    options: TrainerConfig,
    device: torch.device,
    folder: RunFolder,
    data: Dataset | None = None,
) -> PreparedRun:
    """Build and check all parts of a run, before anything is written.

    Args:
        config, options, device, folder: of the run.
        data: all rows, if they are loaded already (to choose a method or kernel by them).

    Raises:
        GPXError: the data are invalid, or parts do not fit the data or each other.
    """
    configure_torch(options, device)
    dtype = DTYPES[options.dtype]
    console = Console(quiet=options.quiet)
    check_streamed(config, options)
    loaded = data
    data = load_run_data(config) if loaded is None else loaded
    calibration: Recalibration | None = build(config, "calibrate")
    _require_plain_targets(config, data, calibration)
    if options.certify:
        _require_certifiable(config, data)
    data, kept = hold_out(data, calibration, config.seed)
    config = _with_rooted_paths(with_facts(config, data))
    budget = budget_in_bytes(options.memory_budget, memory_for_all(device), total_memory(device))
    config.trainer.memory_budget = budget  # fixed, so that resumed runs use the same
    for part in {"kernel", "mean"} - set(check_parts(config)):
        config[part] = None  # the model has no such part
    config = with_categorical_kernel(config, data)
    if loaded is None:
        console.say(describe_rows(data, 0 if kept is None else len(kept[1])))
    else:  # printed already, before method and kernel were chosen
        chosen = (chosen_by_data(config, "kernel_choice"), chosen_by_data(config))
        for line in filter(None, chosen):
            console.say(line)
    for line in _notes(data, config):
        console.say(line)
    slow = slow_float64(device) if dtype == torch.float64 else None
    if slow is not None:
        console.say(f"note: {slow} (trainer.dtype=float32)")

    with explain_categorical_kernel(config):
        model, objective = _model_and_objective(config, data, device, dtype)
    _require_total(objective, data.num_train)
    if objective.batching == "full" and options.batch_size != TrainerConfig.batch_size:
        console.say(
            f"note: trainer.batch_size={options.batch_size} has no effect: "
            f"{class_name(objective)} uses all rows in every step"
        )
    optimizer, start = build(config, "optimizer"), build(config, "init")
    model.check_optimizer(optimizer)
    if data.sample is not None:
        options = settle_streamed(config, options, data, model, objective, console.say)
        require_streams(type(optimizer))

    modelled = data.modelled(data.train_y)
    _require_range(modelled, dtype, data.task)
    train = (data.train_x.to(device, dtype), modelled.to(device, dtype))
    test = (data.test_x.to(device, dtype), data.test_y.to(device, dtype))
    seen = data.in_memory  # the training rows, or a sample if they are in files
    sample = (
        train if seen is data else (seen.train_x.to(device, dtype), seen.train_y.to(device, dtype))
    )
    optimizer.require_fit(model, objective, data.train_x.shape[0], options.max_steps)
    if model.know_test_inputs(test[0]):
        console.say(
            "note: the inputs of the test rows, not their targets, place the grid "
            "(grid.transductive=true)"
        )
    with explain_categorical_kernel(config):
        model.check(train[0])
        require_shared(objective, model, train[0], options.batch_size)
        _settle(model, train[0], config, console)
    optimizer.require_priors(model)  # again, as settling may have added hyperparameters
    if data.train_noise is not None:
        _know_noise(model, objective, data.train_noise.like(train[1]))
    held_out = None
    if calibration is not None and kept is not None:
        calibration.to(device)
        held_out = (kept[0].to(device, dtype), data.modelled(kept[1]).to(device, dtype))
    return PreparedRun(
        config,
        options,
        folder,
        device,
        data,
        model,
        objective,
        optimizer,
        start,
        console,
        train,
        test,
        sample,
        calibration,
        held_out,
    )


def _require_range(y: Tensor, dtype: torch.dtype, task: str) -> None:
    """Raise DataError if positive targets y or counts, which are not standardised, are too far."""
    if task not in ("positive", "count"):
        return
    low, high = POSITIVE_RANGE[dtype]
    lost = (y > high) | ((y > 0.0) & (y < low))
    if bool(lost.any()):
        wider = ", or set trainer.dtype=float64" if dtype == torch.float32 else ""
        raise DataError(
            f"{int(lost.sum())} of {y.numel()} targets, {float(y[lost][0]):g} among them, are "
            f"outside {low:g} to {high:g}, and variances of predictions would be beyond the "
            f"numbers of {str(dtype).removeprefix('torch.')}: give them in another unit{wider}"
        )


def _notes(data: Dataset, config: DictConfig) -> Iterator[str]:
    """Notes for the user on properties of the data."""
    likelihood = target_of(config.likelihood, "likelihood")
    targets = data.in_memory.train_y
    for line in data.notes.splitlines():
        yield f"note: {with_option_names(line, config)}"
    if likelihood_task(config) == "regression" and _two_values(targets):
        yield "note: the targets have only two values; likelihood=bernoulli models two classes"
    outliers = _count_outliers(data.modelled(targets))
    transformed = data.target_transform is not None  # asks for Gaussian noise
    if outliers and likelihood is Gaussian and not transformed:
        yield (
            f"note: {outliers} training targets are outliers, more than {OUTLIER_DISTANCE:g} "
            "interdecile ranges from the median; likelihood=student_t is robust to outliers"
        )
    rows, inputs = len(targets), data.num_inputs
    if has_many_inputs(data) and likelihood is Gaussian and config.get("prior") is None:
        yield (
            f"note: {inputs:,} inputs and {rows:,} rows: if few of the inputs matter, or the "
            "function is not linear, compare approx=exact kernel=rbf prior=dimension_scaled"
        )


def _model_and_objective(
    config: DictConfig, data: Dataset, device: torch.device, dtype: torch.dtype
) -> tuple[Model, Objective]:
    """Build both; raises ConfigError if they do not fit each other or the targets."""
    model = build_model(config).to(device, dtype)
    model.hyperpriors = build(config, "prior")
    kind = target_of(config.objective, "objective")
    if isinstance(kind, type) and issubclass(kind, Objective):
        kind.require_model(model)
    objective: Objective = build(config, "objective")
    objective.to(device)
    objective.check(model)
    require_outputs(data, model.num_outputs, f"{type(model).__name__} with this likelihood")
    require_all_targets(data, model, objective)
    classes, taken = data.num_classes, model.likelihood.num_classes
    # with ordered classes, a cut point beyond the last class could not be learned
    if classes > taken or (data.task == "ordinal" and classes < taken):
        raise ConfigError(
            f"data {data.name} has {classes} classes and the likelihood {taken}: set "
            f"likelihood.num_classes={classes}, or leave it out"
        )
    return model, objective


def _require_total(objective: Objective, num_train: int) -> None:
    """Raise ConfigError for an objective that was given another number of training rows."""
    too_many = objective.fixed_total and objective.total > num_train
    if too_many or 0 < objective.total < num_train:
        raise ConfigError(
            f"objective.num_data={objective.total} but there are {num_train} training rows: "
            "leave it out, and it is their number"
        )


def _know_noise(model: Model, objective: Objective, noise: RowNoise) -> None:
    """Give the model the known noise of its rows; raises ConfigError if a part takes none."""
    model.know_noise(noise)
    if not objective.takes_row_noise:
        raise ConfigError(
            f"objective {class_name(objective)} {why_rows_are_refused(noise)}, or choose another "
            "objective="
        )


def _require_certifiable(config: DictConfig, data: Dataset | None = None) -> None:
    """``require_certifiable``, for a run with trainer.certify=true; errors name this option."""
    try:
        require_certifiable(config, data)
    except ConfigError as error:
        error.args = (f"trainer.certify=true: {error}", *error.args[1:])
        raise


def _settle(model: Model, x: Tensor, config: DictConfig, console: Console) -> None:
    """Set options of the model that depend on the rows, in the config too, and tell the user."""
    for option, (value, reason) in model.settle(x).items():
        holder, _, name = f"approx.{option}".rpartition(".")
        node = OmegaConf.select(config, holder)
        if isinstance(node, DictConfig):
            node[name] = value
        console.say(f"approx.{option}={value}: {with_option_names(reason, config)}")


def _require_plain_targets(
    config: DictConfig, data: Dataset, calibration: Recalibration | None
) -> None:
    """Raise ConfigError if a part of the run cannot take noise per row or a target transform."""
    plain = target_of(config.likelihood, "likelihood") is Gaussian
    if data.target_transform is not None and not plain:
        raise ConfigError(
            f"data.target_transform={config.data.target_transform} needs likelihood=gaussian, as "
            "the transform already changes the noise of the target"
        )
    if calibration is not None and data.train_noise is not None:
        raise ConfigError(
            "calibrate= needs one noise variance for all rows, and data.noise= or data.weights= "
            "give each row its own: leave one of them out"
        )


def _count_outliers(y: Tensor) -> int:
    """Number of rows of y (n,) or (n, p) with a target beyond ``OUTLIER_DISTANCE``."""
    ordered = y.double().reshape(len(y), -1).sort(0).values
    low, middle, high = (ordered[round(share * (len(y) - 1))] for share in (0.1, 0.5, 0.9))
    if not bool((high > low).all()):
        return 0
    return int(((ordered - middle).abs() > OUTLIER_DISTANCE * (high - low)).any(1).sum())


def _two_values(targets: Tensor) -> bool:
    """Whether the targets have exactly two values."""
    targets = targets[~targets.isnan()]
    low, high = targets.min(), targets.max()
    return bool(low < high) and bool(((targets == low) | (targets == high)).all())


def _with_rooted_paths(config: DictConfig) -> DictConfig:
    """Make paths of the data absolute, so that a run can be resumed from any folder.

    With ``data.root`` only that, as the other paths are relative to it.
    """
    rooted = isinstance(config.data.get("root"), str)
    of_frames = target_of(config.data, "data") is FrameFolder  # elsewhere a mask is an array
    others = ("path", "test_path", "mask") if of_frames else ("path", "test_path")
    for name in ("root",) if rooted else others:
        if isinstance(config.data.get(name), str):
            config.data[name] = str(Path(config.data[name]).expanduser().resolve())
    return config
