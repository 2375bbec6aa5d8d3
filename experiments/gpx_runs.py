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
from gpx.runs import RunFolder, resume, run

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


def check_options(options: Sequence[str], folder: RunFolder) -> None:
    """Refuse a run that was made by other options, whose results would count as those of these.

    Raises:
        ValueError: the run in ``folder`` has another value of one of ``options``.
    """
    here, asked = folder.read_own_config(), composed(options)
    for name in (option.partition("=")[0].lstrip("+") for option in options):
        if "." not in name or name.startswith("hydra."):
            continue  # a choice of a group, which a config does not name
        found, wanted = OmegaConf.select(here, name), OmegaConf.select(asked, name)
        if found != wanted:
            raise ValueError(
                f"{folder.path} holds a run with {name}={found}, not {wanted}: delete it, or train "
                f"it further by train.py resume={folder.path} {name}={wanted} if that is meant"
            )


def train_or_resume(options: Sequence[str], folder: RunFolder) -> float | None:
    """Train in this process, or go on where that was stopped; a finished run stays as it is.

    Returns:
        Processor seconds; None where some are not known.

    Raises:
        ValueError: as ``check_options``.
    """
    before = time.process_time()
    if folder.checkpoint.exists():
        check_options(options, folder)
        if not folder.metrics.exists():
            resume(folder.path)
        return None
    run(composed(options), folder)
    return time.process_time() - before


def train_in(folder: Path, options: Sequence[str]) -> None:
    """Run ``python train.py`` in a folder, or resume a run that was stopped there.

    Raises:
        ValueError: as ``check_options``.
    """
    if (folder / "checkpoint.pt").exists():
        check_options(options, RunFolder(folder))
    if (folder / "metrics.json").exists():
        return
    target = [f"hydra.run.dir={folder}", *options]
    if (folder / "checkpoint.pt").exists():
        target = [f"resume={folder}"]
    subprocess.run([sys.executable, str(ROOT / "train.py"), *target], check=True)
