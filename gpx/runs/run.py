"""One run from config to results: prepare, train, evaluate, write; and resuming a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from gpx.atomic_file import write_atomically
from gpx.bounds import move_within_bounds, remember_bounds
from gpx.data import Dataset
from gpx.errors import CheckpointError, ConfigError, WriteError
from gpx.installation import command, resuming
from gpx.linalg.processes import ALONE, sharing, work_shared
from gpx.linalg.replayed import record_cuda_graph, solves_recorded
from gpx.methods.base.start import StartWatch
from gpx.options.choices import with_choices_made
from gpx.options.config import CONFIGS, trainer_options
from gpx.options.groups import TRAINING_GROUPS
from gpx.options.names import option_names
from gpx.runs.choosing.automatic import Compose, is_automatic, with_open_choices_made
from gpx.runs.choosing.kernel_options import kernel_is_open
from gpx.runs.environment import environment_record
from gpx.runs.folder import RunFolder
from gpx.runs.origin import (
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
from gpx.training.input_steps import lengthen_below_steps
from gpx.training.interrupt import Interrupted
from gpx.training.progress import Monitor, check_monitors
from gpx.training.trainer import FitResult, Trainer

TRAINING_OPTIONS = tuple(f"{group}." for group in TRAINING_GROUPS)
"""Prefixes of options that may change when a run is resumed."""


def run(
    config: DictConfig,
    folder: RunFolder,
    compose: Compose | None = None,
    config_folders: Sequence[Path] = (CONFIGS,),
    monitors: Sequence[Monitor] = (),
) -> dict[str, Any]:
    """Train, evaluate and write one run; continues it if ``folder`` holds a checkpoint.

    Args:
        config: composed config (configs/train.yaml).
        folder: run folder; nothing is written before all checks have passed.
        compose: composes the config again with further options, for ``approx=auto``.
        config_folders: of config groups, in which ``kernel=auto`` finds its candidates; the last
            folder with a kernel of that name is used.
        monitors: receive progress and test metrics, and may end training.

    Returns:
        the contents of metrics.json; empty in processes other than the first under ``torchrun``.

    Raises:
        GPXError: invalid options, data, device or checkpoint, or a full disk.
        Interrupted: after SIGINT, SIGTERM or SIGHUP, with the checkpoint written.
    """
    data: Dataset | None = None
    if is_automatic(config) or kernel_is_open(config):
        config, data = _chosen(config, compose, config_folders)
    config = with_choices_made(config)
    with option_names(config):
        options = checked_options(config)
        if sharing().number:
            options = replace(options, quiet=True)
        device = resolve_device(options.device)
        require_matmul(options.matmul, device, refined=solves_refined(config))
        with _own_state(config.seed):
            with out_of_memory_said(device):
                prepared = prepare(config, options, device, folder, data)
            prepared.monitors = list(monitors)
            try:
                budget = int(prepared.config.trainer.memory_budget)
                graphs = solves_recorded(record_cuda_graph if options.cuda_graphs else None)
                with out_of_memory_said(device, budget), graphs:
                    return _run_in_folder(prepared)
            except OSError as error:
                where, why = error.filename or folder.path, error.strerror or error
                text = f"{where} cannot be written: {why}"
                if folder.config.exists():
                    text += f"; when that is solved, continue with: {resuming(folder.path)}"
                raise WriteError(text) from error


@contextmanager
def _own_state(seed: int) -> Iterator[None]:
    """Random states and gradients as a run needs them, whatever those of the caller are."""
    with global_randomness(seed), torch.inference_mode(False), torch.enable_grad():
        yield


def _chosen(
    config: DictConfig, compose: Compose | None, folders: Sequence[Path]
) -> tuple[DictConfig, Dataset]:
    """The config with method and kernel chosen in place of ``auto``, and the data."""
    with option_names(config):
        check_values(config)
        options = trainer_options(config.trainer)
        device = resolve_device(options.device)
        with _own_state(config.seed), out_of_memory_said(device):
            say = Console(quiet=options.quiet or sharing().number > 0).say
            return with_open_choices_made(config, options, device, compose, folders, say)


def _run_in_folder(state: PreparedRun) -> dict[str, Any]:
    """Train, evaluate and write; raises OSError where the folder cannot be written."""
    if sharing().number:  # only the first process writes, predicts and prints
        _train(state)
        return {}
    folder = state.folder
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        folder.clear_leftovers()
        record = environment_record(state.device, state.config.seed, state.data.checksums)
        folder.require_same_data(record)
        state.origin = origin_of(state.config, state.device)
        first_event = 0
        if folder.checkpoint.exists():
            stored = load_checkpoint(folder.checkpoint, mapped=True)
            require_same_model(stored, state.config, str(folder.config))
            for line in changes(stored, state.origin):
                state.console.say(line)
            first_event = int(stored.get("step", 0)) + 1
        try:
            for name in state.options.loggers:
                state.loggers.append(open_logger(name, folder.path))
            if state.options.tensorboard:
                from gpx.runs.watching.tensorboard import TensorBoard  # slow to import

                state.loggers.append(TensorBoard(folder.events(), first_event))
            files = (folder.config, folder.environment, folder.metrics)
            before = {path: path.read_bytes() for path in files if path.exists()}
            folder.write_config(state.config)
            folder.metrics.unlink(missing_ok=True)  # of a finished run that is resumed
            folder.add_environment(record)
            for logger in state.loggers:
                logger.text("config", folder.config.read_text())
            try:
                trained = _train(state)
            except CheckpointError:  # it does not fit the options, and no step was made with them
                for path, content in before.items():
                    write_atomically(path, content)
                raise
            with work_shared(ALONE):
                return finish(state, trained)
        finally:
            for logger in state.loggers:
                logger.close()
            state.console.close()


def resume(
    path: str | Path,
    trust: Sequence[str] | str = (),
    options: Sequence[str] = (),
    monitors: Sequence[Monitor] = (),
) -> dict[str, Any]:
    """Continue the run in folder ``path``, with its own config.

    Options of training (``trainer``, ``optimizer``, ``objective``) and the location of the data may
    be changed; the user is told of changes. Model, data and seed must stay the same. A finished run
    is only continued if ``options`` change its training, for example ``trainer.max_steps``; its
    metrics.json is then removed until it is finished again.

    Args:
        path: the run folder.
        trust: further packages whose classes config.yaml may name, beside those of gpx.
        options: ``name=value`` each, written into config.yaml; that file may be edited, too.
        monitors: as in ``gpx.fit``; those of the stopped session are not recorded.

    Raises:
        ConfigError: an option that must not change, or that the run does not have.
        CheckpointError: there is no run, its files are damaged or do not match, or config.yaml
            names a class of a package that is not trusted; nothing is changed.
    """
    check_monitors(monitors)
    folder = RunFolder(path)
    config = with_changes(folder.read_config(trust), options)
    if config.get("data") is not None:
        require_known_server(config, folder.config)
    if folder.metrics.exists() and not any(o.startswith(TRAINING_OPTIONS) for o in options):
        chains = "iterations" in (config.get("optimizer") or {})  # which end after so many steps
        longer = "optimizer.iterations" if chains else "trainer.max_steps"
        raise CheckpointError(
            f"the run in {folder.path} is finished (see {folder.metrics}): use "
            f"{command('predict')}, train further with {longer}=, or start a new run"
        )
    versions = (folder.read_environment() or {}).get("versions")
    try:
        return run(config, folder, monitors=monitors)
    except ConfigError as error:
        note = version_note(versions.get("gpx") if isinstance(versions, dict) else None)
        raise ConfigError(f"{folder.config}: {error}{note}") from error


def _train(state: PreparedRun) -> FitResult:
    """Initialise and train, or continue from the checkpoint."""
    seed, device = state.config.seed, state.device

    def initialise(watch: StartWatch) -> None:
        draws = stream(seed, "hyperparameters", device)
        remember_bounds(state.model, state.optimizer.bounds_of_values())
        if state.start is not None:
            state.start(state.model, *state.sample, generator=draws, say=state.console.say)
            lengthen_below_steps(state.model, state.sample[0], state.console.say)
        move_within_bounds(state.model)  # what follows is placed for the values that are trained
        state.model.initialise_watched(
            *state.sample, generator=stream(seed, "model", device), watch=watch
        )
        move_within_bounds(state.model)  # noise and scales may have been fitted to these
        state.objective.prepare(
            state.model, *state.train, generator=stream(seed, "estimator", device)
        )
        if state.model.note:
            note = state.with_option_names(state.model.note)
            state.console.say(f"initialised {type(state.model).__name__}: {note}")

    trainer = Trainer(
        config=state.options,
        seed=seed,
        checkpoint=state.folder.checkpoint,
        monitors=[state.console, *state.loggers, *state.monitors],
        extra_state={"origin": state.origin},
        say=lambda line: state.console.say(state.with_option_names(line)),
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
        state.console.say(f"stopped; continue with: {resuming(state.folder.path)}")
        raise
