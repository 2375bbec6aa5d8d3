"""One run: data, model, initialisation, training, evaluation, files. The wiring of gpx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.distributions import Distribution

from gpx.calibration import Recalibration, held_out_rows, require_classes
from gpx.data import Dataset, Task
from gpx.data import load as load_data
from gpx.errors import CheckpointError, ConfigError, WriteError
from gpx.installation import command
from gpx.likelihoods import Gaussian
from gpx.linalg import available_memory, budget_in_bytes, total_memory
from gpx.methods.base.objective import Evidence
from gpx.methods.base.optimizer import Optimizer
from gpx.metrics import baselines, evaluate, trivial_law
from gpx.models import Model
from gpx.objectives import Objective
from gpx.sampling.seeds import global_randomness, stream
from gpx.training.automatic import Compose, choice_of, is_automatic, with_method_chosen
from gpx.training.build import build, build_model, check_parts, target_of
from gpx.training.certification import (
    CertifyOptions,
    certify_run,
    chosen_points,
    require_certifiable,
    write_report,
)
from gpx.training.checkpoint import load_checkpoint, save_checkpoint
from gpx.training.choices import with_choices_made
from gpx.training.config import CONFIGS, TrainerConfig, trainer_options
from gpx.training.console import Console
from gpx.training.device import (
    DTYPES,
    configure_torch,
    out_of_memory_said,
    require_matmul,
    resolve_device,
)
from gpx.training.environment import environment_record, peak_memory_mib
from gpx.training.interrupt import Interrupted
from gpx.training.option_names import option_names, with_option_names
from gpx.training.option_types import check_numbers
from gpx.training.origin import changes, origin_of, require_same_model, version_note
from gpx.training.predictor import Predictor
from gpx.training.results import draw_results, summary
from gpx.training.run_folder import RunFolder
from gpx.training.streaming import (
    check_streamed,
    require_streams,
    settle_streamed,
    streaming_facts,
)
from gpx.training.tensorboard import TensorBoard
from gpx.training.trainer import FitResult, Trainer
from gpx.training.trust import require_known_server

PARTS = ("trainer", "data", "likelihood", "approx", "objective", "optimizer")
"""Groups that every run needs one choice of; ``approx`` says whether it takes kernel and mean."""


@dataclass
class _Run:
    """What the stages of a run share."""

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


def run(config: DictConfig, folder: RunFolder, compose: Compose | None = None) -> dict[str, Any]:
    """Train, evaluate and write one run; goes on when ``folder`` holds its checkpoint.

    Args:
        config: composed config (configs/train.yaml).
        folder: run folder; nothing is written before data and model are known to be sound.
        compose: composes the same options with others, for ``approx=auto``; None where a method is
            named.

    Returns:
        the contents of metrics.json.

    Raises:
        GPXError: anything wrong with options, data, device or checkpoint, or a full disk.
        Interrupted: after SIGINT, SIGTERM or SIGHUP, with the checkpoint written.
    """
    data: Dataset | None = None
    if is_automatic(config):
        config, data = _chosen(config, compose)
    config = with_choices_made(config)
    with option_names(config, CONFIGS):
        options = _checked_options(config)
        device = resolve_device(options.device)
        require_matmul(options.matmul, device, refined=_solves_refined(config))
        with global_randomness(config.seed):
            prepared = _prepare(config, options, device, folder, data)
            try:
                with out_of_memory_said(device, int(prepared.config.trainer.memory_budget)):
                    return _run_in_folder(prepared)
            except OSError as error:
                where, why = error.filename or folder.path, error.strerror or error
                text = f"{where} cannot be written: {why}"
                if folder.config.exists():
                    text += (
                        f"; when that is mended go on with: {command('train')} resume={folder.path}"
                    )
                raise WriteError(text) from error


def _chosen(config: DictConfig, compose: Compose | None) -> tuple[DictConfig, Dataset]:
    """The config with the method that suits in the place of ``approx=auto``, and the data."""
    with option_names(config, CONFIGS):
        if compose is None:
            raise ConfigError(
                "approx=auto needs the options of the run, not its config: name a method"
            )
        _check_values(config)
        options = trainer_options(config.trainer)
        device = resolve_device(options.device)
        with global_randomness(config.seed):
            return with_method_chosen(config, options, device, compose)


def _run_in_folder(state: _Run) -> dict[str, Any]:
    """Train, evaluate and write; raises OSError where the folder cannot be written."""
    folder = state.folder
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        folder.clear_leftovers()
        record = environment_record(state.device, state.config.seed, state.data.checksums)
        folder.require_same_data(record)
        state.origin = origin_of(state.config, state.device)
        if folder.checkpoint.exists():
            stored = load_checkpoint(folder.checkpoint, mapped=True)
            require_same_model(stored, state.config, str(folder.config))
            for line in changes(stored, state.origin):
                state.console.say(line)
        folder.write_config(state.config)
        folder.add_environment(record)
        try:
            return _finish(state, _train(state))
        finally:
            state.console.close()


def resume(path: str | Path, trust: Sequence[str] | str = ()) -> dict[str, Any]:
    """Go on with the run in folder ``path``, in the same folder, with its own config.

    What steers training (``trainer``, ``optimizer``, ``objective``) may have been changed in
    config.yaml, to more steps for example, and is said; the model, the data and the seed may not.

    Args:
        path: the run folder.
        trust: packages of one's own whose classes config.yaml names; no others than these and those
            of gpx are built.

    Raises:
        CheckpointError: no run there, its files are damaged or do not belong together, or a class
            that is not to be built; nothing is changed.
    """
    folder = RunFolder(path)
    config = folder.read_config(trust)
    if config.get("data") is not None:
        require_known_server(config, folder.config)
    if folder.metrics.exists():
        raise CheckpointError(
            f"the run in {folder.path} is finished: see {folder.metrics}; "
            f"use {command('predict')}, or start a new run"
        )
    versions = (folder.read_environment() or {}).get("versions")
    try:
        return run(config, folder)
    except ConfigError as error:
        note = version_note(versions.get("gpx") if isinstance(versions, dict) else None)
        raise ConfigError(f"{folder.config}: {error}{note}") from error


def _checked_options(config: DictConfig) -> TrainerConfig:
    """The trainer's options of a config that is complete; everything else is checked on use."""
    _check_values(config)
    for group in PARTS:
        if config.get(group) is None:
            chooser = "; approx= usually chooses it" if group in ("objective", "optimizer") else ""
            raise ConfigError(f"{group}= is not chosen{chooser}")
    check_parts(config)
    options = trainer_options(config.trainer)
    if options.budget is not None and not choice_of(config):
        raise ConfigError(
            f"trainer.budget={options.budget:g} is for approx=auto, which chooses a method by it; "
            "with a method that is named set trainer.max_steps="
        )
    if options.certify:
        require_certifiable(config)
    return options


