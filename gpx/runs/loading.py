"""Loading of trained models from run folders."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from gpx.calibration import Recalibration
from gpx.data import Standardiser
from gpx.data.columns.coding import Coding
from gpx.data.target_transform import TargetTransform
from gpx.errors import CheckpointError, ConfigError
from gpx.installation import resuming
from gpx.linalg import available_memory, budget_in_bytes
from gpx.options.build import build, build_model
from gpx.options.tree import changed
from gpx.runs.folder import RunFolder
from gpx.runs.origin import require_same_model, version_note, version_of
from gpx.runs.predictor import Predictor
from gpx.tensor_checks import is_number
from gpx.training.checkpoint import load_checkpoint
from gpx.training.device import DTYPES, resolve_device
from gpx.warned_line import users_line


def load(run: str | Path, device: str = "cpu", trust: Sequence[str] | str = ()) -> Predictor:
    """Load the trained model of a run folder; it predicts without the training data.

    Loading executes nothing in the folder and builds only classes of gpx and of trusted packages,
    so that folders of others are safe to load::

        gpx.load("outputs/...", trust=("my_package",))

    Args:
        run: folder written by ``train.py``.
        device: to compute on.
        trust: further packages whose classes (a kernel, a likelihood) the run uses.

    Raises:
        CheckpointError: the folder has no finished run, its files do not match, or it names a class
            of a package that is not trusted.
        ConfigError: an option that this version of gpx does not know, or of another type.
    """
    folder = RunFolder(run)
    return finished_predictor(folder, folder.read_config(trust), device)


def finished_predictor(folder: RunFolder, config: DictConfig, device: str) -> Predictor:
    """As ``load``, with the config of the folder already read."""
    where = resolve_device(device, "device")
    state = load_checkpoint(folder.checkpoint, where)
    if "posterior" not in state:
        raise CheckpointError(
            f"the run in {folder.path} is not finished; finish it with: {resuming(folder.path)}"
        )
    require_same_model(state, config, str(folder.config))
    note = version_note(version_of(state))
    if note:
        warnings.warn(f"{folder.path} is of another version of gpx{note}", stacklevel=users_line())
    try:
        return restore_predictor(config, state, where)
    except ConfigError as error:
        raise ConfigError(f"{folder.config}: {error}{note}") from error


def within_memory(config: DictConfig, device: torch.device) -> DictConfig:
    """A copy of the config whose memory budgets do not exceed the memory of ``device``.

    Those of zero, which runs of earlier versions could have, become automatic.
    """
    free = available_memory(device)

    def fitting(option: str, value: Any) -> Any:
        if option not in ("memory_budget", "memory_budget_gib") or not is_number(value):
            return value
        if value <= 0:
            return None if option.endswith("_gib") else budget_in_bytes(None, free)
        beyond = option == "memory_budget" and value > (free or value)
        return budget_in_bytes(None, free) if beyond else value

    made = OmegaConf.create(changed(OmegaConf.to_container(config, resolve=False), fitting))
    assert isinstance(made, DictConfig)
    return made


def restore_predictor(config: DictConfig, state: dict, device: torch.device) -> Predictor:
    """A predictor from a config and the contents of a finished run's checkpoint."""
    trainer = config.get("trainer")
    dtype = trainer.get("dtype") if isinstance(trainer, DictConfig) else None
    if dtype not in DTYPES:
        raise ConfigError(f"trainer.dtype={dtype}: expected {' or '.join(DTYPES)}")
    dtype = DTYPES[dtype]
    model = build_model(within_memory(config, device)).to(device, dtype)
    try:
        posterior = model.new_posterior().to(device, dtype)
        posterior.load_state_dict(state["posterior"])
        model.likelihood.load_state_dict(state["likelihood"])
        calibration: Recalibration | None = build(config, "calibrate")
        if calibration is not None:
            calibration.to(device).load_state_dict(state["calibration"])
        target_names = tuple(state.get("target_names", ()))
        scaler = Standardiser(len(state["input_names"]), len(target_names) or 1)
        scaler.load_state_dict({k: v.cpu() for k, v in state["scaler"].items()})
        transform = state.get("target_transform")
        kept = state.get("coding")  # absent in runs of earlier versions
        coding = None if kept is None else Coding.from_state(kept)
        if coding is not None and coding.input_names != tuple(state["input_names"]):
            raise ValueError("the columns of the table do not match the inputs of the model")
        return Predictor(
            posterior,
            model.likelihood,
            scaler,
            tuple(state["input_names"]),
            state["target_name"],
            tuple(state.get("labels", ())),
            target_names,
            calibration,
            coding,
            None if transform is None else TargetTransform.from_state(transform),
        )
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"checkpoint.pt does not fit config.yaml: {error}") from error
