"""Everything of a run that can fail on bad input: options, data, model, objective, optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.distributions import Distribution

from gpx.calibration import Recalibration
from gpx.data import Dataset
from gpx.errors import ConfigError, class_name
from gpx.likelihoods import Gaussian
from gpx.linalg import budget_in_bytes, memory_for_all, total_memory
from gpx.methods.base.model import why_rows_are_refused
from gpx.methods.base.optimizer import Optimizer
from gpx.metrics import evaluate, trivial_law
from gpx.models import Model
from gpx.objectives import Objective
from gpx.options.build import build, build_model, check_parts, target_of
from gpx.options.config import CONFIGS, TrainerConfig, trainer_options
from gpx.options.names import with_option_names
from gpx.options.types import check_numbers
from gpx.runs.categorical_kernel import categories_said, with_categorical_kernel
from gpx.runs.certification import require_certifiable
from gpx.runs.data import (
    choice_of,
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
from gpx.runs.watching.console import Console
from gpx.runs.watching.loggers import Logger, require_loggers
from gpx.training.device import DTYPES, configure_torch
from gpx.training.launched import require_shared

FAR = 10.0
"""Widths of the middle 80 % of the targets beyond which one is called an outlier."""
PARTS = ("trainer", "data", "likelihood", "approx", "objective", "optimizer")
"""Groups that every run needs one choice of; ``approx`` says whether it takes kernel and mean."""


@dataclass
class PreparedRun:
    """What the stages of a run share; nothing of it is written yet."""

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

    def told(self, text: str) -> str:
        """A line of model, objective or optimiser, with options in the place of arguments."""
        return with_option_names(text, self.config, CONFIGS)

    def predictor(self) -> Predictor:
        """Prediction with the model as it stands, completed by what its objective leaves open."""
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
        """Test metrics of a prediction at the test inputs; by default of the model as it stands.

        None where all rows are trained on.
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
    """The trainer's options of a config that is complete; everything else is checked on use."""
    check_values(config)
    for group in PARTS:
        if config.get(group) is None:
            chooser = "; approx= usually chooses it" if group in ("objective", "optimizer") else ""
            raise ConfigError(f"{group}= is not chosen{chooser}")
    check_parts(config)
    options = trainer_options(config.trainer)
    require_loggers(options.loggers)
    if options.certify:
        require_certifiable(config)
    return options


def check_values(config: DictConfig) -> None:
    """Raise ConfigError for an option without a value, and for numbers that are none."""
    valueless = sorted(OmegaConf.missing_keys(config))
    if valueless:
        raise ConfigError(f"{valueless[0]} has no value: give it as {valueless[0]}=...")
    check_numbers(config)
    if not isinstance(config.seed, int) or isinstance(config.seed, bool):
        raise ConfigError(f"seed={config.seed}: expected a whole number")


def solves_refined(config: DictConfig) -> bool:
    """Whether the run's solves run in float64 with products in float32."""
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
    """Everything that can fail on bad input, before anything is written.

    Args:
        config, options, device, folder: of the run.
        data: all rows, where they are loaded already because something was chosen by them.

    Raises:
        GPXError: anything wrong with the data, or parts that do not fit them or one another.
    """
    configure_torch(options, device)
    dtype = DTYPES[options.dtype]
    console = Console(quiet=options.quiet)
    check_streamed(config, options)
    chosen = [] if data is None else [choice_of(config, "kernel_choice"), choice_of(config)]
    data = load_run_data(config) if data is None else data
    calibration: Recalibration | None = build(config, "calibrate")
    _require_plain_targets(config, options, data, calibration)
    data, kept = hold_out(data, calibration, config.seed)
    config = _with_rooted_paths(with_facts(config, data))
    budget = budget_in_bytes(options.memory_budget, memory_for_all(device), total_memory(device))
    config.trainer.memory_budget = budget  # settled: a resumed run and predictions hold to it
    for part in {"kernel", "mean"} - set(check_parts(config)):
        config[part] = None  # what the model has no use for is no part of the run
    config = with_categorical_kernel(config, data)
    held = 0 if kept is None else len(kept[1])
    for line in (_rows(data, held), *filter(None, chosen), *_notes(data, config)):
        console.say(line)

    with categories_said(config):
        model, objective = _model_and_objective(config, data, device, dtype)
    if objective.batching == "full" and options.batch_size != TrainerConfig.batch_size:
        console.say(
            f"note: trainer.batch_size={options.batch_size} has no effect: "
            f"{class_name(objective)} takes all rows at every step"
        )
    optimizer, start = build(config, "optimizer"), build(config, "init")
    model.check_optimizer(optimizer)
    if data.sample is not None:
        options = settle_streamed(config, options, data, model, objective, console.say)
        require_streams(type(optimizer))

    train = (data.train_x.to(device, dtype), data.modelled(data.train_y).to(device, dtype))
    test = (data.test_x.to(device, dtype), data.test_y.to(device, dtype))
    seen = data.in_memory  # the training rows themselves, or a sample of those that lie in files
    sample = (
        train if seen is data else (seen.train_x.to(device, dtype), seen.train_y.to(device, dtype))
    )
    optimizer.require_fit(model, objective, data.train_x.shape[0], options.max_steps)
    with categories_said(config):
        model.check(train[0])
        require_shared(objective, model, train[0], options.batch_size)
        _settle(model, train[0], config, console)
    optimizer.require_priors(model)  # by now it may have hyperparameters for each of its parts
    if data.train_noise is not None:
        model.know_noise(data.train_noise.like(train[1]))
        if not objective.takes_row_noise:
            refused = why_rows_are_refused(data.train_noise)
            raise ConfigError(
                f"objective {class_name(objective)} {refused}, or choose another objective="
            )
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


