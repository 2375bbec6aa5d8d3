"""approx=grid through train.py's own functions: record, resume, predict."""

import numpy as np
import pytest
import torch
from stopped_runs import stopped_at

from gpx.errors import ConfigError, DataError
from gpx.runs import RunFolder, load, resume, run

SMALL = [
    "approx=grid",
    "init=constants",
    "trainer.max_steps=8",
    "trainer.baselines=false",
    "trainer.figures=false",
    "trainer.tensorboard=false",
]
STRESS = [*SMALL, "data=grid_stress", "data.shape=[9,8,6]", "data.gap_share=0.3"]
UNCOUNTED = ("train.seconds", "train.start.seconds", "memory.peak_mib")


@pytest.mark.parametrize(
    "options",
    [
        ["objective.logdet=nystrom"],
        ["grid.gaps=ignore", "objective.logdet=slq_ignore"],
        ["grid.gaps=penalize", "approx.solver.penalty=100"],
        ["objective=gcv", "kernel.outputscale=null"],
        ["approx.fft_points=9", "objective.logdet=nystrom", "kernel=product_matern12"],
    ],
    ids=["fill", "ignore", "penalize", "gcv", "fft"],
)
def test_resumed_equals_uninterrupted_and_predicts_after_loading(composed, tmp_path, options):
    overrides = [*STRESS, *options]
    whole = run(composed(*overrides), RunFolder(tmp_path / "whole"))
    assert whole["model.name"] == "GridGP"
    assert whole["train.gaps"] == (options[0][10:] if "gaps" in options[0] else "fill")

    folder = RunFolder(tmp_path / "stopped")
    with stopped_at(3):
        run(composed(*overrides), folder)
    again = resume(str(folder.path))
    assert {k: v for k, v in again.items() if k not in UNCOUNTED} == {
        k: v for k, v in whole.items() if k not in UNCOUNTED
    }
    at = np.array([[0.25, 0.5, 0.9], [0.1, 0.3, 1.2]])
    first, second = (load(tmp_path / name).predict(at) for name in ("whole", "stopped"))
    np.testing.assert_array_equal(first.mean, second.mean)
    np.testing.assert_array_equal(first.std, second.std)


def test_gcv_predicts_with_variances_of_the_right_scale(composed, tmp_path):
    """Unscaled, the noise variance at its floor made 95 % intervals cover 2 % of the targets."""
    options = ["data=grid_stress", "data.field=rastrigin", "data.shape=[24,24]"]
    options += ["data.gap_share=0.3", "objective=gcv", "kernel.outputscale=null"]
    config = composed(*SMALL, *options, "trainer.max_steps=40")
    metrics = run(config, RunFolder(tmp_path / "run"))
    assert metrics["test.mnlp"] < 1.0
    assert metrics["test.coverage_95"] > 0.85
    scale = metrics["train.variance_scale"]
    assert metrics["predict.prior_scale"] == pytest.approx(scale, rel=1e-6)
    found = load(tmp_path / "run").predict(np.array([[1e3, 1e3]]))  # where only the prior speaks
    assert found.std == pytest.approx(np.sqrt(scale), rel=0.1)


def test_a_table_with_axis_columns(composed, tmp_path):
    rows = [[s, t] for s in range(4) for t in np.linspace(0.0, 3.0, 15)]
    random = np.random.default_rng(0)
    kept = np.array(rows)[random.permutation(60)[:50]]
    target = np.sin(kept[:, 1]) + 0.3 * kept[:, 0] + 0.05 * random.standard_normal(50)
    path = tmp_path / "table.csv"
    np.savetxt(path, np.column_stack([kept, target]), delimiter=",")
    options = [*SMALL, "data=csv", f"data.path={path}", "kernel=rbf"]
    metrics = run(composed(*options), RunFolder(tmp_path / "run"))
    assert metrics["train.evidence_kind"] == "exact"
    assert metrics["train.logdet"] == "dense"
    assert metrics["train.grid_cells"] == 60
    assert metrics["test.rmse"] < 0.3
    twice = np.vstack([kept, kept])
    np.savetxt(path, np.column_stack([twice, [*target, *target]]), delimiter=",")
    with pytest.raises(DataError, match="one cell of the grid"):
        run(composed(*options), RunFolder(tmp_path / "twice"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["grid.gaps=fil"], "expected one of auto"),
        (["grid.gaps=full"], "have no row"),
        (["kernel=matern32"], "does not factor"),
        (["approx.axes=[[0,1]]"], "exactly once"),
        (["likelihood=student_t"], "likelihood=gaussian"),
        (["objective=exact_mll"], "needs ExactGP, or a model with iterative and solver_for"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(composed, tmp_path, options, text):
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=text):
        run(composed(*STRESS, *options), RunFolder(folder))
    assert not folder.exists()


def test_grouped_axes_come_from_the_data(composed, tmp_path):
    random = np.random.default_rng(1)
    values = random.standard_normal((5, 6))
    values[2, 3] = np.nan
    place = random.standard_normal((5, 2))
    np.savez(tmp_path / "own.npz", values=values, axis0=place, axis1=np.arange(6.0))
    options = [
        *SMALL,
        "data=grid",
        f"data.path={tmp_path / 'own.npz'}",
        "data.axes=[[0,1],[2]]",
        "kernel=product_matern32",
    ]
    metrics = run(composed(*options), RunFolder(tmp_path / "run"))
    assert metrics["train.grid_cells"] <= 30
    config = RunFolder(tmp_path / "run").read_config()
    assert config.approx.solver.gaps == "fill"
    found = load(tmp_path / "run").predict(np.array([[*place[2], 3.0]]))
    assert np.isfinite(found.mean).all()
    assert torch.tensor(found.std).gt(0).all()


def test_one_budget_rules_the_grid(composed, tmp_path):
    shape = "data.shape=[40,30,10]"  # 25 vectors of 12,000 cells are 2.3 MiB
    tight = composed(*STRESS, shape, "trainer.memory_budget=2MiB")
    wanted = (
        r"grid of .* trainer\.memory_budget=2\.0MiB may be held .*approx\.axes=\[\[0,1\],\[2\]\]"
    )
    with pytest.raises(ConfigError, match=wanted):
        run(tight, RunFolder(tmp_path / "tight"))
    # memory for the vectors of the grid and for thirty samples of variances
    options = [f"trainer.memory_budget={55 * 8 * 12_000}", "approx.variance=sampled"]
    folder = RunFolder(tmp_path / "roomy")
    run(composed(*STRESS, shape, *options, "objective.probes=1", "trainer.max_steps=1"), folder)
    assert folder.read_config().approx.variance_samples == 30
