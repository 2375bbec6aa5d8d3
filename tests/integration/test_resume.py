"""A run stopped at any step and resumed gives, bit for bit, the run that was never stopped."""

import json
import signal
import sys
from pathlib import Path

import pytest
from stopped_runs import stopped_at
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpx.errors import CheckpointError, DataError
from gpx.runs import RunFolder, load, resume, run
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
        "approx.trial_evaluations=0",
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


@pytest.mark.parametrize("approx", SETTINGS)
def test_stopped_and_resumed_equals_never_stopped(composed, tmp_path, approx):
    """Stopped after its first step, and again later."""
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
    with stopped_at(1):
        run(composed(*overrides), folder)
    with stopped_at(7):
        resume(str(folder.path))
    assert not folder.metrics.exists()
    metrics = resume(str(folder.path))
    assert counted(metrics) == counted(whole)
    assert json.loads(folder.metrics.read_text()) == metrics
    assert len(json.loads(folder.environment.read_text())["resumed"]) == 2


@pytest.mark.parametrize("options", [[], ["trainer.max_steps=9"]], ids=["ended", "given more"])
def test_a_run_killed_while_its_results_are_computed_goes_on_after_points_were_selected_anew(
    composed, tmp_path, monkeypatch, options
):
    overrides = ["data=toy1d", "approx=sgpr", "inducing=auto", "approx.tolerance=1"]
    overrides += ["init=constants", "trainer.max_steps=8"]
    overrides += ["trainer.baselines=false", "trainer.figures=false"]
    folders = [RunFolder(tmp_path / name) for name in ("whole", "killed")]
    whole = run(composed(*overrides), folders[0])
    if options:
        whole = resume(folders[0].path, options=options)

    class Killed(BaseException):
        pass

    def killed(state, fit):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[run.__module__], "finish", killed)
        with pytest.raises(Killed):
            run(composed(*overrides), folders[1])
    assert counted(resume(folders[1].path, options=options)) == counted(whole)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}


def test_options_with_which_a_stopped_search_cannot_go_on_change_nothing(composed, tmp_path):
    overrides = ["data=toy1d", "approx=exact", "init=constants", "trainer.max_steps=12"]
    overrides += ["trainer.tensorboard=false", "trainer.baselines=false", "trainer.figures=false"]
    folder = RunFolder(tmp_path / "run")
    with stopped_at(9):
        run(composed(*overrides), folder)
    before = files_of(folder)
    with pytest.raises(CheckpointError, match="cannot be resumed exactly"):
        resume(folder.path, options=["optimizer.memory=1"])
    assert files_of(folder) == before
    assert resume(folder.path)["train.steps"] == 12


def test_a_logger_that_cannot_be_opened_changes_nothing(composed, tmp_path):
    overrides = ["data=toy1d", "approx=exact", "init=constants", "trainer.max_steps=3"]
    overrides += ["trainer.tensorboard=false", "trainer.baselines=false", "trainer.figures=false"]
    folder = RunFolder(tmp_path / "run")
    run(composed(*overrides), folder)
    (folder.path / "tensorboard").symlink_to(tmp_path)
    before = files_of(folder)
    with pytest.raises(CheckpointError, match="is a link"):
        resume(folder.path, options=["trainer.max_steps=4", "trainer.tensorboard=true"])
    assert files_of(folder) == before


def test_a_signal_to_the_command(command, tmp_path):
    """Of the three that tests/training/test_interrupt.py knows."""
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
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM, "".join(lines) + err
    assert "stopped; continue with: python train.py resume=out" in err
    assert "Traceback" not in err
    assert (tmp_path / "out" / "checkpoint.pt").exists()


def test_killed_before_its_first_checkpoint_starts_again(composed, tmp_path):
    overrides = ["data=toy1d", "approx=exact", "init=constants", "trainer.max_steps=3"]
    overrides += ["trainer.baselines=false", "trainer.figures=false"]
    whole = run(composed(*overrides), RunFolder(tmp_path / "whole"))
    folder = RunFolder(tmp_path / "killed")
    folder.path.mkdir()
    folder.write_config(_resolved(tmp_path / "whole"))
    assert counted(resume(str(folder.path))) == counted(whole)