def _rows(data: Dataset, held_out: int) -> str:
    """What is trained on, in one line."""
    return (
        f"data {data.name} split {data.split}: {data.num_train:,} training and "
        f"{data.num_test:,} test points, {data.num_inputs} inputs"
        + ("" if data.num_test else "; trained on all rows, so there will be no test metrics")
        + (f"; {held_out:,} training points are held out" if held_out else "")
    )


def _notes(data: Dataset, config: DictConfig) -> Iterator[str]:
    """What the data hold that the user should know of."""
    likelihood = target_of(config.likelihood, "likelihood")
    targets = data.in_memory.train_y
    if data.notes:
        yield f"note: {with_option_names(data.notes, config, CONFIGS)}"
    if likelihood_task(config) == "regression" and _two_values(targets):
        yield "note: the targets take two values only; likelihood=bernoulli models classes"
    far = _far_targets(data.modelled(targets))
    if far and likelihood is Gaussian:
        yield (
            f"note: {far} of the training targets lie more than {FAR:g} times the width of the "
            "middle 80 % from the median; likelihood=student_t bears outliers"
        )


def _model_and_objective(
    config: DictConfig, data: Dataset, device: torch.device, dtype: torch.dtype
) -> tuple[Model, Objective]:
    """Both, fit for one another and for the targets; raises ConfigError where they are not."""
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
    # a cut point that no class is beyond has nothing to be learned from
    if classes > taken or (data.task == "ordinal" and classes < taken):
        raise ConfigError(
            f"data {data.name} has {classes} classes and the likelihood {taken}: give it "
            f"likelihood.num_classes={classes}, or leave that out"
        )
    return model, objective


def _settle(model: Model, x: Tensor, config: DictConfig, console: Console) -> None:
    """Options of the model that follow from the rows: into the config, and told to the user."""
    for option, (value, reason) in model.settle(x).items():
        holder, _, name = f"approx.{option}".rpartition(".")
        node = OmegaConf.select(config, holder)
        if isinstance(node, DictConfig):
            node[name] = value
        console.say(f"approx.{option}={value}: {with_option_names(reason, config, CONFIGS)}")


def _require_plain_targets(
    config: DictConfig, options: TrainerConfig, data: Dataset, calibration: Recalibration | None
) -> None:
    """Raise ConfigError where a part of the run has no use for noise by row or a transform."""
    transformed = data.target_transform is not None
    if transformed and target_of(config.likelihood, "likelihood") is not Gaussian:
        raise ConfigError(
            f"data.target_transform={config.data.target_transform} takes likelihood=gaussian: the "
            "transform makes the noise of the target itself another one"
        )
    if not transformed and data.train_noise is None:
        return
    certify = "trainer.certify=true"
    if options.certify and transformed:
        raise ConfigError(f"{certify} takes no data.target_transform=: leave one of them out")
    if data.train_noise is None:
        return
    for asked, name in ((calibration is not None, "calibrate="), (options.certify, certify)):
        if asked:
            raise ConfigError(
                f"{name} takes one noise variance for all rows, and data.noise= or data.weights= "
                "give each row its own: leave one of them out"
            )


def _far_targets(y: Tensor) -> int:
    """How many targets y (n,) or (n, p) no Gaussian noise would bring about."""
    ordered = y.double().reshape(len(y), -1).sort(0).values
    low, middle, high = (ordered[round(share * (len(y) - 1))] for share in (0.1, 0.5, 0.9))
    if not bool((high > low).all()):
        return 0
    return int(((ordered - middle).abs() > FAR * (high - low)).any(1).sum())


def _two_values(targets: Tensor) -> bool:
    targets = targets[~targets.isnan()]
    low, high = targets.min(), targets.max()
    return bool(low < high) and bool(((targets == low) | (targets == high)).all())


def _with_rooted_paths(config: DictConfig) -> DictConfig:
    """Paths of the data made absolute: a run is resumed from any folder.

    Where ``data.root`` is given, the other paths start from it.
    """
    rooted = isinstance(config.data.get("root"), str)
    for name in ("root",) if rooted else ("path", "test_path"):
        if isinstance(config.data.get(name), str):
            config.data[name] = str(Path(config.data[name]).expanduser().resolve())
    return config
