"""What every approximation must do on the way from a config to a finished run folder."""

import json

import pytest
import torch
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpx.training import load

ARM = ["data=robot_arm", "data.num_points=1500"]
APPROXIMATIONS = {
    "exact": ["trainer.max_steps=8", "data.num_points=400"],
    "sgpr": ["trainer.max_steps=8", "approx.num_inducing=40"],
    "cglb": ["trainer.max_steps=6", "approx.num_inducing=30"],
    "grief": ["trainer.max_steps=6", "approx.num_eigenfunctions=60"],
    "reweighted": [
        "approx.num_basis=80",
        "optimizer.burn_in=30",
        "optimizer.iterations=40",
        "optimizer.thin=10",
    ],
    "svgp": ["trainer.max_steps=30", "approx.num_inducing=40", "trainer.batch_size=200"],
    "qsgp": [
        "approx.num_basis=2000",
        "approx.block_frequencies=100",
        "approx.block_columns=400",
    ],
}
PROMISED = [
    "test.rmse",
    "test.mnlp",
    "test.rmse_original",
    "test.mnlp_original",
    "train.seconds",
    "train.steps",
    "train.evidence",
    "model.num_parameters",
    "memory.peak_mib",
]


@pytest.mark.parametrize("approx", APPROXIMATIONS)
def test_run_folder_holds_what_is_promised(train, approx):
    metrics, folder = train(*ARM, f"approx={approx}", *APPROXIMATIONS[approx])
    assert json.loads(folder.metrics.read_text()) == metrics
    for name in PROMISED:
        assert isinstance(metrics[name], float | int), name
    assert metrics["test.rmse"] < 0.9  # better than the mean
    environment = json.loads(folder.environment.read_text())
    assert {"versions", "device", "git_commit", "seed", "command"} <= set(environment)
    config = OmegaConf.load(folder.config)
    assert config.facts.num_inputs == 8
    assert "${" not in folder.config.read_text()
    assert (folder.figures / "predicted_against_observed.png").stat().st_size > 1000
    assert folder.checkpoint.exists()


@pytest.mark.parametrize("approx", APPROXIMATIONS)
def test_a_loaded_model_predicts_as_the_run_did(train, approx):
    metrics, folder = train(*ARM, f"approx={approx}", *APPROXIMATIONS[approx])
    from gpx.data import RobotArm
    from gpx.data import load as load_data

    points = 400 if approx == "exact" else 1500
    data = load_data(RobotArm(num_points=points), task="regression")
    model = load(folder.path)
    prediction = model.predict(data.scaler.original_inputs(data.test_x).numpy())
    observed = data.scaler.original_mean(data.test_y).numpy()
    rmse = float(((prediction.mean - observed) ** 2).mean() ** 0.5)
    assert rmse == pytest.approx(metrics["test.rmse_original"], rel=1e-5)
    assert (prediction.lower < prediction.mean).all()
    assert (prediction.mean < prediction.upper).all()
    width = (prediction.upper - prediction.lower) / prediction.std
    mixture = approx == "reweighted"  # whose quantiles are not a normal's
    assert width == pytest.approx(2 * 1.959964, rel=0.05 if mixture else 1e-4)


@pytest.mark.parametrize("approx", APPROXIMATIONS)
def test_two_runs_of_one_config_agree_to_the_bit(train, approx):
    first, _ = train(*ARM, f"approx={approx}", *APPROXIMATIONS[approx], folder="a")
    second, _ = train(*ARM, f"approx={approx}", *APPROXIMATIONS[approx], folder="b")
    for name, value in first.items():
        if name not in ("train.seconds", "memory.peak_mib"):
            assert second[name] == value, name


def test_tensorboard_shows_evidence_parameters_rates_metrics_and_figures(train):
    _, folder = train("data=toy1d", "approx=svgp", "approx.num_inducing=15", "trainer.max_steps=20")
    events = EventAccumulator(str(folder.tensorboard), size_guidance={"images": 10}).Reload()
    tags = set(events.Tags()["scalars"])
    wanted = {
        "evidence/per_point",
        "hyperparameters/likelihood.noise_variance",
        "learning_rate/hyperparameters",
        "time/seconds_per_step",
        "test/rmse",
    }
    assert wanted <= tags, wanted - tags
    assert any(t.startswith("hyperparameters/kernel.lengthscale") for t in tags)
    assert any(t.startswith("evidence/") and t != "evidence/per_point" for t in tags)
    assert {"figures/predicted_against_observed", "figures/fitted_function"} <= set(
        events.Tags()["images"]
    )
    noise = events.Scalars("hyperparameters/likelihood.noise_variance")
    assert all(event.value > 0 for event in noise)
    assert (folder.figures / "fitted_function.png").exists()


def test_objective_that_does_not_fit_the_model_is_one_sentence(train, tmp_path):
    from gpx.errors import ConfigError

    with pytest.raises(ConfigError, match="needs a model with iterative and solver_for, got SVGP"):
        train(*ARM, "approx=svgp", "objective=exact_mll", "approx.num_inducing=10")
    assert not (tmp_path / "run").exists()


def test_stochastic_objective_refuses_lbfgsb(train):
    from gpx.errors import ConfigError

    with pytest.raises(ConfigError, match="needs a deterministic objective"):
        train(*ARM, "approx=svgp", "optimizer=lbfgsb", "approx.num_inducing=10")


def test_inference_chooses_the_optimizer(composed):
    found = {}
    for name in ("type1_mala", "type2", "relevance_vectors"):
        config = composed("approx=reweighted", f"inference={name}", "data=servo")
        found[name] = config.optimizer["_target_"], config.approx.inference
    assert found == {
        "type1_mala": ("gpx.training.MALA", "type1"),
        "type2": ("gpx.training.LBFGSB", "type2"),
        "relevance_vectors": ("gpx.training.RelevanceVectors", "relevance_vectors"),
    }
    default = composed("approx=reweighted", "data=servo")
    assert default.optimizer["_target_"] == "gpx.training.MALA"


def test_type_one_inference_needs_a_model_that_samples(train, tmp_path):
    from gpx.errors import ConfigError

    with pytest.raises(ConfigError, match="inference=, which sets it, needs approx=reweighted"):
        train(*ARM, "approx=sgpr", "inference=type1_mala", "approx.num_inducing=10")
    assert not (tmp_path / "run").exists()


def test_float32_is_honoured(train):
    _, folder = train(
        *ARM,
        "approx=sgpr",
        "approx.num_inducing=20",
        "trainer.max_steps=3",
        "trainer.dtype=float32",
    )
    state = torch.load(folder.checkpoint, weights_only=True)
    assert all(v.dtype == torch.float32 for v in state["model"].values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("approx", APPROXIMATIONS)
def test_cuda(train, approx):
    metrics, _ = train(*ARM, f"approx={approx}", *APPROXIMATIONS[approx], "trainer.device=cuda")
    assert metrics["test.rmse"] < 0.9


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_one_sentence(train):
    from gpx.errors import BackendUnavailable

    with pytest.raises(BackendUnavailable, match="sees no CUDA device"):
        train(*ARM, "approx=exact", "trainer.device=cuda")
