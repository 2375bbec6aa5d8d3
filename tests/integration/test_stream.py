"""Runs on rows in files: trained, stopped and resumed, predicted with, and refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from stopped_runs import stopped_at

import gpx
from gpx.commands.diagnose import main as diagnose
from gpx.data import Stream, load
from gpx.errors import CheckpointError, ConfigError
from gpx.objectives import SVGPELBO, QuadruplyStochasticELBO, SWSGPObjective
from gpx.options.build import build_model, target_of
from gpx.options.config import CONFIGS
from gpx.runs import RunFolder, resume, run
from gpx.sampling.batches import batch_order
from gpx.training.interrupt import Interrupted
from gpx.training.session import Session

ROWS = 3000
TIMED = ("second", "batch_rows_read", "peak_mib")
MODELS = {
    "svgp": ["approx=svgp", "approx.num_inducing=20"],
    "swsgp": ["approx=swsgp", "approx.num_inducing=40", "approx.num_neighbours=8"],
    "swsgp fixed": [
        "approx=swsgp",
        "approx.num_inducing=40",
        "approx.num_neighbours=8",
        "approx.learn_inducing=false",
    ],
    "qsgp": ["approx=qsgp", "optimizer=qsgp", "approx.num_basis=200", "objective.columns=100"],
}


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, size=(ROWS, 2))
    y = 10.0 * np.sin(x).sum(1) + rng.normal(size=ROWS)
    path = tmp_path / "parts"
    path.mkdir()
    for part, rows in enumerate(np.array_split(np.arange(ROWS), 3)):
        np.save(path / f"x_{part}.npy", x[rows].astype(np.float32))
        np.save(path / f"y_{part}.npy", y[rows].astype(np.float32))
    return path


@pytest.fixture
def start(composed, tmp_path, folder):
    def begin(*options, name="run"):
        small = ["init.num_points=100", "init.max_evaluations=5", "trainer.figures=false"]
        config = composed(
            *("data=stream", f"data.path={folder}", "data.buffer_rows=500"),
            *("trainer.max_steps=30", "trainer.batch_size=50", *small, *options),
        )
        return run(config, RunFolder(tmp_path / name))

    return begin


def untimed(metrics):
    return {k: v for k, v in metrics.items() if not any(word in k for word in TIMED)}


@pytest.mark.parametrize("model", MODELS)
def test_stopped_and_resumed_equals_never_stopped(start, tmp_path, model):
    whole = start(*MODELS[model], "trainer.baselines=false", name="whole")
    with stopped_at(13):
        start(*MODELS[model], "trainer.baselines=false", name="stopped")
    kept = (tmp_path / "stopped" / "checkpoint.pt").stat().st_size
    assert untimed(resume(tmp_path / "stopped")) == untimed(whole)
    assert kept < 2.5e5  # inducing points and weights; the data are not in it
    states = [torch.load(tmp_path / n / "checkpoint.pt") for n in ("whole", "stopped")]
    for name, value in states[0]["posterior"].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, states[1]["posterior"][name])


def test_what_a_run_tells_and_predicts(start, tmp_path, folder):
    metrics = start(*MODELS["svgp"], "trainer.max_steps=200", "trainer.batch_size=200")
    assert metrics["data.rows"] == ROWS
    assert metrics["data.train_rows"] + metrics["data.test_rows"] == ROWS
    assert metrics["train.rows_seen"] == 200 * 200
    assert metrics["train.rows_per_second"] > 0
    assert metrics["data.file_rows_per_second"] > metrics["train.rows_per_second"]
    # noise 1 on a target of standard deviation about 8: least squares leaves 0.4 of it
    assert metrics["test.rmse_original"] < 1.2
    assert metrics["baseline.linear.rmse_original"] > 1.5
    predicted = gpx.load(tmp_path / "run").predict([[0.5, -1.0]])
    assert abs(predicted.mean[0] - 10.0 * (np.sin(0.5) - np.sin(1.0))) < 1.0


def test_changed_data_are_not_gone_on_with(start, tmp_path, folder, monkeypatch):
    def stop(session):
        raise Interrupted(2)

    monkeypatch.setattr(Session, "end_step", stop)
    with pytest.raises(Interrupted):
        start(*MODELS["svgp"])
    y = np.load(folder / "y_1.npy")
    y[5] += 1.0
    np.save(folder / "y_1.npy", y)
    with pytest.raises(CheckpointError, match=r"data of the run in .* have changed"):
        resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "who"),
    [
        (["approx=sgpr"], "SGPR"),
        (["approx=exact"], "ExactGP"),
        (["approx=qsgp", "approx.num_basis=200"], "optimizer=qsgp_blocks"),
        (
            [*MODELS["qsgp"], "objective.snapshot=true", "likelihood=gaussian"],
            "QuadruplyStochasticELBO",
        ),
    ],
)
def test_what_needs_all_rows_is_refused(start, tmp_path, options, who):
    with pytest.raises(ConfigError, match=rf"{who} needs all training rows at once"):
        start(*options)
    assert not (tmp_path / "run").exists()


def test_a_model_whose_memory_would_grow_says_so(start):
    with pytest.raises(ConfigError, match=r"VNNGP keeps a value, .* memory would grow "):
        start("approx=vnngp")


def test_every_model_that_takes_streams_is_run_here():
    taking = set()
    for path in Path(CONFIGS, "approx").glob("*.yaml"):
        if path.stem == "auto":  # is one of the others
            continue
        if target_of(OmegaConf.load(path).approx, "approx").streams:
            taking.add(path.stem)
    assert taking == {name.split()[0] for name in MODELS}


def test_more_inducing_points_than_the_sample_has_rows(start):
    with pytest.raises(ConfigError, match=r"num_inducing=200 is above the \d+ rows of the sample"):
        start("approx=svgp", "approx.num_inducing=200", "data.sample_rows=100")


def test_certificates_need_all_rows(start):
    with pytest.raises(ConfigError, match="certify=true needs all training rows in memory"):
        start(*MODELS["svgp"], "trainer.certify=true")


@pytest.mark.parametrize("model", ["svgp", "swsgp"])
def test_evidence_and_posterior_are_those_of_the_rows_in_memory(composed, folder, model):
    data = load(Stream(str(folder), buffer_rows=300), task="regression")
    config = composed("data=stream", f"data.path={folder}", *MODELS[model])
    config.facts = {
        "num_train": data.num_train,
        "num_inputs": 2,
        "num_outputs": 1,
        "num_classes": 0,
    }
    every = torch.arange(data.num_train)
    x, y = data.train_x[every], data.train_y[every]
    torch.manual_seed(0)
    network = build_model(config).double()
    network.initialise(x, y, generator=torch.Generator().manual_seed(0))
    objective = {"svgp": SVGPELBO, "swsgp": SWSGPObjective}[model](num_data=data.num_train)
    found, expected = (
        objective.full_evidence(network, *rows, batch_size=128)
        for rows in ((data.train_x, data.train_y), (x, y))
    )
    torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=0.0)
    posterior, dense = (network.condition(*rows) for rows in ((data.train_x, data.train_y), (x, y)))
    torch.testing.assert_close(
        posterior.predict(data.test_x).mean, dense.predict(data.test_x).mean, rtol=1e-9, atol=1e-9
    )


def test_batches_of_files_estimate_the_evidence(composed, folder):
    data = load(Stream(str(folder), buffer_rows=300), task="regression")
    config = composed("data=stream", f"data.path={folder}", *MODELS["qsgp"])
    config.facts = {"num_train": data.num_train, "num_inputs": 2}
    every = torch.arange(data.num_train)
    x, y = data.train_x[every], data.train_y[every]
    network = build_model(config).double()
    network.initialise(x, y, generator=torch.Generator().manual_seed(0))
    objective = QuadruplyStochasticELBO(num_data=data.num_train, support_rows=0)
    objective.prepare(network, x, y, generator=torch.Generator().manual_seed(1))
    # all columns in both lists: what is left to chance is the rows
    found = objective.full_evidence(
        network,
        data.train_x,
        data.train_y,
        batch_size=64,
        generator=torch.Generator().manual_seed(2),
    )
    with torch.no_grad():
        exact = objective.evidence(network, x, y, generator=torch.Generator().manual_seed(3))
    error = found.facts["evidence_standard_error"]
    assert found.facts["evidence_batches"] == batch_order(data.train_x, 64, seed=0).per_epoch > 20
    assert 0 < error < 0.05 * float(exact.parts["fit"])
    # 28 batches, without replacement, which over-states the error: false alarm below 1e-4
    assert abs(float(found.value - exact.value)) < 5 * error


def test_a_finished_run_is_not_certified(start, tmp_path, capsys):
    start(*MODELS["svgp"], "trainer.baselines=false")
    diagnose([f"run={tmp_path / 'run'}"])
    said = capsys.readouterr().out
    assert "coverage of 95 % intervals" in said
    assert "no certificate: a run on data=stream cannot be certified" in said


def test_a_path_below_a_root_is_found_again(start, tmp_path, folder, monkeypatch):
    def stop(session):
        session.save()
        raise Interrupted(2)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "end_step", stop)
        with pytest.raises(Interrupted):
            start(*MODELS["svgp"], f"data.root={tmp_path}", f"data.path={folder.name}")
    assert resume(tmp_path / "run")["data.rows"] == ROWS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["approx=vnngp"], "VNNGP keeps a value"),
        (["approx=qsgp"], "optimizer=qsgp_blocks needs all training rows at once"),
        ([*MODELS["svgp"], "trainer.certify=true"], "trainer.certify=true needs all"),
        ([*MODELS["svgp"], "calibrate=variance"], "calibrate= needs all training rows in memory"),
    ],
)
def test_what_cannot_be_is_refused_before_the_rows_are_read(start, folder, options, said):
    """The last row is damaged, which a pass over all of them would have found first."""
    y = np.load(folder / "y_2.npy")
    y[-1] = np.nan
    np.save(folder / "y_2.npy", y)
    with pytest.raises(ConfigError, match=said):
        start(*options)
