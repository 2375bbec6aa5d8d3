"""Run folders that someone else made or changed: what is built, written and believed of them."""

import json
import shutil
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from refusals import refused
from stopped_runs import stopped_at

import gpx
from gpx.commands.diagnose import main as diagnose
from gpx.commands.predict import main as predict
from gpx.errors import CheckpointError, ConfigError
from gpx.options.composition import composed
from gpx.runs import RunFolder, resume, run
from gpx.training import resumable_search
from gpx.training.checkpoint import load_checkpoint

QUICK = ("data=toy1d", "approx=sgpr", "approx.num_inducing=8", "init=constants")
QUICK += ("trainer.max_steps=4", "trainer.baselines=false", "trainer.tensorboard=false")
QUICK += ("trainer.figures=false", "trainer.device=cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("finished") / "run")
    run(composed(QUICK), folder)
    return folder.path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run stopped after its first evaluation."""
    folder = RunFolder(tmp_path_factory.mktemp("stopped") / "run")
    with stopped_at(1):
        run(composed(QUICK), folder)
    return folder.path


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """A copy of a run folder with options of config.yaml changed; the working folder is empty."""

    def change(source, **options):
        folder = tmp_path / "copy"
        shutil.copytree(source, folder)
        config = OmegaConf.load(folder / "config.yaml")
        for name, value in options.items():
            OmegaConf.update(config, name.replace("__", "."), value, force_add=True)
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
        return folder

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "new.csv").write_text("0.5\n1.5\n")
    return change


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return Path.mkdir, (Path("unpickled"),)


def payloads(folder):
    np.save(folder / "bad.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    (folder / "effects.py").write_text("from pathlib import Path\nPath('imported').mkdir()\n")
    pickle = {"_target_": "numpy.load", "file": str(folder / "bad.npy"), "allow_pickle": True}
    call = {"_target_": "hydra.utils.call", "config": {"_target_": "os.mkdir", "path": "made"}}
    mkdir = {"_target_": "os.mkdir", "path": "made"}
    return {
        "kernel": mkdir,
        "mean": {"_target_": "builtins.print", "_args_": ["payload ran"]},
        "likelihood": call,
        "kernel__active_dims": pickle,
        "kernel__lengthscale": [mkdir],
        "approx__features": {"_target_": "functools.partial", "_args_": [mkdir]},
        "approx__jitter": {**mkdir, "_partial_": True},
        "kernel___target_": "effects.Kernel",
        "mean___target_": "gpx.runs.environment.subprocess.getoutput",
        "approx___target_": "gpx.runs.run.resume",
        "objective": mkdir,
        "optimizer": mkdir,
        "init": mkdir,
        "data": mkdir,
    }


@pytest.mark.parametrize("number", range(14))
def test_no_command_runs_a_payload(
    finished, stopped, changed, tmp_path, monkeypatch, capsys, number
):
    monkeypatch.syspath_prepend(str(tmp_path))
    name, payload = list(payloads(tmp_path).items())[number]
    folder = changed(finished, **{name: payload})
    words = "not part of gpx|not a class defined in gpx|there is no module|has _"
    with pytest.raises(CheckpointError, match=words):
        gpx.load(folder)
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    assert str(folder) in refused(capsys, predict, f"run={folder}", f"input={new}", f"output={out}")
    assert str(folder) in refused(capsys, diagnose, f"run={folder}")
    shutil.rmtree(folder)
    folder = changed(stopped, **{name: payload})
    with pytest.raises(CheckpointError, match=words):
        resume(folder)
    assert list(Path().iterdir()) == []
    assert not out.exists()
    assert "payload ran" not in capsys.readouterr().out


def test_the_checkpoint_is_not_unpickled(finished, changed):
    folder = changed(finished)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save({**state, "target_name": Payload()}, folder / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        gpx.load(folder)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("posterior", [1]),
        ("scaler", 7),
        ("input_names", 3),
        ("target_name", None),
        ("likelihood", {}),
    ],
)
def test_parts_of_a_checkpoint_that_are_something_else(finished, changed, part, value):
    folder = changed(finished)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    if value is None:
        del state[part]
    else:
        state[part] = value
    torch.save(state, folder / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"checkpoint.pt does not fit config.yaml"):
        gpx.load(folder)


@pytest.mark.parametrize("record", ["[]", '{"resumed": 3}', '{"data_checksums": [1]}', "{"])
def test_a_record_that_is_none(stopped, finished, changed, capsys, record):
    folder = changed(stopped)
    (folder / "environment.json").write_text(record)
    with pytest.raises(CheckpointError, match="restore or remove it"):
        resume(folder)
    shutil.rmtree(folder)
    folder = changed(finished)
    (folder / "environment.json").write_text(record)
    assert "restore or remove it" in refused(capsys, diagnose, f"run={folder}")


def test_data_are_fetched_from_known_servers_only(finished, stopped, changed, capsys, monkeypatch):
    folder = changed(finished, data__base_url="http://elsewhere.example")
    words = "if you trust this server, set the environment variable GPX_DATA_URL"
    assert words in refused(capsys, diagnose, f"run={folder}")
    gpx.load(folder)  # predicting needs no data
    shutil.rmtree(folder)
    folder = changed(stopped, data__base_url="http://elsewhere.example")
    with pytest.raises(CheckpointError, match=words):
        resume(folder)
    monkeypatch.setenv("GPX_DATA_URL", "http://elsewhere.example")
    with pytest.raises(ConfigError, match="has no option base_url"):  # passed on to the source
        resume(folder)


def test_links_are_not_followed_when_writing(finished, stopped, changed, tmp_path, capsys):
    folder = changed(finished)
    treasure = tmp_path / "treasure.txt"
    treasure.write_text("mine")
    (folder / "figures").mkdir()
    (folder / "figures" / "diagnostics.png").symlink_to(treasure)
    (folder / "diagnostics.md").symlink_to(treasure)
    (folder / "diagnostics.json").symlink_to(treasure)
    diagnose([f"run={folder}"])
    assert treasure.read_text() == "mine"
    assert not (folder / "figures" / "diagnostics.png").is_symlink()
    shutil.rmtree(folder / "figures")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "figures").symlink_to(elsewhere)
    assert "is a link" in refused(capsys, diagnose, f"run={folder}")
    shutil.rmtree(folder)
    folder = changed(stopped, trainer__tensorboard=True)
    (folder / "tensorboard").symlink_to(elsewhere)
    (folder / "metrics.json").symlink_to(treasure)
    with pytest.raises(CheckpointError, match="finished"):
        resume(folder)
    (folder / "metrics.json").unlink()
    with pytest.raises(CheckpointError, match="tensorboard is a link"):
        resume(folder)
    assert list(elsewhere.iterdir()) == []
    assert treasure.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": None}, "has kernel=null, expected the class"),
        ({"kernel": 7}, "has kernel=7, expected the class"),
        ({"trainer__dtype": "float16"}, "dtype"),
        ({"trainer": 3}, "trainer"),
        ({"kernel__nu": 0.5}, "kernel.nu=0.5|RBF has no option nu"),
        ({"kernel___target_": "gpx.kernels.Matern32"}, "gpx.kernels.RBF"),
        ({"kernel__lengthscale": 2.0}, r"has kernel.lengthscale=2.0, but its .* with 1.0: restore"),
        ({"approx__jitter": 1e-3}, r"has approx.jitter=0.001, but its .* with null: restore"),
        ({"seed": 5}, "has seed=5, but its checkpoint was trained with 0"),
        ({"data__split": 3}, "has data.split=3, but its checkpoint was trained with 0"),
    ],
)
def test_config_and_checkpoint_belong_together(
    finished, stopped, changed, tmp_path, capsys, options, words
):
    import re

    folder = changed(finished, **options)
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    err = refused(capsys, predict, f"run={folder}", f"input={new}", f"output={out}")
    assert re.search(words, err)
    assert re.search(words, refused(capsys, diagnose, f"run={folder}"))
    shutil.rmtree(folder)
    folder = changed(stopped, **options)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    with pytest.raises((CheckpointError, ConfigError), match=words):
        resume(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trainer__max_steps": "many"}, "trainer.max_steps=many: expected a whole number"),
        ({"trainer__max_steps": [1]}, r"trainer.max_steps=\[1\]: expected a whole number"),
        ({"trainer__warp": 1}, "has no option warp"),
        ({"optimizer__warp": 1}, "has no option warp"),
    ],
)
def test_what_steers_training_is_judged_where_it_goes_on(stopped, changed, options, words):
    folder = changed(stopped, **options)
    record = json.loads((folder / "environment.json").read_text())
    with pytest.raises(ConfigError, match=words):
        resume(folder)
    record["versions"]["gpx"] = "99.1"
    (folder / "environment.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=rf"{words}.*\(trained with gpx 99.1, this is gpx"):
        resume(folder)


def test_more_steps_and_other_threads_are_said(stopped, changed, capsys):
    folder = changed(stopped, trainer__max_steps=6, trainer__num_threads=2)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert state["origin"]["num_threads"] == 1
    state["origin"] |= {"torch": "1.0", "gpx": "0.0.1"}
    torch.save(state, folder / "checkpoint.pt")
    try:
        metrics = resume(folder)
    finally:
        torch.set_num_threads(1)
    said = capsys.readouterr().err
    assert "note: trainer.max_steps is 6 from now on, it was 4" in said
    assert "note: trainer.num_threads is 2 from now on, it was 1: sums are taken in anoth" in said
    assert "note: the version of gpx is 0.1.0 from now on, it was 0.0.1" in said
    assert "note: the version of torch is" in said
    assert metrics["train.steps"] > 4
    record = json.loads((folder / "environment.json").read_text())
    assert [record["num_threads"], record["resumed"][0]["num_threads"]] == [1, 2]
    gpx.load(folder)


def test_an_unchanged_run_goes_on_without_notes_and_moved_data_are_the_same_data(
    stopped, changed, capsys
):
    folder = changed(stopped)
    resume(folder)
    assert "from now on" not in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpx.load(folder)


def test_another_version_is_said_when_loading(finished, changed):
    folder = changed(finished, kernel__nu=0.5)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    state["origin"]["gpx"] = "99.1"
    state["origin"]["config"]["kernel"]["nu"] = 0.5  # a newer version that knows the option
    torch.save(state, folder / "checkpoint.pt")
    with (
        pytest.warns(UserWarning, match=r"trained with gpx 99.1, this is gpx"),
        pytest.raises(ConfigError, match=r"kernel.nu: RBF has no option nu.*gpx 99.1, this is"),
    ):
        gpx.load(folder)


def test_a_checkpoint_that_kept_no_config_is_taken_as_it_is(finished, changed):
    folder = changed(finished)
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    del state["origin"]
    torch.save(state, folder / "checkpoint.pt")
    assert gpx.load(folder).predict([[0.5]]).mean.shape == (1,)


def test_a_kernel_of_ones_own_in_every_command(tmp_path, changed, monkeypatch, capsys):
    (tmp_path / "own_kernels.py").write_text(
        textwrap.dedent("""
            from gpx.kernels import RBF


            class Mine(RBF):
                pass


            def make(**options):
                return Mine(**options)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    x = np.linspace(-1.0, 1.0, 40)[:, None]
    options = [o for o in QUICK if not o.startswith("data")]
    fitted = gpx.fit(
        x, np.sin(3 * x[:, 0]), "kernel._target_=own_kernels.Mine", *options, folder="run"
    )
    with pytest.raises(CheckpointError, match=r"add trust=own_kernels \(in Python trust="):
        gpx.load("run")
    trusted = gpx.load("run", trust=("own_kernels",))
    np.testing.assert_array_equal(trusted.predict(x).mean, fitted.predict(x).mean)
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    arguments = ["run=run", f"input={table}", f"output={out}"]
    assert "add trust=own_kernels" in refused(capsys, predict, *arguments)
    predict([*arguments, "trust=own_kernels"])
    assert len(out.read_text().splitlines()) == 3
    assert "add trust=own_kernels" in refused(capsys, diagnose, "run=run")
    diagnose(["run=run", "trust=own_kernels"])
    Path("run/metrics.json").unlink()
    with pytest.raises(CheckpointError, match="add trust=own_kernels"):
        resume("run")
    assert resume("run", trust="own_kernels")["train.steps"] == fitted.metrics["train.steps"]
    # training is free to build what its own options name, and reads back what it has just made
    made = gpx.fit(
        x, np.sin(3 * x[:, 0]), "kernel._target_=own_kernels.make", *options, folder="made"
    )
    np.testing.assert_allclose(made.predict(x).mean, fitted.predict(x).mean, rtol=1e-9)


def test_predictions_never_replace_their_inputs(finished, tmp_path, capsys):
    table = tmp_path / "new.csv"
    table.write_text("0.5\n")
    (tmp_path / "link.csv").symlink_to(table)
    for output in (table, tmp_path / "link.csv", tmp_path / "." / "new.csv"):
        said = refused(capsys, predict, f"run={finished}", f"input={table}", f"output={output}")
        assert "would overwrite the file of input=" in said
    assert table.read_text() == "0.5\n"


def test_predictions_are_written_to_folders_that_are_there(finished, tmp_path, capsys):
    table = tmp_path / "new.csv"
    table.write_text("1\n")
    for options in ([f"input={table}", "output=outptus/out.csv"], ["output=outptus/m.c"]):
        options += ["format=int4"] if len(options) == 1 else []
        said = refused(capsys, predict, f"run={finished}", *options)
        assert said.endswith("there is no folder outptus; create it first")
    assert not Path("outptus").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
@pytest.mark.parametrize("command", [predict, diagnose])
def test_the_device_is_named_as_it_was_given(finished, tmp_path, capsys, command):
    table = tmp_path / "new.csv"
    table.write_text("1\n")
    files = [f"input={table}", f"output={tmp_path / 'out.csv'}"] if command is predict else []
    said = refused(capsys, command, f"run={finished}", "device=cuda", *files)
    assert said.startswith("error: device=cuda but torch")
    assert "trainer.device" not in said


def test_finished_training_is_evaluated_again_and_goes_no_further(tmp_path, capsys):
    """The optimiser has dropped the record that it would go on from."""
    folder = RunFolder(tmp_path / "run")
    before = run(composed((*QUICK, "optimizer=lbfgsb", "trainer.max_steps=3")), folder)
    weights = load_checkpoint(folder.checkpoint)["model"]
    for _ in range(2):
        folder.metrics.unlink()
        again = resume(folder.path)
        assert again["train.evidence"] == before["train.evidence"]
        assert again["train.steps"] == before["train.steps"]
        assert again["train.stopped"] == before["train.stopped"]
        kept = load_checkpoint(folder.checkpoint)["model"]
        assert all(torch.equal(kept[name], weights[name]) for name in weights)
    assert "training had already finished" in "".join(capsys.readouterr())


def evaluations_of(monkeypatch, call):
    """What ``call`` returns, and how often it evaluated the evidence and its gradient."""
    counted, computed = [], resumable_search._Path._computed

    def count(path):
        counted.append(1)
        return computed(path)

    monkeypatch.setattr(resumable_search._Path, "_computed", count)
    return call(), len(counted)


def test_a_finished_run_takes_the_steps_that_are_missing(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    run(composed((*QUICK, "optimizer=lbfgsb", "trainer.max_steps=3")), folder)
    folder.metrics.unlink()
    resume(folder.path)  # evaluates again, and trains no further
    for most in (5, 6):
        options = [f"trainer.max_steps={most}"]
        metrics, evaluations = evaluations_of(
            monkeypatch, lambda options=options: resume(folder.path, options=options)
        )
        assert metrics["train.steps"] == most
        assert evaluations == {5: 2, 6: 1}[most]


def test_a_run_that_its_budget_ended_goes_on_without_it(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    short = (*QUICK, "optimizer=lbfgsb", "trainer.max_steps=3", "trainer.budget=1e-6")
    assert run(composed(short), folder)["train.steps"] == 1
    metrics, evaluations = evaluations_of(
        monkeypatch, lambda: resume(folder.path, options=["trainer.budget=null"])
    )
    assert (metrics["train.steps"], evaluations) == (3, 2)


def test_a_config_that_has_lost_its_seed(stopped, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(stopped, folder)
    config = OmegaConf.load(folder / "config.yaml")
    del config["seed"]
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    with pytest.raises(ConfigError, match=r"config.yaml: the seed is missing"):
        resume(folder)
