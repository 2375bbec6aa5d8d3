"""What a run shows while it trains, and which choices it refuses."""

import sys
import types

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpx.errors import OutOfMemory

ARM = ["data=robot_arm", "data.num_points=1500"]


def test_tensorboard_shows_evidence_parameters_rates_metrics_and_figures(train):
    options = ["approx.num_inducing=15", "trainer.max_steps=20", "trainer.figures=true"]
    _, folder = train("data=toy1d", "approx=svgp", *options)
    events = EventAccumulator(str(folder.path), size_guidance={"images": 10}).Reload()
    tags = set(events.Tags()["scalars"])
    wanted = {
        "evidence/per_point",
        "hyperparameters/likelihood.noise_variance",
        "learning_rate/hyperparameters",
        "time/seconds_per_step",
        "test/rmse",
    }
    assert wanted <= tags, wanted - tags
    assert "hyperparameters/kernel.lengthscale" in {*tags, *events.Tags()["histograms"]}
    assert any(t.startswith("evidence/") and t != "evidence/per_point" for t in tags)
    assert {"figures/predicted_against_observed", "figures/fitted_function"} <= set(
        events.Tags()["images"]
    )
    noise = events.Scalars("hyperparameters/likelihood.noise_variance")
    assert all(event.value > 0 for event in noise)
    assert (folder.figures / "fitted_function.png").exists()
    assert (folder.figures / "sampled_functions.png").exists()


def test_tensorboard_shows_a_vector_as_one_chart_the_config_and_the_outcome(train):
    options = ["data=robot_arm", "data.num_points=300", "trainer.figures=true"]
    _, folder = train(*options, "approx=exact", "trainer.max_steps=2")
    events = EventAccumulator(str(folder.path)).Reload()
    tags = events.Tags()
    assert "hyperparameters/kernel.lengthscale" in tags["histograms"]
    assert not any(tag.startswith("hyperparameters/kernel.lengthscale") for tag in tags["scalars"])
    assert "config/text_summary" in tags["tensors"]
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "_target_: gpx.models.ExactGP" in text
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    for chosen in (b"ExactGP", b"RBF", b"approx.solver", b"trainer.max_steps"):
        assert chosen in hparams, chosen
    assert "test.rmse" in tags["scalars"]
    assert (folder.figures / "kernel_lengthscale.png").exists()


def test_a_run_reports_to_a_logger_from_start_to_end(train, monkeypatch):
    calls = []

    found = types.SimpleNamespace(
        info=types.SimpleNamespace(run_id="3f"), data=types.SimpleNamespace(params={})
    )

    def noting(name):
        return lambda *args, **kwargs: calls.append(name) or found

    package = types.ModuleType("mlflow")
    package.__getattr__ = noting
    monkeypatch.setitem(sys.modules, "mlflow", package)
    options = ["approx=exact", "trainer.max_steps=2", "trainer.figures=true"]
    train("data=toy1d", *options, "trainer.loggers=[mlflow]")
    assert calls[:2] == ["start_run", "log_text"]
    assert {"log_metrics", "log_image", "log_params"} < set(calls)
    assert calls[-1] == "end_run"


def test_objective_that_does_not_fit_the_model_is_one_sentence(train, tmp_path):
    from gpx.errors import ConfigError

    with pytest.raises(ConfigError, match=r"needs ExactGP, or a model with .*, got SVGP"):
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

    with pytest.raises(ConfigError, match="inference= sets it and needs that"):
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_one_sentence(train):
    from gpx.errors import BackendUnavailable

    with pytest.raises(BackendUnavailable, match="sees no CUDA device"):
        train(*ARM, "approx=exact", "trainer.device=cuda")


def test_a_device_that_is_full_in_training_is_one_sentence(train, monkeypatch):
    def full(self, model, x, y, *, generator=None):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 ...")

    monkeypatch.setattr("gpx.objectives.ExactMLL.evidence", full)
    options = ["data=robot_arm", "data.num_points=200", "approx=exact", "trainer.max_steps=2"]
    with pytest.raises(OutOfMemory, match=r"out of memory \(it needed 3.00 GiB more\); lower"):
        train(*options, "trainer.memory_budget=1GiB", "trainer.device=cpu")


def test_rows_of_a_batch_that_no_step_takes(train, capsys):
    options = ["approx=pic", "approx.num_inducing=10", "trainer.max_steps=2"]
    train(*ARM, *options, "trainer.batch_size=50")
    said = "note: trainer.batch_size=50 has no effect: EffectiveEvidence uses all rows in every"
    assert said in "".join(capsys.readouterr())
    train(*ARM, *options, folder="plain")
    assert "has no effect" not in "".join(capsys.readouterr())


def test_the_model_that_an_objective_is_for_is_named(train):
    from gpx.errors import ConfigError

    with pytest.raises(ConfigError, match="objective LeaveOneOut needs ExactGP, or a model with"):
        train(*ARM, "approx=svgp", "objective=loo", "approx.num_inducing=10")
