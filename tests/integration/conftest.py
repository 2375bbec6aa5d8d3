import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from gpx.options.composition import composed as composed_config
from gpx.runs import RunFolder, run

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["trainer.baselines=false", "init.num_points=100", "init.max_evaluations=5"]
SMALL += ["trainer.figures=false"]  # they take longer than most runs: tests of them say so


@pytest.fixture
def composed():
    """Composed config for a list of overrides."""

    def build(*overrides):
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
            return compose("train", overrides=list(overrides))

    yield build
    GlobalHydra.instance().clear()


@pytest.fixture
def train(tmp_path):
    """Run a config in this process: (metrics, run folder)."""

    def start(*overrides, folder="run"):
        target = RunFolder(tmp_path / folder)
        return run(composed_config([*SMALL, *overrides]), target), target

    return start


@pytest.fixture(scope="module")
def train_once(tmp_path_factory):
    """``train`` for fixtures of a whole module."""

    def start(*overrides):
        target = RunFolder(tmp_path_factory.mktemp("once") / "run")
        return run(composed_config([*SMALL, *overrides]), target), target

    return start


@pytest.fixture
def command(tmp_path):
    """A script of the repository as a user runs it, from an empty folder."""

    def start(script, *arguments, wait=True, **environment):
        process = subprocess.Popen(
            [sys.executable, str(ROOT / script), *arguments],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not wait:
            return process
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    return start
