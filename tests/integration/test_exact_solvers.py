"""The three paths of approx=exact through train.py's own functions: record, resume, predict."""

import pytest
import torch
from hydra.utils import instantiate
from stopped_runs import stopped_at

from gpx.runs import RunFolder, load, resume, run

SMALL = [
    "data=robot_arm",
    "data.num_points=150",
    "approx=exact",
    "approx.iterative.rank=20",
    "approx.iterative.variance_steps=5",
    "init.num_points=100",
    "init.max_evaluations=5",
    "trainer.max_steps=6",
    "trainer.baselines=false",
    "trainer.figures=false",
    "trainer.tensorboard=false",
    "trainer.eval_every=0",
]
UNCOUNTED = ("train.seconds", "train.start.seconds", "memory.peak_mib")


@pytest.mark.filterwarnings("ignore:predictive variances are certified")
@pytest.mark.parametrize(
    "options",
    [
        ["approx.solver=iterative"],
        ["approx.solver=iterative", "optimizer=adam"],
        ["approx.solver=barely_biased", "objective.barely_biased.probes=2", "optimizer=adam"],
    ],
    ids=["iterative", "iterative-adam", "barely_biased-adam"],
)
def test_resumed_equals_uninterrupted_and_predicts_after_loading(composed, tmp_path, options):
    overrides = [*SMALL, *options]
    whole = run(composed(*overrides), RunFolder(tmp_path / "whole"))
    solver = options[0].removeprefix("approx.solver=")
    assert whole["train.solver"] == solver
    assert whole["train.evidence_kind"] == "estimate"
    assert whole["train.solver_converged"] is True
    assert whole["predict.solver"] == "iterative"
    assert whole["predict.tolerance"] == 0.01

    folder = RunFolder(tmp_path / "stopped")
    with stopped_at(3):
        run(composed(*overrides), folder)
    found = resume(str(folder.path))
    for name in set(whole) - set(UNCOUNTED):
        assert found[name] == whole[name], name
    posterior = load(folder.path).posterior
    other = load(tmp_path / "whole").posterior
    at = posterior.inputs[:5] + 0.1
    assert torch.equal(posterior.predict(at).variance, other.predict(at).variance)


def test_auto_is_settled_in_the_config_and_recorded(composed, tmp_path):
    folder = RunFolder(tmp_path / "run")
    metrics = run(composed(*SMALL), folder)
    assert metrics["train.solver"] == metrics["predict.solver"] == "cholesky"
    assert metrics["train.evidence_kind"] == "exact"
    assert folder.read_config().approx.solver == "cholesky"


@pytest.mark.parametrize("objective", ["iterative_mll", "barely_biased_mll", "exact_mll"])
def test_objectives_of_one_path(composed, tmp_path, objective):
    metrics = run(composed(*SMALL, f"objective={objective}"), RunFolder(tmp_path / "run"))
    assert metrics["train.solver"] == objective.removesuffix("_mll").replace("exact", "cholesky")
    assert metrics["predict.solver"] == "cholesky"


def test_the_large_recipe_composes(composed):
    config = composed("experiment=exact_iterative_large")
    assert config.approx.solver == "iterative"
    assert config.objective.iterative._target_ == "gpx.objectives.IterativeMLL"
    assert config.optimizer._target_ == "gpx.training.FirstOrder"
    assert config.trainer.device == "cuda"


@pytest.mark.parametrize("recipe", ["exact_kin40k", "exact_dense_100k", "exact_houseelectric"])
def test_recipes_for_one_gpu_compose_and_fit_their_objective(composed, recipe):
    config = composed(f"experiment={recipe}")
    dense = recipe != "exact_houseelectric"
    assert config.approx.solver == ("cholesky" if dense else "iterative")
    assert config.trainer.device == "cuda"
    objective = instantiate(config.objective)
    assert objective.iterative.warm_start is not dense
