"""Runs that two processes share (gloo, on a CPU) against the same runs in one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from gpx.options.composition import composed
from gpx.runs import RunFolder, run

ROOT = Path(__file__).resolve().parents[2]
HANGING = 600
"""Seconds after which a process counts as hanging, however busy the machine is."""
QUIET = ("figures=false", "baselines=false", "tensorboard=false", "quiet=true")
COMMON = ["data=npz", "init=constants", *(f"trainer.{option}" for option in QUIET)]
CASES = {
    "svgp": [
        "approx=svgp",
        "approx.num_inducing=20",
        "trainer.batch_size=101",
        "trainer.dtype=float64",
    ],
    "svgp with known noise": [
        *("approx=svgp", "approx.num_inducing=20", "trainer.batch_size=101"),
        *("trainer.dtype=float64", "data.noise=variance"),
    ],
    "sgpr": ["approx=sgpr", "approx.num_inducing=20"],
    "cglb": [
        *("approx=cglb", "approx.num_inducing=20"),
        *("objective.solver.epsilon=1e-7", "objective.solver.product_dtype=float64"),
    ],
    "iterative": ["approx=exact", "approx.solver=iterative"],
    # from so short a lengthscale all is noise, and the first fit is repeated
    "start": [
        *("approx=sgpr", "approx.num_inducing=20", "init=subset", "init.num_points=60"),
        *("kernel=rbf", "kernel.lengthscale=1e-3"),
    ],
}
SCRIPT = """
import json, sys, weakref
import torch.distributed as dist
from gpx.options.composition import composed
from gpx.runs import RunFolder, run
from gpx.training.launched import launched_processes

with launched_processes():
    group = weakref.ref(dist.group.WORLD)
    for name, options in json.loads(sys.argv[2]).items():
        run(composed(options), RunFolder(f"{sys.argv[1]}/{name}"))
assert group() is None, "something keeps the processes' group, whose threads may abort the exit"
"""

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch has no torch.distributed")


@pytest.fixture(scope="module")
def common(tmp_path_factory):
    """Options of all runs: 720 training rows, enough for products to be divided."""
    draws = np.random.default_rng(0)
    x = draws.uniform(-3.0, 3.0, (800, 2))
    y = np.sin(2.0 * x[:, 0]) * x[:, 1] + 0.2 * draws.normal(size=800)
    path = tmp_path_factory.mktemp("data") / "rows.npz"
    np.savez(path, x=x, y=y, variance=draws.uniform(0.0, 0.5, 800))
    return [*COMMON, f"data.path={path}"]


def two_processes(*arguments):
    """Started as ``torchrun`` starts them, without its own process: (exit status, errors) of each.

    Signals, and a process that ends the other one, need ``torchrun``, which imports torch as well.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    group |= {"TORCHELASTIC_RUN_ID": "tests", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=os.environ | group | {"RANK": number, "LOCAL_RANK": number},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for number in "01"
    ]
    try:
        errors = [process.communicate(timeout=HANGING)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], errors


def torchrun(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def test_two_processes_find_what_one_finds(tmp_path, common):
    """The same numbers to rounding: sums over rows are added in another order."""
    options = {
        name: [*common, *case, "trainer.max_steps=4", "trainer.eval_every=2"]
        for name, case in CASES.items()
    }
    script = tmp_path / "shared.py"
    script.write_text(SCRIPT)
    statuses, errors = two_processes(script, tmp_path / "shared", json.dumps(options))
    assert statuses == [0, 0], errors
    for name, case in options.items():
        alone = run(composed(case), RunFolder(tmp_path / "alone" / name))
        shared = json.loads((tmp_path / "shared" / name / "metrics.json").read_text())
        tolerance = 1e-4 if name in ("cglb", "iterative") else 1e-8  # that of the solves
        for key in ("train.evidence", "test.rmse", "test.mnlp"):
            assert shared[key] == pytest.approx(alone[key], rel=tolerance), (name, key)


STOPPED = """
import time
import gpx.commands.train as command
from gpx.training.session import Session

save = Session.save

def save_and_wait(session):
    found = save(session)
    while session.guard.received is None:  # torchrun passes the signal on to every process
        time.sleep(0.01)
    return found

Session.save = save_and_wait
command.main()
"""


def test_a_shared_run_stops_and_goes_on_in_one_folder(tmp_path, common):
    script, folder = tmp_path / "train.py", tmp_path / "runs" / "run"
    script.write_text(STOPPED)
    options = [*CASES["sgpr"], *common, "trainer.max_steps=100000", "optimizer.ftol=0"]
    options += ["trainer.eval_every=0", "optimizer.gtol=0", "trainer.checkpoint_seconds=0"]
    started = torchrun(script, *options, f"hydra.run.dir={folder}")
    deadline = time.monotonic() + HANGING
    while not (folder / "checkpoint.pt").exists():
        assert time.monotonic() < deadline
        assert started.poll() is None, started.communicate()[1]
        time.sleep(0.1)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=HANGING)
    assert not (folder / "metrics.json").exists()
    assert [p.name for p in folder.parent.iterdir()] == ["run"]  # no second process made one
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("max_steps: 100000", "max_steps: 3"))
    statuses, errors = two_processes(ROOT / "train.py", f"resume={folder}")
    assert statuses == [0, 0], errors
    assert json.loads((folder / "metrics.json").read_text())["train.steps"] >= 3


SLOW_TO_SPEAK = """
import time
import gpx.commands.train as command

said = command.print_error

def print_error(error):
    time.sleep(2.0)  # torchrun looks ten times a second whether a process is gone
    said(error)

command.print_error = print_error
command.main()
"""


def test_methods_that_share_nothing_say_so(tmp_path, common):
    """Also where the other process fails first: it stays until the first one has spoken."""
    script = tmp_path / "train.py"
    script.write_text(SLOW_TO_SPEAK)
    started = torchrun(script, "approx=qsgp", *common, f"hydra.run.dir={tmp_path / 'run'}")
    _, errors = started.communicate(timeout=HANGING)
    assert started.returncode != 0
    said = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(said) == 1, errors
    assert "2 processes were started, but QuadruplyStochasticELBO runs in one process" in said[0]


def test_what_the_first_process_refuses_is_said_once_and_ends_the_other(tmp_path, common):
    """The second one is in training by then, and finds nobody to answer it."""
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "checkpoint.pt").write_text("")
    started = torchrun(ROOT / "train.py", *CASES["sgpr"], *common, f"hydra.run.dir={tmp_path}")
    _, errors = started.communicate(timeout=HANGING)
    assert started.returncode != 0
    assert len([line for line in errors.splitlines() if line.startswith("error:")]) == 1
    assert "already holds a run" in errors
    assert "[rank1]" not in errors  # no traceback
    assert "process 2 of the run" not in errors
