"""The ONNX program: what the model predicts, for any number of rows, in another runtime."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from exported_table import table
from refusals import refused

import gpx
from gpx.commands.predict import main
from gpx.errors import BackendUnavailable, ConfigError
from gpx.runs.exporting import onnx_program as module

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in module.PACKAGES),
    reason="ONNX is not installed: pip install -e '.[onnx]'",
)
SMALL = [
    "trainer.baselines=false",
    "trainer.figures=false",
    "trainer.tensorboard=false",
    "trainer.max_steps=2",
    "init.max_evaluations=5",
]
KINDS = {
    "sgpr": ["approx=sgpr", "approx.num_inducing=9", "kernel=matern32"],
    "svgp": ["approx=svgp", "approx.num_inducing=9", "trainer.dtype=float64"],
    "qsgp": ["approx=qsgp", "approx.num_basis=40"],
    "ssgp": ["approx=ssgp", "approx.num_basis=20"],
    "ski": ["approx=ski"],
    "exact": ["approx=exact"],
    "deep_rf": ["approx=deep_rf", "approx.num_features=20", "approx.predict_samples=4"],
}


@needs_onnx
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_predicts_as_the_model_for_any_number_of_rows(kind, tmp_path, capsys):
    import onnxruntime

    x, y = table()
    gpx.fit(x, y, *KINDS[kind], *SMALL, folder=tmp_path / "run", quiet=True)
    path = tmp_path / "model.onnx"
    main([f"run={tmp_path / 'run'}", "format=onnx", f"output={path}"])
    assert "ONNX program, " in capsys.readouterr().err
    session = onnxruntime.InferenceSession(path)
    model = gpx.load(tmp_path / "run")
    for n in (1, 2, 50):
        found = session.run(["predictive_mean", "predictive_std"], {"x": x[:n]})
        want = model.predict(x[:n])
        np.testing.assert_allclose(found[0], want.mean, rtol=1e-6)
        np.testing.assert_allclose(found[1], want.std, rtol=1e-6)


@needs_onnx
def test_what_is_refused_and_what_differs_is_one_sentence(tmp_path, monkeypatch):
    x, y = table()
    made = gpx.fit(x, y > 50.0, "approx=svgp", "approx.num_inducing=5", "likelihood=bernoulli",
                   *SMALL, quiet=True, keep=False)  # fmt: skip
    with pytest.raises(ConfigError, match=r"format=onnx gives mean and .* is a class"):
        gpx.export(made, tmp_path / "model.onnx", format="onnx")
    with pytest.raises(ConfigError, match=r"writes an ONNX program, .* must end in .onnx"):
        gpx.export(made, tmp_path / "model.pt2", format="onnx")
    made = gpx.fit(x, y, *KINDS["sgpr"], *SMALL, quiet=True, keep=False)
    right = module._SOLVE
    monkeypatch.setattr(module, "_SOLVE", lambda *a, **options: right(*a, **options) * (1.0 + 1e-4))
    with pytest.raises(ConfigError, match="of the program differs by"):
        gpx.export(made, tmp_path / "model.onnx", format="onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_the_extra_is_named_where_it_is_missing(tmp_path, monkeypatch, capsys):
    made = gpx.fit(*table(), *KINDS["sgpr"], *SMALL, quiet=True, folder=tmp_path / "run")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"needs onnx, .* pip install 'gpx-torch\[onnx\]'"):
        gpx.export(made, tmp_path / "model.onnx", format="onnx")
    assert torch.linalg.solve_triangular is module._SOLVE
    capsys.readouterr()
    said = refused(
        capsys, main, f"run={tmp_path / 'run'}", "format=onnx", f"output={tmp_path / 'model.onnx'}"
    )
    assert said.startswith("error: format=onnx needs onnx, ")


def test_what_is_traced_changes_no_solve_of_another_thread():
    factor, right = torch.tensor([[2.0, 0.0], [1.0, 4.0]]), torch.tensor([[2.0], [5.0]])

    def solved():
        return torch.linalg.solve_triangular(factor, right, upper=False)

    with ThreadPoolExecutor(1) as pool, module._solves_as_products(lambda *_: torch.zeros(2, 2)):
        assert not solved().any()
        assert torch.equal(pool.submit(solved).result(), torch.ones(2, 1))
