"""Mistakes on the command line give one clear line and leave nothing behind."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from gpx.commands.train import USAGE_ERROR

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TINY = [
    "approx=exact",
    "data=toy1d",
    "init=constants",
    "trainer.max_steps=2",
    "trainer.baselines=false",
    "trainer.figures=false",
    "trainer.tensorboard=false",
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["approx=qsgpp"], "there is no approx=qsgpp; did you mean qsgp"),
        (["aprox=exact"], "there is no option aprox; did you mean approx?"),
        (
            ["run_dir=here"],
            "there is no option run_dir; another run folder is hydra.run.dir=",
        ),
        (["calibate=variance"], "there is no option calibate; did you mean calibrate?"),
        (["aprox.choose=2"], "approx.choose is an option of approx=auto, not of approx=exact"),
        (["aprox.zzz=2"], "there is no option aprox.zzz; did you mean approx?"),
        (["num_inducing=20"], "num_inducing; approx.num_inducing is an option of approx=cglb,"),
        (["zzz=1"], "valid are: approx, basis, calibrate, data, experiment"),
        (["data=kin40"], "there is no data=kin40; did you mean kin40k"),
        (["kernel=rbff"], "there is no kernel=rbff; did you mean rbf"),
        (["kernel=RBF"], "there is no kernel=RBF; did you mean rbf"),
        (["kernel=Matern32 + rbf"], "there is no kernel Matern32; did you mean matern32"),
        (["trainer.max_step=3"], "did you mean trainer.max_steps"),
        (["kernel.lengthscal=2"], "did you mean kernel.lengthscale"),
        (["trainer.max_steps=abc"], "trainer.max_steps"),
        (["trainer.max_steps=0"], "trainer.max_steps=0: expected at least 1"),
        (["trainer.dtype=float16"], "dtype=float16: expected one of float32, float64; did"),
        (["trainer.device=tpu0"], "trainer.device=tpu0"),
        (["seed"], "write name=value"),
        (["data.split=99"], "data.split=99"),
        (["data=csv", "data.path=nowhere.csv"], "nowhere.csv"),
        (["data=csv"], "data.path"),
        (["resume=nowhere"], "there is no run folder nowhere"),
        (
            ["approx=reweighted", "data=toy1d", "inference=type1_mala", "optimizer=lbfgsb"],
            "LBFGSB would maximise what inference=type1_mala is to integrate out",
        ),
        (
            ["approx=reweighted", "data=toy1d", "basis=importance_weighted"],
            "needs inference=type2 approx.priors=null",
        ),
        (
            ["approx=reweighted", "data=toy1d", "inference=relevance_vectors"],
            "it needs approx.priors=null",
        ),
        (
            ["approx=reweighted", "data=toy1d", "approx.priors.weight_mode=-1"],
            "approx.priors.weight_variance= of the priors: a log-normal prior needs a positive",
        ),
        (
            [
                "approx=reweighted",
                "data=toy1d",
                "basis=importance_weighted",
                "approx.basis.proposal.family=x",
            ],
            "approx.basis.proposal.family=x: expected one of same",
        ),
        (
            ["approx=qsgp", "data=toy1d", "approx.basis=orthogonal"],
            "approx.basis=orthogonal is now basis=orthogonal",
        ),
        (["data=toy1d", "approx.spread=1.2"], "renamed: use approx.basis.spread, an option of"),
        (
            ["approx=reweighted", "approx.grid.margin=0.2"],
            "the option approx.grid has been renamed: use approx.basis.grid, an option of",
        ),
        (
            ["data=toy1d", "basis=gauss_hermite", "+approx.basis.spread=2"],
            "approx.basis.spread: GaussHermiteFourier has no option spread",
        ),
        (
            ["data=toy1d", "approx=svgp", "basis=orthogonal"],
            "basis= sets it and needs one of them",
        ),
        (["resume=nowhere", "seed=1"], "there is no run folder nowhere"),
        (["resume=nowhere", "trust=own"], "there is no run folder nowhere"),
        (["resume=nowhere", "trust=own", "trust=other"], "give resume= and trust= only once"),
        (["trust=own"], "trust=own is only needed with resume="),
        (["resume="], "resume= names no folder"),
        (["resume=''", "approx=exact"], "resume= names no folder"),
        (["+experiment=nonsense"], "nonsense"),
        (["experiment=null"], "experiment=null is not possible"),
        (
            ["approx.num_inducing=20"],
            "approx.num_inducing is an option of approx=cglb, conv_gp, deep_svgp, dkl, dtc,",
        ),
        (
            ["approx=svdkl", "approx.num_data="],
            "approx.num_data is an option of approx=cglb, conv_gp, deep_svgp, dkl, dtc, fic ..., "
            "not of approx=svdkl",
        ),
        (
            ["approx=reweighted", "data=toy1d", "approx.seed=3"],
            "the option approx.seed has been renamed: use approx.basis.seed, an option of basis=",
        ),
        (
            ["approx=reweighted", "basis=gauss_hermite", "approx.basis.spread=2"],
            "structured_orthogonal, not of basis=gauss_hermite",
        ),
        (
            ["approx=exact", "approx.num_inducin=20"],
            "there is no option approx.num_inducin; approx.num_inducing is an option of approx=",
        ),
        (
            ["approx=reweighted", "basis=dictionary", "approx.basis.num_function=20"],
            "valid are: approx.basis.num_data, approx.basis.num_inputs",
        ),
        (["approx=svgp", "lr=1"], "did you mean optimizer.groups.hyperparameters.lr or"),
        (["approx=svgp", "optimizer.groups.precisions.lr=1"], "optimizer=qsrvm, not of"),
        (
            ["approx=sgpr", "approx.selector=greedy"],
            "approx.selector=greedy is now selector=greedy",
        ),
        (["approx=svgp", "approx.family=full"], "approx.family=full is now family=full"),
        (["approx=svgp", "selector=greddy"], "there is no selector=greddy; did you mean greedy?"),
        (
            ["approx=svgp", "selector=kmeans", "approx.selector.max_point=3"],
            "did you mean approx.selector.max_points",
        ),
        (["-m", "seed=0,1", "hydra/launcher=submitit_slurm", "hydra.sweep.dir=s"], "[cluster]"),
        (["likelihood._target_=nowhere.Noise"], "cannot build likelihood=nowhere.Noise"),
        (["kernel._target_=gpx.kernels.RBFF"], "cannot build kernel=gpx.kernels.RBFF"),
        (["~kernel"], "kernel= is not chosen"),
        (["prior.median=3"], "prior= has no options as long as it is not chosen: choose"),
        (["approx=qsgp", "basis=orthogonal", "basis.seed=1"], "are written approx.basis.NAME="),
        (["approx=ski", "projection=unit", "projection.num=9"], "written approx.projection.NAME="),
        (["approx=qsgp", "selector.seed=9"], "selector= are written approx.selector.NAME="),
        (["approx=svgp", "optimizer=svgp", "optimizer.groups=[]"], "groups: expected options by"),
        (["kernel=rbf,matern32"], "add -m to sweep"),
        (["aprox.num_inducing=5", "approx=sgpr"], "did you mean approx.num_inducing?"),
        (["--max_steps=3"], "have no dashes; also, there is no option max_steps; did you mean tr"),
        (["--kernel=rbf"], "--kernel=rbf: options have no dashes; write kernel=rbf"),
        (["--approx"], "--approx: options have no dashes; write approx=VALUE"),
        (
            ["data=/a/mine.csv"],
            "no data=/a/mine.csv; for a table of your own write data=csv data.path=/",
        ),
        (["data=mine.csv"], "there is no data=mine.csv; for a table of your own write dat"),
        (["data=in/mine.npz"], "a table of your own write data=npz data.path=in/mine.npz"),
        (["data=csv", "data.path="], "data.path= is empty: name the file to read"),
        (
            ["kernel=auto", "kernel.choose=abc"],
            "kernel.choose=abc: expected auto; to choose",
        ),
        (
            ["approx=auto", "approx.choose=abc"],
            "approx.choose=abc: expected auto; to choose",
        ),
        (
            ["approx=svgp", "approx.strategy={a:1}"],
            "approx.strategy={'a': 1}: expected a subclass of Strategy as approx.strategy._target_",
        ),
        (
            ["approx=ski", "approx.projection=[]"],
            "approx.projection=[]: expected a subclass of Projection as approx.projection._target_",
        ),
        (
            ["approx=pitc", "approx.block_centres=abc"],
            "approx.block_centres=abc: expected rows of numbers, a list for each block",
        ),
        (
            ["approx=pitc", "approx.block_centres=[[1],[2,3]]"],
            "approx.block_centres=[[1], [2, 3]]: expected rows of numbers, a list for each block",
        ),
        (["data=csv", "data.path=."], "error: . is a folder, expected a file"),
        (["kernel=rbf/linear"], "a quotient of kernels is not a kernel"),
        (["trainer.loggers=wandb"], "expected a list, in brackets: trainer.loggers=[...]"),
        (["~trainer.max_steps"], "~trainer.max_steps: options cannot be deleted; leave this out"),
        (["seed=abc"], "seed=abc: expected a whole number"),
        (
            ["approx=svgp", "objective.num_data=3"],
            "objective.num_data=3 but there are 180 training rows: leave it out",
        ),
        *(
            ([f"approx={approx}", "objective.num_data=181"], "objective.num_data=181 but")
            for approx in ("vnngp", "swsgp", "qsrvm", "qsgp_inducing")
        ),
        (["data.split=1.5"], "data.split=1.5: expected a whole number"),
        (["optimizer.ftol=abc"], "optimizer.ftol=abc: expected a number"),
        (["kernel.ard_num_dims=5"], "5 lengthscales"),
        (["init=subset", "init.num_points=0"], "init.num_points=0"),
        (["optimizer=svgp", "optimizer.schedule.name=cosin"], "cosin"),
        (["optimizer=svgp", "optimizer.groups.hyperparameters.algorithm=adm"], "adm"),
        (["hydra.run.dir=/dev/null/run"], "/dev/null/run"),
    ],
)
def test_one_line_and_nothing_left_behind(train_py, tmp_path, arguments, expected):
    status, err = (
        train_py(*TINY, *arguments) if arguments[0][:6] != "resume" else train_py(*arguments)
    )
    assert status == USAGE_ERROR
    lines = err.strip().splitlines()
    complaints = [line for line in lines if not line.startswith(("data ", "note: "))]
    assert len(complaints) == 1, err
    assert complaints[0].startswith("error: ")
    assert expected in complaints[0]
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_run_that_failed_at_once_may_be_deleted(train_py, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").touch()
    status, err = train_py(*TINY, "hydra.run.dir=out")
    assert status == USAGE_ERROR
    assert "holds a run that ended before its first checkpoint" in err
    assert "or delete it, or choose another hydra.run.dir" in err


def test_kernels_of_classes_are_chosen_under_a_prior_that_is_resumed(train_py, tmp_path):
    """The composed config has no entry for a prior that nobody chose, and allows none to be set."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 2, generator=generator).tolist()
    lines = [f"{a},{b},{'good' if a * b > 0.0 else 'bad'}" for a, b in rows]
    (tmp_path / "mine.csv").write_text("\n".join(["a,b,quality", *lines]) + "\n")
    folder = tmp_path / "run"
    status, err = train_py(
        *("data=csv", f"data.path={tmp_path / 'mine.csv'}", "kernel.max_evaluations=5"),
        *(*TINY[3:], f"hydra.run.dir={folder}"),
    )
    assert status == 0, err
    assert "_target_: gpx.priors.DimensionScaled" in (folder / "config.yaml").read_text()
    status, err = train_py(f"resume={folder}", "trainer.max_steps=4")
    assert status == 0, err


