"""What every approximation does from its config to a finished run folder, and back from it."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from stopped_runs import stopped_at

from gpx.data import load as load_data
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.options.config import CONFIGS
from gpx.runs import RunFolder, load, resume, run
from gpx.runs.results import summary
from gpx.runs.watching.tensorboard import TensorBoard

SMALL = ["trainer.baselines=false", "init.num_points=100", "init.max_evaluations=5"]
SMALL += ["trainer.eval_every=0"]
ARM = ["data=robot_arm", "data.num_points=400"]
CLASSES = ["data=csv", f"data.path={Path(__file__).parent / 'classes.csv'}"]
"""180 rows of two inputs and an exclusive or of their signs, which no linear classifier tells."""
DIGITS = [
    *("data=digits", "data.train_size=400", "likelihood=gaussian"),
    *("optimizer.groups.variational.lr=0.005", "trainer.batch_size=100"),
]
OUTPUTS = [
    *("data=csv", f"data.path={Path(__file__).with_name('outputs.csv')}"),
    *("data.target=[zinc,lead]", "trainer.max_steps=8"),
]
MASKS = ["approx.keep=0.9", "approx.predict_samples=5"]
RUNS = {
    "cglb": [*ARM, "trainer.max_steps=6", "approx.num_inducing=30"],
    "committee": [*ARM, "trainer.max_steps=8", "approx.num_experts=3"],
    "coregional": OUTPUTS,
    "derivatives": [*OUTPUTS, "approx.with_respect_to=[x1]"],
    "independent": OUTPUTS,
    "elliptical_slice": [
        *CLASSES,
        "optimizer.chains=2",
        "optimizer.burn_in=6",
        "optimizer.iterations=12",
        "optimizer.thin=2",
    ],
    "ep": [*CLASSES, "trainer.max_steps=8"],
    "vgp": [*CLASSES, "trainer.max_steps=8"],
    "exact": [*ARM, "trainer.max_steps=8"],
    "fully_bayesian": [
        *("data=robot_arm", "data.num_points=120", "optimizer.chains=2", "optimizer.burn_in=6"),
        *("optimizer.iterations=12", "optimizer.thin=2"),
    ],
    "fully_bayesian_sgpr": [
        *(*ARM, "approx.num_inducing=30", "optimizer.chains=2", "optimizer.burn_in=6"),
        *("optimizer.iterations=12", "optimizer.thin=2"),
    ],
    "local_experts": [*ARM, "trainer.max_steps=8", "approx.num_experts=3"],
    "mixture_of_experts": [*ARM, "trainer.max_steps=4", "approx.num_experts=2"],
    "transductive": [*ARM, "trainer.max_steps=8", "approx.num_experts=2"],
    **{
        name: [*ARM, "trainer.max_steps=8", "approx.num_inducing=40"]
        for name in ("sor", "dtc", "fitc", "fic", "pitc", "pic")
    },
    "sod": [*ARM, "trainer.max_steps=8", "approx.num_points=60"],
    "grid": ["data=toy1d", "trainer.max_steps=8"],
    "grief": [*ARM, "trainer.max_steps=6", "approx.num_eigenfunctions=60"],
    "laplace": [*CLASSES, "trainer.max_steps=8"],
    "qsgp": [
        *ARM,
        "approx.num_basis=1000",
        "approx.basis.block_frequencies=50",
        "approx.block_columns=200",
        "optimizer.sweeps=2",
    ],
    "qsgp_inducing": [*ARM, "approx.rank=300"],
    "qsrvm": [*ARM, "approx.sweeps=60", "trainer.max_steps=8"],
    "reweighted": [
        *ARM,
        "approx.num_basis=80",
        "optimizer.burn_in=30",
        "optimizer.iterations=40",
        "optimizer.thin=10",
    ],
    "sgpr": [*ARM, "trainer.max_steps=8", "approx.num_inducing=40"],
    "ski": ["data=toy1d", "trainer.max_steps=8", "approx.outside=clamp"],
    "swsgp": [
        *ARM,
        "trainer.max_steps=30",
        "approx.num_inducing=40",
        "approx.num_neighbours=6",
        "trainer.batch_size=100",
    ],
    "vnngp": [
        *ARM,
        "trainer.max_steps=30",
        "approx.num_neighbours=10",
        "trainer.batch_size=100",
        "init.neighbour_evaluations=2",
    ],
    "vecchia": [*ARM, "trainer.max_steps=8", "approx.num_neighbours=20"],
    "deep_rf": [
        *ARM,
        "trainer.max_steps=60",
        "approx.num_features=40",
        "approx.predict_samples=5",
        "trainer.batch_size=100",
    ],
    "dkl": [
        *(*ARM, "trainer.max_steps=30", "approx.num_inducing=40", "approx.pretrain_steps=200"),
        *("approx.hidden=[32]", "approx.num_features=4", "trainer.batch_size=100"),
    ],
    "svdkl": [
        *(*ARM, "trainer.max_steps=60", "approx.grid_size=16", "approx.pretrain_steps=500"),
        *("approx.hidden=[32]", "approx.num_features=4", "trainer.batch_size=100"),
    ],
    "deep_svgp": [
        *(*ARM, "trainer.max_steps=20", "approx.num_inducing=30", "trainer.batch_size=100"),
        "approx.predict_samples=5",
    ],
    "gpdnn": [
        *(*DIGITS[:3], "trainer.max_steps=30", "approx.num_inducing=30"),
        *("approx.pretrain_steps=60", "objective.num_samples=2"),
    ],
    "conv_gp": [*DIGITS[:3], "trainer.max_steps=30", "approx.num_inducing=30"],
    "cnn": [*DIGITS, "trainer.max_steps=80"],
    "cnn_mcd": [*DIGITS, *MASKS, "trainer.max_steps=80"],
    "cnn_rf": [*DIGITS, *MASKS, "trainer.max_steps=80"],
    "cnn_sorf": [*DIGITS, *MASKS, "trainer.max_steps=80"],
    "cnn_deep_rf": [*DIGITS, *MASKS, "approx.width=3", "trainer.max_steps=80"],
    "ssgp": [*ARM, "trainer.max_steps=8", "approx.num_basis=40", "approx.draws=2"],
    "vssgp": [*ARM, "trainer.max_steps=8", "approx.num_basis=40", "approx.draws=2"],
    "direct": [*ARM, "trainer.max_steps=20", "approx.num_basis=80"],
    "direct_logistic": [
        *CLASSES,
        "trainer.max_steps=60",
        "approx.num_basis=80",
        "trainer.batch_size=100",
    ],
    "direct_network": ["data=toy1d", "trainer.max_steps=60", "approx.starts=10"],
    "direct_mixture": [
        *ARM,
        "trainer.max_steps=10",
        "approx.num_basis=80",
        "approx.components=2",
    ],
    "svgp": [*ARM, "trainer.max_steps=30", "approx.num_inducing=40", "trainer.batch_size=100"],
}
"""Every approx= of configs/approx, with options that make it a matter of seconds."""
pytestmark = pytest.mark.filterwarnings("ignore:the 2 chains have not converged")
STOP = 3
"""Steps after which a run is stopped, to be resumed."""
DRAWN = ("cnn", "coregional", "exact", "grid", "ski", "svgp")
"""Runs whose figures are drawn, which takes longer than most runs: one for every kind of data."""
VARIANTS = ("cnn_mcd", "cnn_sorf", "dtc", "fic", "pitc", "sor")
"""Approximations that differ from another one in an option of the model alone."""
PROMISED = [
    "test.rmse",
    "test.mnlp",
    "test.rmse_original",
    "test.mnlp_original",
    "train.seconds",
    "train.start.seconds",
    "train.steps",
    "train.evidence",
    "model.num_parameters",
    "memory.peak_mib",
]
UNCOUNTED = ("memory.peak_mib",)


class Run(NamedTuple):
    approx: str
    metrics: dict
    folder: RunFolder


def config(approx, *overrides):
    drawn = f"trainer.figures={approx in DRAWN}".lower()
    return composed([*SMALL, drawn, f"approx={approx}", *RUNS[approx], *overrides])


def num_inputs(approx):
    known = {"data=toy1d": 1, "data=digits": 64}.get(RUNS[approx][0])
    return known or (2 if "data=csv" in RUNS[approx] else 8)


def is_classification(approx):
    return RUNS[approx][: len(CLASSES)] == CLASSES


def counted(metrics):
    return {
        name: value
        for name, value in metrics.items()
        if name not in UNCOUNTED and not name.endswith(".seconds")
    }


@pytest.fixture(scope="module", params=sorted(RUNS))
def finished(request, tmp_path_factory):
    """A run of every approximation; its figures are not drawn once more for TensorBoard."""
    folder = RunFolder(tmp_path_factory.mktemp(request.param) / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorBoard, "figure", lambda *_: None)  # tests/integration/test_train has it
        return Run(request.param, run(config(request.param), folder), folder)


def test_every_approximation_is_listed():
    named = {path.stem for path in Path(CONFIGS, "approx").glob("*.yaml")}
    assert named - {"auto"} == set(RUNS)  # auto is one of the others: tests/training/test_automatic


def test_the_folder_holds_what_is_promised(finished):
    folder = finished.folder
    assert json.loads(folder.metrics.read_text()) == finished.metrics
    for name in PROMISED:
        assert isinstance(finished.metrics[name], float | int), name
    assert finished.metrics["test.rmse"] < 0.9  # better than the mean
    environment = json.loads(folder.environment.read_text())
    assert {"versions", "device", "git_commit", "seed", "command"} <= set(environment)
    kept = OmegaConf.load(folder.config)
    assert kept.facts.num_inputs == num_inputs(finished.approx)
    assert "${" not in folder.config.read_text()
    if finished.approx in DRAWN:
        drawn = list(folder.figures.glob("predicted_against_observed*.png"))
        assert drawn
        assert all(picture.stat().st_size > 1000 for picture in drawn)
    assert any(folder.path.glob("events.out.tfevents.*"))
    assert folder.checkpoint.exists()


def test_a_loaded_model_predicts_as_the_run_did(finished):
    task = "binary" if is_classification(finished.approx) else "regression"
    data = load_data(build(finished.folder.read_config(), "data"), task=task)
    inputs = data.scaler.original_inputs(data.test_x).numpy()
    if is_classification(finished.approx):
        found = load(finished.folder.path).predict_classes(inputs)
        right = found.label == (data.test_y > 0).double().numpy()
        assert right.mean() == pytest.approx(finished.metrics["test.accuracy"])
        assert right.mean() > 0.8
        chosen = found.probability[np.arange(len(right)), (data.test_y > 0).long().numpy()]
        assert -np.log(chosen).mean() == pytest.approx(finished.metrics["test.mnlp"], rel=1e-6)
        return
    prediction = load(finished.folder.path).predict(inputs)
    observed = data.scaler.original_mean(data.test_y).numpy()
    rmse = float((((prediction.mean - observed) ** 2).mean(0) ** 0.5).mean())
    assert rmse == pytest.approx(finished.metrics["test.rmse_original"], rel=1e-5)
    assert (prediction.lower < prediction.mean).all()
    assert (prediction.mean < prediction.upper).all()
    width = (prediction.upper - prediction.lower) / prediction.std
    # quantiles are not a normal's
    mixtures = {
        "reweighted": 0.05,
        "fully_bayesian": 0.1,
        "fully_bayesian_sgpr": 0.1,
        "direct_mixture": 0.05,
        "mixture_of_experts": 0.1,
    }
    mixtures |= dict.fromkeys(
        ("deep_rf", "deep_svgp", "cnn_mcd", "cnn_rf", "cnn_sorf", "cnn_deep_rf"), 0.05
    )
    assert width == pytest.approx(2 * 1.959964, rel=mixtures.get(finished.approx, 1e-4))


def test_the_sparsity_of_discrete_weights_is_that_of_draws(finished):
    """In metrics.json and in the summary; zeros of 4,000 draws, five standard errors at most."""
    found = finished.metrics.get("predict.sparsity")
    assert (found is not None) == finished.approx.startswith("direct")
    if found is None:
        return
    posterior = load(finished.folder.path).posterior
    assert finished.metrics["train.sparsity"] == pytest.approx(found, rel=1e-9)
    assert f"zeros in a draw of the weights: {100.0 * found:.1f} %" in summary(finished.metrics)
    codes = posterior.sample_codes(4000, generator=torch.Generator().manual_seed(0))
    zeros = (codes == finished.metrics["train.num_values"] // 2).double().mean(1)
    assert 0.02 < found < 0.98
    assert float(zeros.mean()) == pytest.approx(found, abs=5.0 * float(zeros.std()) / 4000**0.5)


def test_a_run_that_was_stopped_ends_at_the_same_numbers(finished, tmp_path):
    """To the bit, from other states of torch's own generator: so does one that was not stopped."""
    if finished.approx in VARIANTS:
        return
    folder = RunFolder(tmp_path / "stopped")
    with torch.random.fork_rng(), stopped_at(STOP):
        torch.manual_seed(1)  # of no use to a run
        run(config(finished.approx, "trainer.figures=false"), folder)
    assert not folder.metrics.exists()
    assert counted(resume(folder.path)) == counted(finished.metrics)
    assert len(json.loads(folder.environment.read_text())["resumed"]) == 1
    at = np.linspace(-0.5, 0.5, 3)[:, None] * np.ones(num_inputs(finished.approx))
    models = [load(each.path) for each in (finished.folder, folder)]
    classes = is_classification(finished.approx)
    first, second = (m.predict_classes(at) if classes else m.predict(at) for m in models)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("approx", RUNS)
def test_cuda(tmp_path, approx):
    metrics = run(config(approx, "trainer.device=cuda"), RunFolder(tmp_path / "run"))
    assert metrics["test.rmse"] < 0.9