def _check_values(config: DictConfig) -> None:
    """Raise ConfigError for an option without a value, and for numbers that are none."""
    valueless = sorted(OmegaConf.missing_keys(config))
    if valueless:
        raise ConfigError(f"{valueless[0]} has no value: give it as {valueless[0]}=...")
    check_numbers(config)
    if not isinstance(config.seed, int) or isinstance(config.seed, bool):
        raise ConfigError(f"seed={config.seed}: expected a whole number")


def _solves_refined(config: DictConfig) -> bool:
    """Whether the run's solves run in float64 with products in float32."""
    exact = OmegaConf.select(config, "approx.iterative.product_dtype") == "float32"
    iterative = OmegaConf.select(config, "approx.solver") == "iterative"
    bound = OmegaConf.select(config, "objective.solver.product_dtype") == "float32"
    return (exact and iterative) or bound


def _prepare(
    config: DictConfig,
    options: TrainerConfig,
    device: torch.device,
    folder: RunFolder,
    data: Dataset | None = None,
) -> _Run:
    """Everything that can fail on bad input, before anything is written."""
    configure_torch(options, device)
    dtype = DTYPES[options.dtype]
    console = Console(quiet=options.quiet)

    task = likelihood_task(config)
    chosen_now = data is not None
    check_streamed(config, options)
    if data is None:
        data = load_data(build(config, "data"), task=task)
    calibration: Recalibration | None = build(config, "calibrate")
    _require_plain_targets(config, options, data, calibration)
    kept: Tensor | None = None
    if calibration is not None:
        calibration.require_task(data.task)
        draws = stream(config.seed, "calibration")
        kept = held_out_rows(data.num_train, calibration.fraction, draws)
        if data.task != "regression":
            require_classes(data.train_y, kept)
        every = data.train_x, data.train_y
        data = replace(data, train_x=every[0][~kept], train_y=every[1][~kept])
    config = _with_facts(config, data)
    budget = budget_in_bytes(options.memory_budget, available_memory(device), total_memory(device))
    config.trainer.memory_budget = budget  # settled: a resumed run and predictions hold to it
    for part in {"kernel", "mean"} - set(check_parts(config)):
        config[part] = None  # what the model has no use for is no part of the run
    num_train, num_inputs = data.train_x.shape
    console.say(
        f"data {data.name} split {data.split}: {num_train:,} training and "
        f"{data.test_x.shape[0]:,} test points, {num_inputs} inputs"
        + ("" if data.num_test else "; trained on all rows, so there will be no test metrics")
        + ("" if kept is None else f"; {int(kept.sum()):,} training points are held out")
    )
    if chosen_now:
        console.say(config.facts.choice)
    if data.notes:
        console.say(f"note: {with_option_names(data.notes, config, CONFIGS)}")
    if task == "regression" and _two_values(data.in_memory.train_y):
        console.say("note: the targets take two values only; likelihood=bernoulli models classes")

    model = build_model(config).to(device, dtype)
    kind = target_of(config.objective, "objective")
    if isinstance(kind, type) and issubclass(kind, Objective):
        kind.require_model(model)
    objective: Objective = build(config, "objective")
    objective.to(device)
    objective.check(model)
    if data.num_outputs != model.num_outputs:
        names = ", ".join(data.target_names) or data.target_name
        raise ConfigError(
            f"data {data.name} has {data.num_outputs} targets ({names}), {type(model).__name__} "
            f"with this likelihood takes {model.num_outputs}: give it as many, or take approx=svgp "
            "likelihood=gaussian_outputs, which takes any number"
        )
    classes = data.num_classes
    if task == "multiclass" and classes > model.likelihood.num_latents:
        raise ConfigError(
            f"data {data.name} has {classes} classes and the likelihood "
            f"{model.likelihood.num_latents}: give it likelihood.num_classes={classes}, or leave "
            "that out"
        )
    if data.sample is not None:
        options = settle_streamed(config, options, data, model, objective, console.say)
    train = (data.train_x.to(device, dtype), data.modelled(data.train_y).to(device, dtype))
    seen = data.in_memory  # the training rows themselves, or a sample of those that lie in files
    sample = (
        train if seen is data else (seen.train_x.to(device, dtype), seen.train_y.to(device, dtype))
    )
    test = (data.test_x.to(device, dtype), data.test_y.to(device, dtype))
    optimizer, start = build(config, "optimizer"), build(config, "init")
    model.check_optimizer(optimizer)
    if data.sample is not None:
        require_streams(type(optimizer))
    optimizer.require_fit(model, objective, data.train_x.shape[0], options.max_steps)
    model.check(train[0])
    for option, (value, reason) in model.settle(train[0]).items():
        holder, _, name = f"approx.{option}".rpartition(".")
        if isinstance(OmegaConf.select(config, holder), DictConfig):
            OmegaConf.select(config, holder)[name] = value
        told = with_option_names(reason, config, CONFIGS)
        console.say(f"approx.{option}={value}: {told}")
    if data.train_noise is not None:
        model.know_noise(data.train_noise.like(train[1]))
    held_out = None
    if calibration is not None and kept is not None:
        calibration.to(device)
        held_out = (every[0][kept].to(device, dtype), every[1][kept].to(device, dtype))
    return _Run(
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
    for asked, name in ((calibration is not None, "calibrate="), (options.certify, certify)):
        if asked and transformed:
            raise ConfigError(f"{name} takes no data.target_transform=: leave one of them out")
        if asked:
            raise ConfigError(
                f"{name} takes one noise variance for all rows, and data.noise= or data.weights= "
                "give each row its own: leave one of them out"
            )


def _two_values(targets: Tensor) -> bool:
    low, high = targets.min(), targets.max()
    return bool(low < high) and bool(((targets == low) | (targets == high)).all())


def likelihood_task(config: DictConfig) -> Task:
    """What kind of target the likelihood models, without building it (it may need the data)."""
    return getattr(target_of(config.likelihood, "likelihood"), "task", "regression")


def _with_facts(config: DictConfig, data: Dataset) -> DictConfig:
    """A copy with ``facts`` filled in from the data, so that config.yaml rebuilds the model."""
    filled = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    assert isinstance(filled, DictConfig)
    filled.facts = {
        "num_train": data.train_x.shape[0],
        "num_inputs": data.train_x.shape[1],
        "num_outputs": data.num_outputs,
        "num_classes": data.num_classes,
        "choice": choice_of(config),
    }
    # a run is resumed from any folder; where root is given, paths start from it
    rooted = isinstance(filled.data.get("root"), str)
    for name in ("root",) if rooted else ("path", "test_path"):
        if isinstance(filled.data.get(name), str):
            filled.data[name] = str(Path(filled.data[name]).expanduser().resolve())
    return filled


def _train(state: _Run) -> FitResult:
    """Initialise and train, or go on from the checkpoint."""
    seed, device = state.config.seed, state.device

    def initialise() -> None:
        draws = stream(seed, "hyperparameters", device)
        if state.start is not None:
            state.start(state.model, *state.sample, generator=draws, say=state.console.say)
        state.model.initialise(*state.sample, generator=stream(seed, "model", device))
        state.objective.prepare(
            state.model, *state.train, generator=stream(seed, "estimator", device)
        )
        note = f": {state.told(state.model.note)}" if state.model.note else ""
        state.console.say(f"initialised {type(state.model).__name__}{note}")

    trainer = Trainer(
        config=state.options,
        seed=seed,
        checkpoint=state.folder.checkpoint,
        monitors=[state.console],
        extra_state={"origin": state.origin},
        say=lambda line: state.console.say(state.told(line)),
    )
    board = None
    if state.options.tensorboard:
        board = TensorBoard(state.folder.own_folder(state.folder.tensorboard))
        trainer.monitors.append(board)
    try:
        return trainer.fit(
            state.model,
            state.objective,
            state.optimizer,
            *state.train,
            evaluate=state.evaluate,
            initialise=initialise,
        )
    except Interrupted:
        state.console.say(f"stopped; go on with: {command('train')} resume={state.folder.path}")
        raise
    finally:
        if board is not None:
            board.close()


def _finish(state: _Run, fit: FitResult) -> dict[str, Any]:
    """Posterior, metrics, figures; metrics.json last, since it marks a finished run."""
    data, model, config = state.data, state.model, state.config
    predictor = state.predictor()
    tested = data.num_test > 0
    raw = predictor.distribution(state.test[0], data.test_noise) if tested else None
    calibrated = _calibrate(state, predictor)
    kept = {
        **fit.state,
        "posterior": predictor.posterior.state_dict(),
        "likelihood": predictor.likelihood.state_dict(),
        "scaler": data.scaler.state_dict(),
        "input_names": list(data.input_names),
        "target_name": data.target_name,
        "labels": list(data.labels),
        "target_names": list(data.target_names),
        "coding": None if data.coding is None else data.coding.state(),
        "target_transform": data.target_transform and data.target_transform.state(),
        **calibrated,
    }
    save_checkpoint(state.folder.checkpoint, kept)
    evidence = _final_evidence(state)
    predictive = raw if raw is None or state.calibration is None else state.calibration(raw)
    scores = state.evaluate(predictive)
    metrics: dict[str, Any] = {f"test.{k}": v for k, v in scores.items()}
    if state.calibration is not None:
        metrics |= {f"uncalibrated.{k}": v for k, v in state.evaluate(raw).items()}
        metrics |= {f"calibration.{k}": v for k, v in state.calibration.facts().items()}
    metrics |= {
        "train.evidence": evidence.value.item(),
        "train.evidence_kind": evidence.kind,
        "train.objective": type(state.objective).__name__,
        "train.steps": fit.steps,
        "train.seconds": fit.seconds,
        "train.stopped": state.told(fit.reason),
        "model.name": type(model).__name__,
        **({"model.choice": choice_of(config)} if choice_of(config) else {}),
        "model.num_parameters": sum(p.numel() for p in model.parameters()),
        "data.name": data.name,
        "data.split": data.split,
        "data.num_test": data.num_test,
        "memory.peak_mib": peak_memory_mib(state.device),
    }
    metrics |= {f"train.{name}": value for name, value in evidence.facts.items()}
    if data.sample is not None:
        metrics |= streaming_facts(data, state.train[0], state.options.batch_size, fit)
    if data.target_transform is not None:  # log p(y) = log p(T(y)) + log dT/dy of every row
        slopes = data.target_transform.log_slope(data.scaler.original_mean(data.train_y))
        gained = float(slopes.sum()) + data.num_train * float(data.scaler.target_scale.log())
        metrics["train.log_jacobian"] = gained
        if "train.mnlp" in metrics:
            metrics["train.mnlp"] -= gained / data.num_train
    if "train.mnlp" in metrics and data.num_test:  # of models that can over-fit, which say so
        metrics["test.mnlp_gap"] = metrics["test.mnlp"] - metrics["train.mnlp"]
    metrics |= {f"predict.{name}": value for name, value in predictor.posterior.facts().items()}
    if state.options.baselines and data.num_test:
        for name, values in baselines(data.in_memory).items():
            metrics |= {f"baseline.{name}.{key}": value for key, value in values.items()}
    if state.options.certify:
        points = chosen_points(data)
        report = certify_run(predictor, state.config, data, points, CertifyOptions())
        write_report(report, state.folder)
        metrics |= {f"certificate.{name}": value for name, value in report.values().items()}
        state.console.say(report.sentence())
    if state.options.figures and predictive is not None:
        _draw(state, predictor, predictive, scores, fit.steps)
    state.folder.write_json(state.folder.metrics, metrics)
    if state.optimizer.finish():  # until here the run could be resumed, and needed it
        save_checkpoint(state.folder.checkpoint, kept | {"optimizer": state.optimizer.state_dict()})
    for line in summary(metrics):
        state.console.say(line)
    state.console.say(f"run folder: {state.folder.path}")
    return metrics


def _calibrate(state: _Run, predictor: Predictor) -> dict[str, Any]:
    """Fit the recalibration on the held-out rows; what the checkpoint keeps of it."""
    if state.calibration is None or state.held_out is None:
        return {}
    x, y = state.held_out
    state.calibration.fit(predictor.distribution(x), y)
    predictor.calibration = state.calibration
    found = ", ".join(f"{k} {v:.4g}" for k, v in state.calibration.facts().items())
    state.console.say(f"calibrated on {len(y):,} held-out points: {found}")
    return {"calibration": state.calibration.state_dict()}


def _final_evidence(state: _Run) -> Evidence:
    """Over all training data; optimisers that make their own steps have it at hand."""
    generator = stream(state.config.seed, "final evidence", state.device)
    return state.optimizer.evidence_at_end(
        state.model,
        state.objective,
        *state.train,
        batch_size=state.options.batch_size,
        generator=generator,
    )


def _draw(
    state: _Run,
    predictor: Predictor,
    predictive: Distribution,
    scores: dict[str, float],
    step: int,
) -> None:
    """Figures as PNG and into TensorBoard, with the scores."""
    pictures = draw_results(state.data.in_memory, predictor, predictive)
    for name, figure in pictures.items():
        state.folder.write_figure(name, figure)
    if state.options.tensorboard:
        board = TensorBoard(state.folder.own_folder(state.folder.tensorboard))
        for name, figure in pictures.items():
            board.figure(name, figure, step)
        board.metrics(step, scores)
        board.close()
