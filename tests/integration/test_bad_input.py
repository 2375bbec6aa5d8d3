"""Data and options that ask for what cannot be: a sentence, or a degradation that is reported."""

import math

import pytest
import torch

from gpx.errors import ConfigError, DataError
from gpx.linalg import UnconvergedWarning

SHORT = [
    "trainer.max_steps=3",
    "trainer.figures=false",
    "trainer.tensorboard=false",
    "trainer.eval_every=0",
    "data=csv",
]
ITERATIVE = ["approx=exact", "approx.solver=iterative"]
BARELY_BIASED = ["approx=exact", "approx.solver=barely_biased"]
LOOSE = "approx.num_inducing=4"
FULL_BATCH = {
    "cholesky": ["approx=exact", "approx.solver=cholesky"],
    "iterative": ITERATIVE,
    "barely_biased": BARELY_BIASED,
    "cglb": ["approx=cglb"],
    "sgpr": ["approx=sgpr"],
}


@pytest.fixture
def table(tmp_path):
    """Path of a CSV file of 40 rows a, b, y after ``change`` has had the (40, 3) tensor."""

    def write(change=None, copies=1):
        rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rows[:, 2] = (2.0 * rows[:, 0]).sin() + rows[:, 1] + 0.1 * rows[:, 2]
        if change is not None:
            change(rows)
        lines = [",".join(map(repr, row)) for row in rows.tolist()] * copies
        path = tmp_path / "rows.csv"
        path.write_text("\n".join(["a,b,y", *lines]) + "\n")
        return f"data.path={path}"

    return write


@pytest.mark.parametrize("approx", FULL_BATCH)
def test_every_row_three_times(train, table, approx):
    metrics, _ = train(*SHORT, *FULL_BATCH[approx], table(copies=3))
    assert math.isfinite(metrics["train.evidence"])
    assert metrics["test.rmse"] < 0.5
    assert metrics.get("train.solver_converged", True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_targets_that_are_not_finite(train, table, value):
    def spoil(rows):
        rows[7, 2] = value

    with pytest.raises(DataError, match=rf"line 9, column 3 \('y'\): found {value}"):
        train(*SHORT, *ITERATIVE, "data.missing=refuse", table(spoil))


@pytest.mark.parametrize("approx", FULL_BATCH)
def test_a_constant_column_and_a_constant_target(train, table, approx, caplog):
    def constant(rows):
        rows[:, 1] = 3.0
        rows[:, 2] = 2.5

    metrics, _ = train(*SHORT, *FULL_BATCH[approx], table(constant))
    assert metrics["test.rmse"] < 1e-6
    assert math.isfinite(metrics["test.mnlp"])
    for name in ("input column 2 ('b')", "the target 'y'"):
        assert f"constant in the training rows, so centred but not scaled: {name}" in caplog.text


@pytest.mark.parametrize("approx", ["sgpr", "cglb", "svgp"])
def test_more_inducing_points_than_data(train, table, approx, capfd):
    options = [f"approx={approx}", "approx.num_inducing=5000"]
    _, folder = train(*SHORT, *options, table())
    out, err = capfd.readouterr()
    said = "approx.num_inducing=36: one per training point; 5,000 would be more"
    assert said in out + err
    assert folder.read_config().approx.num_inducing == 36


def test_noise_at_its_floor(train, table):
    with pytest.raises(ConfigError, match=r"set to 1e-12; it must be above its floor 1.0e-06"):
        train(*SHORT, *ITERATIVE, table(), "likelihood.noise_variance=1e-12")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*ITERATIVE, "objective.iterative.tolerance=1e-30"], "stagnation: bound on the evidence"),
        ([*ITERATIVE, "approx.iterative.tolerance=1e-30"], "stagnation: bound on the posterior"),
        ([*BARELY_BIASED, "objective.barely_biased.bias=1e-30"], "rounding allows no less"),
        (
            ["approx=cglb", LOOSE, "approx.solver.epsilon=1e-60"],
            "stagnation: bound on the evidence",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:predictive variances are certified")
def test_a_tolerance_out_of_reach_warns_and_reports_what_was_reached(
    train, table, options, message
):
    with pytest.warns(UnconvergedWarning, match=message):
        metrics, _ = train(*SHORT, *options, table())
    assert metrics["test.rmse"] < 0.7
    if "objective" in options[-1]:
        assert metrics["train.solver_converged"] is False
    elif options[0] == "approx=cglb":
        assert metrics["predict.solver_converged"] is False
    else:
        assert 0.0 < metrics["predict.mean_error_bound"] < 1e-6


def test_too_few_rows_for_a_split(train, table, tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("a,b,y\n1,2,3\n")
    with pytest.raises(DataError, match="has 1 rows, fewer than the 10 that 10 splits need"):
        train(*SHORT, *ITERATIVE, f"data.path={path}")


@pytest.mark.parametrize("approx", FULL_BATCH)
def test_two_training_points(train, tmp_path, approx):
    path = tmp_path / "three.csv"
    path.write_text("a,b,y\n1,2,3\n0.5,1,2\n0.7,1.3,2.1\n")
    metrics, _ = train(*SHORT, *FULL_BATCH[approx], f"data.path={path}", "data.test_fraction=0.34")
    assert math.isfinite(metrics["train.evidence"])
    assert math.isfinite(metrics["test.mnlp"])


@pytest.mark.parametrize(
    ("approx", "option"),
    [
        (["approx=grief"], "approx.grid.transductive"),
        (["approx=reweighted", "inference=type2"], "approx.basis.grid.transductive"),
    ],
)
def test_a_grid_over_test_inputs_is_said_aloud_and_needs_some(
    train, table, tmp_path, capfd, approx, option
):
    short = [option for option in SHORT if not option.startswith("data")]
    rows = [*short, "data=csv", table()]
    train(*rows, *approx, f"{option}=true")
    assert (
        "the inputs of the test rows, not their targets, place the grid" in capfd.readouterr().err
    )
    with pytest.raises(ConfigError, match="there are none: give some"):
        train(*rows, *approx, f"{option}=true", "data.test_fraction=0", folder="none")
