"""The program of torch.export: what the model predicts, for any number of rows, without gpx."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from exported_table import table
from refusals import refused

import gpx
from gpx.commands.predict import main
from gpx.errors import ConfigError

SMALL = [
    "trainer.baselines=false",
    "trainer.figures=false",
    "trainer.tensorboard=false",
    "trainer.max_steps=2",
    "init.max_evaluations=5",
]
KINDS = {
    "exact": ["approx=exact"],
    "fully_bayesian": [
        *("approx=fully_bayesian", "kernel=rbf*periodic + linear"),
        *("optimizer.chains=2", "optimizer.burn_in=10", "optimizer.iterations=30"),
        "optimizer.thin=3",
    ],
    "sgpr": ["approx=sgpr", "approx.num_inducing=9", "kernel=matern32"],
    "sor": ["approx=sor", "approx.num_inducing=9"],
    "svgp": ["approx=svgp", "approx.num_inducing=9", "likelihood=student_t"],
    "qsgp": ["approx=qsgp", "approx.num_basis=40"],
    "ssgp": ["approx=ssgp", "approx.num_basis=20"],
    "ski": ["approx=ski"],
    "direct": ["approx=direct", "approx.num_basis=20"],
    "vecchia": ["approx=vecchia", "approx.prediction_neighbours=12"],
    "swsgp": ["approx=swsgp", "approx.num_inducing=30", "approx.num_neighbours=5"],
    "reweighted": ["approx=reweighted", "kernel=rbf", "inference=type2"],
    "deep_rf": ["approx=deep_rf", "approx.num_features=20", "approx.predict_samples=4"],
}
CHEAPEST = "ssgp"
"""Of these the one whose trace is shortest."""
LOADS = """
import sys, torch
folder = sys.argv[1]
x = torch.load(folder + "/x.pt")
for name in sys.argv[2:]:
    found = torch.export.load(f"{folder}/{name}.pt2").module()(x)
    torch.save(found, f"{folder}/{name}.pt")
