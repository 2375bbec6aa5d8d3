"""A run stopped at any step and resumed gives, bit for bit, the run that was never stopped."""

import json
import signal
import time
from pathlib import Path

import pytest

from gpx.training import RunFolder, resume, run
from gpx.training.interrupt import Interrupted

UNCOUNTED = ("seconds", "peak_mib")
SETTINGS = {
    "sgpr-rounds": [
        "data.num_points=200",
        "trainer.max_steps=9",
        "approx.num_inducing=15",
        "approx.reinitialise=2",
    ],
    "sgpr-auto": [
        "inducing=auto",
        "data.num_points=120",
        "trainer.max_steps=8",
        "approx.tolerance=20",
    ],
    "sgpr-eigenfunctions": [
        "inducing=eigenfunctions",
        "data.num_points=200",
        "trainer.max_steps=8",
        "approx.num_inducing=30",
        "approx.reinitialise=1",
    ],
    "grief": [
        "data.num_points=600",
        "trainer.max_steps=10",
        "approx.num_eigenfunctions=40",
        "approx.reselect=2",
    ],
    "reweighted-type2": [
        "inference=type2",
        "data.num_points=600",
        "trainer.max_steps=10",
        "approx.num_basis=40",
    ],
    "reweighted-householder": [
        "approx.structure=householder",
        "data.num_points=600",
        "approx.num_basis=12",
        "optimizer.burn_in=4",
        "optimizer.iterations=6",
        "optimizer.thin=2",
    ],
    "reweighted-relevance": [
        "inference=relevance_vectors",
        "basis=dictionary",
        "approx.priors=null",
        "data.num_points=600",
        "approx.num_basis=60",
    ],
    "reweighted-importance": [
        "inference=type2",
        "basis=importance_weighted",
        "approx.priors=null",
        "data.num_points=600",
        "trainer.max_steps=10",
        "approx.num_basis=40",
    ],
    "qsgp": [
        "data.num_points=600",
        "approx.num_basis=2000",
        "approx.block_columns=200",
        "approx.basis.block_frequencies=50",
        "optimizer.sweeps=2",
        "optimizer.noise=evidence",
    ],
    "qsrvm-stochastic": [
        "optimizer=qsrvm_stochastic",
        "approx.sweeps=0",
        "data.num_points=600",
        "optimizer.rows=50",
        "trainer.max_steps=30",
    ],
    "qsgp-stochastic": [
        "optimizer=qsgp_stochastic_blocks",
        "data.num_points=600",
        "approx.num_basis=2000",
        "approx.block_columns=200",
        "approx.basis.block_frequencies=50",
        "optimizer.rows=200",
        "trainer.max_steps=15",
    ],
    "qsgp-gradients": [
        "optimizer=qsgp",
        "data.num_points=600",
        "trainer.max_steps=30",
        "approx.num_basis=2000",
        "trainer.batch_size=100",
        "objective.columns=400",
        "objective.support_rows=50",
        "approx.warm_start_size=500",
        "optimizer.groups.hyperparameters.freeze_steps=10",
    ],
}


def counted(metrics):
    return {k: v for k, v in metrics.items() if k.rpartition(".")[2] not in UNCOUNTED}


@pytest.fixture
def stop_at(monkeypatch):
    """Deliver a signal to the running trainer after a number of steps."""
    from gpx.training.session import Session

    original = Session.end_step

    def arrange(step):
        def check(session):
            if session.step == step:
                session.guard.received = signal.SIGTERM
            original(session)

        monkeypatch.setattr(Session, "end_step", check)

    yield arrange
    monkeypatch.setattr(Session, "end_step", original)


@pytest.mark.parametrize("approx", SETTINGS)
@pytest.mark.parametrize("step", [1, 7])
def test_stopped_and_resumed_equals_never_stopped(composed, tmp_path, stop_at, approx, step):
    overrides = [
        "data=robot_arm",
        f"approx={approx.partition('-')[0]}",
        "init.num_points=100",
        "init.max_evaluations=5",
        "trainer.baselines=false",
        "trainer.figures=false",
        *SETTINGS[approx],
    ]
    whole = run(composed(*overrides), RunFolder(tmp_path / "whole"))

    folder = RunFolder(tmp_path / "stopped")
    stop_at(step)
    with pytest.raises(Interrupted):
        run(composed(*overrides), folder)
    assert not folder.metrics.exists()
    stop_at(-1)
    metrics = resume(str(folder.path))
    assert counted(metrics) == counted(whole)
    assert json.loads(folder.metrics.read_text()) == metrics
    assert len(json.loads(folder.environment.read_text())["resumed"]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_command(command, tmp_path, number):
    process = command(
        "train.py",
        "approx=svgp",
        "data=toy1d",
        "approx.num_inducing=10",
        "trainer.max_steps=1000000",
        "trainer.baselines=false",
        "init=constants",
        "hydra.run.dir=out",
        wait=False,
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("step"):
            break
    time.sleep(0.5)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, "".join(lines) + err
    assert "stopped; go on with: python train.py resume=out" in err
    assert "Traceback" not in err
    assert (tmp_path / "out" / "checkpoint.pt").exists()


def test_killed_before_its_first_checkpoint_starts_again(composed, tmp_path):
    overrides = ["data=toy1d", "approx=exact", "init=constants", "trainer.max_steps=3"]
    whole = run(composed(*overrides), RunFolder(tmp_path / "whole"))
    folder = RunFolder(tmp_path / "killed")
    folder.path.mkdir()
    folder.write_config(_resolved(tmp_path / "whole"))
    assert counted(resume(str(folder.path))) == counted(whole)


def _resolved(path):
    return RunFolder(path).read_config()


def test_own_data_resume_from_any_folder(composed, tmp_path, monkeypatch):
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(f"{i / 10},{(i % 7) / 7}" for i in range(60)) + "\n")
    monkeypatch.chdir(tmp_path)
    overrides = ["data=csv", "data.path=mine.csv", "approx=exact", "init=constants"]
    config = composed(*overrides, "trainer.max_steps=3", "trainer.figures=false")
    whole = run(config, RunFolder("whole"))
    Path("stopped").mkdir()
    RunFolder("stopped").write_config(_resolved("whole"))
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert counted(resume("../stopped")) == counted(whole)
