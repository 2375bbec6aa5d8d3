"""The predictor in integers: its Python and its C give the same, and what the model gives."""

import numpy as np
import pytest
import torch
from claimed_cuda import claimed_cuda
from exported_table import table
from int4_by_c import by_c, needs_compiler
from refusals import refused

import gpx
from gpx.commands.predict import main
from gpx.errors import ConfigError
from gpx.methods.direct.posterior import DirectPosterior
from gpx.runs import Int4Predictor

SMALL = [
    "trainer.baselines=false",
    "trainer.figures=false",
    "trainer.tensorboard=false",
    "init.max_evaluations=10",
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("int4") / "run"
    options = ["approx=direct", "approx.num_basis=60", "trainer.max_steps=60"]
    return gpx.fit(*table(80), *options, *SMALL, folder=folder)


@needs_compiler
def test_the_c_function_reproduces_the_python_predictions(fitted, tmp_path):
    predictor = gpx.export(fitted, tmp_path / "model.c", samples=5)
    inputs = table(200)[0]
    inputs[:3] = [[1e9, -1e9], [-1990.0, 3.0], [0.0, 0.0]]
    want = predictor.predict(inputs)
    mean, variance = by_c(tmp_path / "model.c", inputs)
    np.testing.assert_allclose(mean, want.mean, rtol=1e-6)
    np.testing.assert_allclose(variance, want.variance, rtol=1e-5)


def test_the_archive_gives_the_same_predictions(fitted, tmp_path):
    predictor = gpx.export(fitted.folder, tmp_path / "model.c", samples=3, seed=4)
    again = Int4Predictor.load(tmp_path / "model.npz")
    inputs = table(80)[0]
    for mine, theirs in zip(predictor.predict(inputs), again.predict(inputs), strict=True):
        assert np.array_equal(mine, theirs)
    assert again.size() == predictor.size()
    assert again.c_source() == (tmp_path / "model.c").read_text()


def test_integers_follow_the_model_at_the_same_draws(fitted, tmp_path):
    predictor = gpx.export(fitted, tmp_path / "model.c", samples=400)
    inputs = table(50)[0]
    exact = fitted.predict(inputs)
    got = predictor.predict(inputs)
    # the mean of 400 draws is off by exact.std / 20 at most once in 1.7e6 at five of these
    assert float((np.abs(got.mean - exact.mean) / (exact.std / 20.0)).max()) < 5.0
    np.testing.assert_allclose(got.variance, exact.std**2, rtol=0.4)
    posterior, scaler = fitted.model.posterior, fitted.model.scaler
    paths = posterior.sample_paths(400, generator=torch.Generator().manual_seed(0))
    drawn = scaler.original_mean(paths(fitted.model._standardised(inputs)).mean(0)).numpy()
    # cosines of 16 bits from a table: 8e-5 of each at most
    np.testing.assert_allclose(got.mean, drawn, atol=2e-3 * float(scaler.target_scale))


def test_sizes_are_those_of_the_tables(fitted, tmp_path):
    size = gpx.export(fitted, tmp_path / "model.c", samples=7).size()
    assert size.weight_bytes == 7 * -(-size.functions // 2)
    assert size.float_weight_bytes == 7 * 60 * 4
    assert size.functions <= size.num_basis == 60
    assert size.multiply_adds <= 7 * size.functions
    assert size.float_multiply_adds == 420
    assert size.mean_multiply_adds == 60
    assert size.float_total_bytes - size.mean_bytes == 4 * 6 * 60


def test_the_command_writes_both_files_and_says_their_size(fitted, tmp_path, capsys):
    main([f"run={fitted.folder}", "format=int4", f"output={tmp_path / 'm.c'}", "samples=2"])
    assert "integer multiply-adds" in capsys.readouterr().err
    assert (tmp_path / "m.c").exists()
    assert len(Int4Predictor.load(tmp_path / "m.npz").codes) == 2


def test_every_way_to_export_writes_the_same_bytes(fitted, tmp_path, monkeypatch):
    """From memory, from the folder, by the command, and from a model on a GPU."""
    generators = []  # the claimed device draws as the CPU does, a GPU does not

    def noting(posterior, num, *, generator):
        generators.append(generator)
        return draw(posterior, num, generator=generator)

    draw = DirectPosterior.sample_codes
    monkeypatch.setattr(DirectPosterior, "sample_codes", noting)
    gpx.export(fitted, tmp_path / "memory.c", seed=3)
    gpx.export(fitted.folder, tmp_path / "folder.c", seed=3)
    command = [f"run={fitted.folder}", "format=int4", f"output={tmp_path / 'command.c'}", "seed=3"]
    main(command)
    model = gpx.load(fitted.folder)
    with claimed_cuda():
        model.posterior.cuda()
        model.likelihood.cuda()
        gpx.export(model, tmp_path / "device.c", seed=3)
        assert [generator.device.type for generator in generators] == ["cpu"] * 4
    for ending in ("c", "npz"):
        written = [path.read_bytes() for path in sorted(tmp_path.glob(f"*.{ending}"))]
        assert len(written) == 4
        assert len(set(written)) == 1
    gpx.export(fitted, tmp_path / "other.c", seed=4)
    assert (tmp_path / "other.c").read_bytes() != (tmp_path / "memory.c").read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["format=int8", "output=m.c"], "expected int4"),
        (["format=int4", "output=m.csv"], "must end in .c"),
        (["format=int4", "output=m.c", "samples=many"], "whole number"),
        (["format=int4", "output=m.c", "samples=0"], "at least 1"),
        (["format=int4"], "output= is missing"),
    ],
)
def test_mistakes_on_the_command_line_give_one_line(fitted, options, words, capsys):
    assert words in refused(capsys, main, f"run={fitted.folder}", *options)


@pytest.mark.filterwarnings("ignore:error bars are unreliable")  # of eight basis functions
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["approx=sgpr", "approx.num_inducing=5"], "needs discrete weights"),
        (["approx=direct", "approx.num_basis=8", "mean=linear"], "takes mean=constant"),
        (["approx=direct", "approx.num_basis=8", "approx.weights.num_values=17"], "16 values"),
        (["approx=direct", "approx.num_basis=8", "calibrate=variance"], "cannot hold calibrate"),
    ],
)
def test_models_that_have_no_such_form_are_refused(options, words, tmp_path):
    made = gpx.fit(*table(40), *options, *SMALL, "trainer.max_steps=2", folder=tmp_path / "run")
    with pytest.raises(ConfigError, match=words):
        gpx.export(made, tmp_path / "model.c")
    with pytest.raises(
        ConfigError, match=r"model.bin: the ending of the file must say the format, one of .c"
    ):
        gpx.export(made, tmp_path / "model.bin")
