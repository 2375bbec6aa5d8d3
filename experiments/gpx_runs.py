"""Runs of gpx that experiments sum up: trained here and forgotten, or in folders that stay.

Scripts find this file as they find ``record``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from gpx.options.composition import composed
from gpx.runs import RunFolder, run

ROOT = Path(__file__).resolve().parents[1]
QUIET = ("trainer.figures=false", "trainer.tensorboard=false", "trainer.eval_every=0")
"""No files and no tests on the way: what takes time beside the training itself."""


class Finished(NamedTuple):
    """What a run leaves in its folder."""

    metrics: dict[str, Any]
    config: DictConfig
    environment: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Finished:
        """Of a folder that is finished."""
        config = OmegaConf.load(folder / "config.yaml")
        assert isinstance(config, DictConfig)
        names = ("metrics.json", "environment.json")
        metrics, environment = (json.loads((folder / name).read_text()) for name in names)
        return cls(metrics, config, environment)


class Trained(NamedTuple):
    """A run that is over: what it left, its processor seconds, and what was asked of it."""

    metrics: dict[str, Any]
    config: DictConfig
    seconds: float
    asked: Any


def trained(options: Sequence[str], ask: Callable[[RunFolder], Any] = lambda _: None) -> Trained:
    """Train and test in this process.

    Args:
        options: as on the command line.
        ask: called with the run's folder, which is gone afterwards.
    """
    config = composed([*QUIET, *options])
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        began = time.process_time()
        metrics = run(config, folder)
        seconds = time.process_time() - began
        return Trained(metrics, folder.read_own_config(), seconds, ask(folder))


def train_in(folder: Path, options: Sequence[str]) -> None:
    """``python train.py`` into a folder that stays; goes on where an earlier one was stopped."""
    if (folder / "metrics.json").exists():
        return
    target = [f"hydra.run.dir={folder}", *options]
    if (folder / "checkpoint.pt").exists():
        target = [f"resume={folder}"]
    subprocess.run([sys.executable, str(ROOT / "train.py"), *target], check=True)