def test_a_run_folder_is_never_overwritten(train_py, tmp_path):
    assert train_py(*TINY, "hydra.run.dir=out")[0] == 0
    before = (tmp_path / "out" / "metrics.json").read_bytes()
    status, err = train_py(*TINY, "hydra.run.dir=out")
    assert status == USAGE_ERROR
    assert "already holds a run" in err
    assert (tmp_path / "out" / "metrics.json").read_bytes() == before
    status, err = train_py("resume=out")
    assert status == USAGE_ERROR
    assert "is finished" in err


def test_a_finished_run_goes_on_with_more_steps_and_with_nothing_else(train_py, tmp_path):
    assert train_py(*TINY, "hydra.run.dir=out")[0] == 0
    metrics, config = (tmp_path / "out" / name for name in ("metrics.json", "config.yaml"))
    before, options = json.loads(metrics.read_text()), config.read_text()
    for option, expected in (
        (
            "seed=1",
            "seed=1 cannot be changed; only objective.*, optimizer.*, trainer.* and the loc",
        ),
        ("approx=sgpr", "approx=sgpr cannot be changed"),
        ("trainer.dtype=float32", "trainer.dtype=float32 cannot be changed"),
        ("trainer.max_steps", "trainer.max_steps cannot be changed"),
        ("trainer.nonsense=1", "trainer.nonsense=1: the run has no option trainer.nonsense"),
        ("trainer.max_steps=few", "trainer.max_steps=few: expected a whole number"),
    ):
        status, err = train_py("resume=out", option)
        assert status == USAGE_ERROR
        assert expected in err
        assert json.loads(metrics.read_text()) == before
        assert config.read_text() == options
    steps = before["train.steps"] + 2
    status, err = train_py("resume=out", f"trainer.max_steps={steps}", "optimizer.ftol=0")
    assert status == 0, err
    assert f"note: trainer.max_steps is {steps} from now on" in err
    assert json.loads(metrics.read_text())["train.steps"] == steps
    assert f"max_steps: {steps}" in config.read_text()
    assert train_py("resume=out")[0] == USAGE_ERROR  # finished again