assert not any(name.split(".")[0] in ("gpx", "linear_operator") for name in sys.modules)
"""


def inputs(n):
    """Rows of which some lie far from the training inputs."""
    rng = np.random.default_rng(1)
    return np.stack([rng.uniform(1990.0, 2030.0, n), rng.uniform(-1.5, 1.5, n)], 1)


def agree(found, model, rows):
    want = model.predict(rows)
    for mine, theirs in zip(found, (want.mean, want.std), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6, atol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def exported(folder):
    """Kind -> what was trained, its program beside it; each is made when it is first asked for."""

    @cache
    def made(kind):
        fitted = gpx.fit(*table(), *KINDS[kind], *SMALL, folder=folder / f"run_{kind}")
        gpx.export(fitted, folder / f"{kind}.pt2", format="torch")
        return fitted

    return made


@pytest.mark.filterwarnings("ignore:.*outside the interpolation grid")
@pytest.mark.filterwarnings("ignore:error bars are unreliable")
@pytest.mark.filterwarnings("ignore:max_steps=2 ends before the first sample")
@pytest.mark.filterwarnings("ignore:1 sample of each of the 2 chains")
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_predicts_as_the_model_for_any_number_of_rows(kind, exported, folder):
    fitted = exported(kind)
    module = torch.export.load(folder / f"{kind}.pt2").module()
    for n in (1, 2, 7, 300):
        rows = inputs(n)
        agree(module(torch.from_numpy(rows)), fitted.model, rows)


@pytest.mark.filterwarnings("ignore:.*outside the interpolation grid")
@pytest.mark.filterwarnings("ignore:error bars are unreliable")
def test_programs_load_and_run_without_gpx(exported, folder):
    kinds = ("sgpr", "ski", "vecchia")
    rows, models = inputs(11), {kind: exported(kind).model for kind in kinds}
    torch.save(torch.from_numpy(rows), folder / "x.pt")
    subprocess.run([sys.executable, "-c", LOADS, folder, *kinds], check=True, cwd=folder)
    for kind, model in models.items():
        agree(torch.load(folder / f"{kind}.pt"), model, rows)


def test_a_program_of_a_network_does_not_grow_with_its_draws(exported, folder, tmp_path):
    """All draws make one pass: tracing each of the 50 of the default would take a minute."""
    exported("deep_rf")
    options = ["approx=deep_rf", "approx.num_features=20", "approx.predict_samples=3"]
    fitted = gpx.fit(*table(), *options, *SMALL, folder=tmp_path / "run")
    gpx.export(fitted, tmp_path / "model.pt2")  # the ending says the format
    programs = [torch.export.load(p) for p in (folder / "deep_rf.pt2", tmp_path / "model.pt2")]
    few, more = (sum(node.op == "call_function" for node in p.graph.nodes) for p in programs)
    assert few == more


def test_a_program_of_several_targets_has_a_column_for_each(tmp_path):
    x, y = table()
    both = np.stack([y, x[:, 1] * 1e3], 1)
    options = ["approx=svgp", "approx.num_inducing=9", "likelihood=gaussian_outputs"]
    fitted = gpx.fit(x, both, *options, *SMALL, folder=tmp_path / "run")
    program = gpx.export(fitted, tmp_path / "model.pt2", format="torch")
    rows = inputs(8)
    found = program.module()(torch.from_numpy(rows))
    assert found[0].shape == (8, 2)
    agree(found, fitted.model, rows)


def test_a_program_of_a_float32_model_takes_float64_inputs(tmp_path):
    options = ["approx=sgpr", "approx.num_inducing=9", "trainer.dtype=float32"]
    fitted = gpx.fit(*table(), *options, *SMALL, folder=tmp_path / "run")
    program = gpx.export(fitted, tmp_path / "model.pt2", format="torch")
    rows = inputs(8)
    found = program.module()(torch.from_numpy(rows))
    want = fitted.predict(rows)
    for mine, theirs in zip(found, (want.mean, want.std), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-4)


def test_the_command_writes_a_program_and_says_its_size(exported, folder, tmp_path, capsys):
    path, fitted = tmp_path / "model.pt2", exported(CHEAPEST)
    main([f"run={folder}/run_{CHEAPEST}", "format=torch", f"output={path}"])
    assert f"{path.stat().st_size} bytes" in capsys.readouterr().err
    rows = inputs(3)
    found = torch.export.load(path).module()(torch.from_numpy(rows))
    agree(found, fitted.model, rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["format=torch", "output=m.c"], "must end in .pt2"),
        (["format=torch", "output=m.pt2", "samples=3"], "belongs to format=int4"),
        (["format=torch", "output=m.pt2", "input=new.csv"], "input= cannot be used with format="),
        (["format=c", "output=m.c"], "expected int4, torch or onnx"),
    ],
)
def test_mistakes_on_the_command_line_give_one_line(exported, folder, options, words, capsys):
    exported(CHEAPEST)
    capsys.readouterr()
    assert words in refused(capsys, main, f"run={folder}/run_{CHEAPEST}", *options)


def test_a_missing_run_folder_is_said_before_the_model_is_traced(tmp_path, capsys):
    said = refused(
        capsys, main, f"run={tmp_path / 'no'}", "format=torch", f"output={tmp_path / 'm.pt2'}"
    )
    assert said.startswith("error: there is no run folder")


def test_what_has_no_program_is_refused_in_one_sentence(exported, tmp_path, capsys, monkeypatch):
    x, y = table(40)
    options = ["approx=svgp", "approx.num_inducing=5", "likelihood=bernoulli"]
    made = gpx.fit(x, (y > np.median(y)).astype(float), *options, *SMALL, folder=tmp_path / "run")
    with pytest.raises(ConfigError, match="is a class"):
        gpx.export(made, tmp_path / "model.pt2", format="torch")
    said = refused(
        capsys, main, f"run={tmp_path / 'run'}", "format=torch", f"output={tmp_path / 'model.pt2'}"
    )
    assert said.startswith("error: format=torch gives mean and standard")
    numbers = exported("svgp").model
    kind = type(numbers.posterior)
    right = kind.predict
    monkeypatch.setattr(
        kind, "predict", lambda self, x: right(self, x if float(x.sum()) > 0.0 else x + 0.0)
    )
    words = r"SVGPPosterior \(its control flow depends"
    with pytest.raises(ConfigError, match=words):
        gpx.export(numbers, tmp_path / "model.pt2", format="torch")
    assert not (tmp_path / "model.pt2").exists()
    assert "forward" not in capsys.readouterr().err  # torch prints the program that it gave up


def test_a_program_that_differs_from_the_model_is_not_written(exported, tmp_path, monkeypatch):
    made = exported(CHEAPEST).model
    kind = type(made.posterior)
    right = kind.predict

    def wrong_while_recorded(self, x):
        found = right(self, x)
        off = 2e-6 if torch.compiler.is_exporting() else 0.0
        return found._replace(variance=found.variance * (1.0 + off) + off)

    monkeypatch.setattr(kind, "predict", wrong_while_recorded)
    with pytest.raises(ConfigError, match="of the program differs by"):
        gpx.export(made, tmp_path / "model.pt2", format="torch")


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(exported, tmp_path, limited_files):
    made, target = exported(CHEAPEST).model, tmp_path / "model.pt2"
    with limited_files(10_000), pytest.raises(OSError, match="too large") as full:
        gpx.export(made, target, format="torch")
    assert full.value.filename == str(target)
    assert not target.exists()
