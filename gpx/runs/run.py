"""One run: prepared, trained, evaluated and written. The wiring of gpx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from gpx.data import Dataset
from gpx.errors import CheckpointError, ConfigError, WriteError
from gpx.installation import command
from gpx.linalg.processes import ALONE, sharing, work_shared
from gpx.linalg.replayed import record_cuda_graph, solves_recorded
from gpx.methods.base.start import StartWatch
from gpx.options.choices import with_choices_made
from gpx.options.config import CONFIGS, trainer_options
from gpx.options.names import option_names
from gpx.runs.choosing import kernel_choice
from gpx.runs.choosing.automatic import Compose, is_automatic, with_open_choices_made
from gpx.runs.environment import environment_record
from gpx.runs.folder import RunFolder
from gpx.runs.origin import (
    STEERING,
    changes,
    origin_of,
    require_same_model,
    version_note,
    with_changes,
)
from gpx.runs.prepared_run import (
    PreparedRun,
    check_values,
    checked_options,
    prepare,
    solves_refined,
)
from gpx.runs.report import finish
from gpx.runs.trust import require_known_server
from gpx.runs.watching.console import Console
from gpx.runs.watching.loggers import open_logger
from gpx.sampling.seeds import global_randomness, stream
from gpx.training.checkpoint import load_checkpoint
from gpx.training.device import out_of_memory_said, require_matmul, resolve_device
from gpx.training.interrupt import Interrupted
from gpx.training.trainer import FitResult, Trainer

STEERED = tuple(f"{group}." for group in STEERING)


def run(
    config: DictConfig,
    folder: RunFolder,
    compose: Compose | None = None,
    config_folders: Sequence[Path] = (CONFIGS,),
) -> dict[str, Any]:
    """Train, evaluate and write one run; goes on when ``folder`` holds its checkpoint.

    Args:
        config: composed config (configs/train.yaml).
        folder: run folder; nothing is written before data and model are known to be sound.
        compose: composes the same options with others, for ``approx=auto``; None where a method is
            named.
        config_folders: of config groups, in which ``kernel=auto`` looks for its candidates; of two
            kernels of one name that of the last is taken.

    Returns:
        the contents of metrics.json; nothing in processes that only share the work of training.

    Raises:
        GPXError: anything wrong with options, data, device or checkpoint, or a full disk.
        Interrupted: after SIGINT, SIGTERM or SIGHUP, with the checkpoint written.
    """
    data: Dataset | None = None
    if is_automatic(config) or kernel_choice.is_open(config):
        config, data = _chosen(config, compose, config_folders)
    config = with_choices_made(config)
    with option_names(config, CONFIGS):
        options = checked_options(config)
        if sharing().number:
            options = replace(options, quiet=True)
        device = resolve_device(options.device)
        require_matmul(options.matmul, device, refined=solves_refined(config))
        with global_randomness(config.seed):
            prepared = prepare(config, options, device, folder, data)
            try:
                budget = int(prepared.config.trainer.memory_budget)
                graphs = solves_recorded(record_cuda_graph if options.cuda_graphs else None)
                with out_of_memory_said(device, budget), graphs:
                    return _run_in_folder(prepared)
            except OSError as error:
                where, why = error.filename or folder.path, error.strerror or error
                text = f"{where} cannot be written: {why}"
                if folder.config.exists():
                    text += (
                        f"; when that is mended go on with: {command('train')} resume={folder.path}"
                    )
                raise WriteError(text) from error


def _chosen(
    config: DictConfig, compose: Compose | None, folders: Sequence[Path]
) -> tuple[DictConfig, Dataset]:
    """The config with the method and the kernel that suit in the place of auto, and the data."""
    with option_names(config, CONFIGS):
        check_values(config)
        options = trainer_options(config.trainer)
        device = resolve_device(options.device)
        with global_randomness(config.seed):
            say = Console(quiet=options.quiet or sharing().number > 0).say
            return with_open_choices_made(config, options, device, compose, folders, say)


def _run_in_folder(state: PreparedRun) -> dict[str, Any]:
    """Train, evaluate and write; raises OSError where the folder cannot be written."""
    if sharing().number:  # the first process writes, predicts and speaks
        _train(state)
        return {}
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
        folder.metrics.unlink(missing_ok=True)  # of a finished run that goes on
        folder.add_environment(record)
        try:
            for name in state.options.loggers:
                state.loggers.append(open_logger(name, folder.path))
            if state.options.tensorboard:
                from gpx.runs.watching.tensorboard import TensorBoard  # its library takes a while

                state.loggers.append(TensorBoard(folder.events()))
            for logger in state.loggers:
                logger.text("config", folder.config.read_text())
            trained = _train(state)
            with work_shared(ALONE):
                return finish(state, trained)
        finally:
            for logger in state.loggers:
                logger.close()
            state.console.close()


def resume(
    path: str | Path, trust: Sequence[str] | str = (), options: Sequence[str] = ()
) -> dict[str, Any]:
    """Go on with the run in folder ``path``, in the same folder, with its own config.

    What steers training (``trainer``, ``optimizer``, ``objective``) may be another from here on,
    as may the place where the data lie; it is said. The model, the data and the seed may not.
    A finished run goes on where ``options`` say what is to change, more steps for example; its
    metrics are gone until it is finished again.

    Args:
        path: the run folder.
        trust: packages of one's own whose classes config.yaml names; no others than these and those
            of gpx are built.
        options: ``name=value`` each, written into config.yaml; changes made there hold, too.

    Raises:
        ConfigError: an option that may not change, or that the run does not have.
        CheckpointError: no run there, its files are damaged or do not belong together, or a class
            that is not to be built; nothing is changed.
    """
    folder = RunFolder(path)
    config = with_changes(folder.read_config(trust), options)
    if config.get("data") is not None:
        require_known_server(config, folder.config)
    if folder.metrics.exists() and not any(o.startswith(STEERED) for o in options):
        raise CheckpointError(
            f"the run in {folder.path} is finished: see {folder.metrics}; "
            f"use {command('predict')}, train further with trainer.max_steps=, or start a new run"
        )
    versions = (folder.read_environment() or {}).get("versions")
    try:
        return run(config, folder)
    except ConfigError as error:
        note = version_note(versions.get("gpx") if isinstance(versions, dict) else None)
        raise ConfigError(f"{folder.config}: {error}{note}") from error


def _train(state: PreparedRun) -> FitResult:
    """Initialise and train, or go on from the checkpoint."""
    seed, device = state.config.seed, state.device

    def initialise(watch: StartWatch) -> None:
        draws = stream(seed, "hyperparameters", device)
        if state.start is not None:
            state.start(state.model, *state.sample, generator=draws, say=state.console.say)
        state.model.initialise_watched(
            *state.sample, generator=stream(seed, "model", device), watch=watch
        )
        state.objective.prepare(
            state.model, *state.train, generator=stream(seed, "estimator", device)
        )
        note = f": {state.told(state.model.note)}" if state.model.note else ""
        state.console.say(f"initialised {type(state.model).__name__}{note}")

    trainer = Trainer(
        config=state.options,
        seed=seed,
        checkpoint=state.folder.checkpoint,
        monitors=[state.console, *state.loggers],
        extra_state={"origin": state.origin},
        say=lambda line: state.console.say(state.told(line)),
    )
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