def test_a_class_of_ones_own_is_resumed_with_trust(train_py, tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text("from gpx.means import Zero\nclass Mine(Zero): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert train_py(*TINY, "mean=zero", "mean._target_=own_parts.Mine", "hydra.run.dir=out")[0] == 0
    (tmp_path / "out" / "metrics.json").unlink()
    status, err = train_py("resume=out")
    assert status == USAGE_ERROR
    assert "mean=own_parts.Mine, which is not part of gpx and was not run" in err
    assert train_py("resume=out", "trust=own_parts")[0] == 0


def test_damaged_checkpoint_is_one_sentence_and_stays(train_py, tmp_path):
    assert train_py(*TINY, "hydra.run.dir=out")[0] == 0
    (tmp_path / "out" / "metrics.json").unlink()
    checkpoint = tmp_path / "out" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    status, err = train_py("resume=out")
    assert status == USAGE_ERROR
    assert "truncated or was not written by gpx" in err.strip().splitlines()[-1]
    assert checkpoint.stat().st_size == 500


def test_a_failing_run_of_a_sweep_does_not_stop_the_others(train_py, tmp_path):
    status, err = train_py(*TINY, "-m", "data.split=0,99,1", "hydra.sweep.dir=sweep")
    assert status == USAGE_ERROR
    assert "error in" in err
    assert "1 run of the sweep failed" in err
    finished = sorted(p.parent.name for p in tmp_path.glob("sweep/*/metrics.json"))
    assert finished == ["0", "2"]
    assert "| 2    | " in (tmp_path / "sweep" / "table.md").read_text()  # both in one row


def test_a_failing_run_of_a_parallel_sweep_is_in_the_exit_status(command, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    options = ["-m", "data.split=99,0", "hydra.sweep.dir=sweep", "hydra/launcher=joblib"]
    status, _, err = command("train.py", *TINY, *options)
    assert status == USAGE_ERROR
    assert "runs of the sweep failed, for example: data.split=99" in err
    assert "validated against" not in err
    assert [p.parent.name for p in tmp_path.glob("sweep/*/metrics.json")] == ["1"]


def test_help_names_groups_and_options(train_py, capsys):
    GlobalHydra.instance().clear()
    status, _ = train_py("--help")
    assert status == 0


def test_progress_is_plain_lines_when_piped(train_py):
    status, err = train_py(*TINY)
    assert status == 0
    assert "step 1/2" in err
    assert "\r" not in err
    assert "run folder: outputs/toy1d-exact/" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("stage", ["gpx.commands.train.run", "gpx.runs.prepared_run.load_run_data"])
def test_a_signal_before_training_is_told_in_one_line(
    train_py, tmp_path, monkeypatch, handled, number, stage
):
    monkeypatch.setattr(stage, lambda *_: os.kill(os.getpid(), number))
    status, err = train_py(*TINY)
    assert status == 128 + number
    assert err.strip() == "stopped immediately, without a new checkpoint"
    assert list(tmp_path.iterdir()) == []


def test_a_signal_before_a_run_goes_on_is_told_too(train_py, tmp_path, monkeypatch, handled):
    train_py(*TINY, "hydra.run.dir=done")
    monkeypatch.setattr(
        "gpx.runs.prepared_run.load_run_data", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
    status, err = train_py("resume=done", "trainer.max_steps=3")
    assert status == 128 + signal.SIGTERM
    assert err.strip() == "stopped immediately, without a new checkpoint"


@pytest.fixture
def handled():
    """A signal that nothing takes up would end the tests; instead it fails the one at hand."""

    def fail(number, frame):
        pytest.fail(f"{signal.Signals(number).name} would have ended the process")

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, fail) for number in numbers}
    # tests that run in the background of a shell ignore it, and so would the run
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert all(signal.getsignal(number) is fail for number in numbers)
    for number, handler in before.items():
        signal.signal(number, handler)