def test_steps_since_the_last_checkpoint_of_a_killed_run_are_drawn_once(composed, tmp_path):
    overrides = ["data=toy1d", "approx=sgpr", "approx.num_inducing=8", "init=constants"]
    overrides += ["trainer.max_steps=8", "trainer.log_every=1", "trainer.tensorboard=true"]
    overrides += ["trainer.baselines=false", "trainer.figures=false"]
    folder = RunFolder(tmp_path / "run")
    with stopped_at(2):
        run(composed(*overrides), folder)
    kept = folder.checkpoint.read_bytes()
    with stopped_at(5):
        resume(str(folder.path))
    folder.checkpoint.write_bytes(kept)  # as if killed at step 5
    assert resume(str(folder.path))["train.steps"] == 8
    events = EventAccumulator(str(folder.path)).Reload()
    assert [event.step for event in events.Scalars("evidence/per_point")] == list(range(1, 9))


def _resolved(path):
    return RunFolder(path).read_config()


def test_own_data_resume_from_any_folder(composed, tmp_path, monkeypatch):
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(f"{i / 10},{(i % 7) / 7}" for i in range(60)) + "\n")
    monkeypatch.chdir(tmp_path)
    overrides = ["data=csv", "data.path=mine.csv", "approx=exact", "init=constants"]
    overrides += ["trainer.max_steps=3", "trainer.baselines=false", "trainer.figures=false"]
    config = composed(*overrides)
    whole = run(config, RunFolder("whole"))
    Path("stopped").mkdir()
    RunFolder("stopped").write_config(_resolved("whole"))
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert counted(resume("../stopped")) == counted(whole)


def test_data_that_were_moved_are_told_as_an_option(composed, tmp_path):
    table, moved = tmp_path / "mine.csv", tmp_path / "there" / "mine.csv"
    moved.parent.mkdir()
    table.write_text("\n".join(f"{i / 10},{(i % 7) / 7}" for i in range(60)) + "\n")
    options = ["data=csv", f"data.path={table}", "approx=exact", "init=constants"]
    options += ["trainer.max_steps=3", "trainer.baselines=false", "trainer.figures=false"]
    folder = RunFolder(tmp_path / "run")
    whole = run(composed(*options), folder)
    table.rename(moved)
    folder.metrics.unlink()
    with pytest.raises(DataError, match=r"mine\.csv"):
        resume(folder.path)
    assert counted(resume(folder.path, options=[f"data.path={moved}"])) == counted(whole)
    assert folder.read_config().data.path == str(moved)
    folder.metrics.unlink()
    moved.write_text(moved.read_text().replace("0.1,", "0.2,", 1))
    with pytest.raises(CheckpointError, match="data"):
        resume(folder.path)
    folder.metrics.write_text("{}")
    with pytest.raises(CheckpointError, match="finished"):  # no step is asked for
        resume(folder.path, options=[f"data.path={moved}"])


PRETRAINED = {
    "dkl": ["approx.num_inducing=10", "data.num_points=200"],
    "svdkl": ["approx.grid_size=8", "approx.num_features=2", "data.num_points=200"],
}


@pytest.mark.parametrize("approx", PRETRAINED)
def test_pretraining_goes_on_where_it_was_stopped(composed, tmp_path, monkeypatch, capsys, approx):
    """Of 30 steps before training: told as they are made, and not made again."""
    from gpx.training.watched_start import WatchedStart

    config = composed(
        "data=robot_arm",
        f"approx={approx}",
        "approx.hidden=[4]",
        "approx.pretrain_steps=30",
        "init=constants",
        "trainer.max_steps=3",
        "trainer.baselines=false",
        "trainer.figures=false",
        *PRETRAINED[approx],
    )
    whole = run(config, RunFolder(tmp_path / "whole"))
    said = capsys.readouterr().err
    assert "pretraining, step 1/30" in said
    assert "pretraining, step 30/30" in said
    original, made = WatchedStart.step, []

    def stopping(watch, step, *others):
        made.append(step)
        if step == 12:
            watch._session.guard.received = signal.SIGTERM
        original(watch, step, *others)

    monkeypatch.setattr(WatchedStart, "step", stopping)
    folder = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        run(config, RunFolder(folder))
    assert made == list(range(1, 13))
    with pytest.raises(CheckpointError, match="is not finished"):
        load(folder)
    made.clear()
    found = resume(folder)
    assert made == list(range(13, 31))
    assert counted(found) == counted(whole)
