"""Training runs for experiments, in a temporary folder or in one that is kept.

Scripts import this file as described in ``record``.
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
"""No figures, no TensorBoard and no tests during training, which all take time."""


class Finished(NamedTuple):
    """Files of a finished run."""

    metrics: dict[str, Any]
    config: DictConfig
    environment: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Finished:
        """Read the folder of a finished run."""
        config = OmegaConf.load(folder / "config.yaml")
        assert isinstance(config, DictConfig)
        names = ("metrics.json", "environment.json")
        metrics, environment = (json.loads((folder / name).read_text()) for name in names)
        return cls(metrics, config, environment)


class Trained(NamedTuple):
    """Metrics, configuration and processor seconds of a run, and the result of ``inspect``."""

    metrics: dict[str, Any]
    config: DictConfig
    seconds: float
    found: Any


def trained(
    options: Sequence[str], inspect: Callable[[RunFolder], Any] = lambda _: None
) -> Trained:
    """Train and test in this process.

    Args:
        options: as on the command line.
        inspect: called with the run's folder, which is deleted afterwards.
    """
    config = composed([*QUIET, *options])
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        began = time.process_time()
        metrics = run(config, folder)
        seconds = time.process_time() - began
        return Trained(metrics, folder.read_own_config(), seconds, inspect(folder))


def train_in(folder: Path, options: Sequence[str]) -> None:
    """Run ``python train.py`` in a folder, or resume a run that was stopped there."""
    if (folder / "metrics.json").exists():
        return
    target = [f"hydra.run.dir={folder}", *options]
    if (folder / "checkpoint.pt").exists():
        target = [f"resume={folder}"]
    subprocess.run([sys.executable, str(ROOT / "train.py"), *target], check=True)
