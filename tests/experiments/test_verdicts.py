"""Checks of the QSGP tables: which results pass and which fail."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture
def script(monkeypatch):
    """The module of a script, by folder/name."""

    def read(name):
        monkeypatch.syspath_prepend(str(EXPERIMENTS))
        path = EXPERIMENTS / f"{name}.py"
        monkeypatch.syspath_prepend(str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return module

    return read


def run(rmse, mnlp, neighbours=(0.4, 0.5)):
    metrics = {"test.rmse": rmse, "test.rmse_original": rmse, "test.mnlp": mnlp}
    metrics |= {"baseline.5-nn.rmse": neighbours[0], "baseline.5-nn.mnlp": neighbours[1]}
    return {"metrics": metrics}


def test_the_published_optimiser_has_the_same_thresholds(script):
    judge = script("qsgp/regression").judge
    ours = judge("fourier", "kin40k", False, 0.091, [run(0.091, -0.99)])
    assert all(ours.values())
    published = judge("fourier", "kin40k", True, 0.246, [run(0.246, 0.017)])
    failed = [what for what, ok in published.items() if not ok]
    assert len(failed) == 2
    assert all("RMSE" in what and "published optimiser" in what for what in failed)


def test_svgp_beside_the_tables_is_one_command_and_one_cell(script):
    regression = script("qsgp/regression")
    options = regression.command("svgp", "kin40k", quick=False, paper=False)
    first = ["approx=svgp", "optimizer=svgp", "kernel=rbf"]
    assert options == [*first, "data=kin40k", "trainer.device=cpu"]
    assert regression.pair(None) == "-"
    assert regression.pair(run(0.18, -0.15)["metrics"]) == "0.180 / -0.150"
    assert regression.whole({"data": "kin40k", "training_rows": 36_000})
    assert not regression.whole({"data": "kin40k", "training_rows": 4_000})


def test_rmse_must_beat_five_neighbours(script):
    judge = script("qsgp/regression").judge
    found = judge("inducing", "protein", False, 0.486, [run(0.486, 0.96, (0.445, 0.867))])
    assert [ok for what, ok in found.items() if "five neighbours" in what] == [False]
    assert sum(not ok for ok in found.values()) == 1


def test_rmse_must_beat_five_neighbours_on_all_splits(script):
    judge = script("qsgp/regression").judge
    splits = [run(0.43, 0.8, (0.445, 0.867)), run(0.47, 0.8, (0.445, 0.867))]
    found = judge("fourier", "protein", False, 0.45, splits)
    assert [ok for what, ok in found.items() if "five neighbours" in what] == [False]


def test_the_mean_over_splits_is_compared(script):
    judge = script("qsgp/regression").judge
    first = run(0.10, -0.9)
    assert all(judge("inducing", "kin40k", False, 0.16, [first] * 5).values())
    worse = judge("inducing", "kin40k", False, 0.17, [first] * 5)
    assert [what for what, ok in worse.items() if not ok] == [
        "kin40k: RMSE (0.17, 5 splits) at most the published one + its standard deviation (0.161)",
        "kin40k: RMSE at most 0.165",
    ]


@pytest.mark.parametrize(
    ("few", "many", "holds"), [(-20.0, -20.5, True), (-24.5, -17.2, False), (-17.2, -24.5, False)]
)
def test_traces_are_judged_in_any_setting(script, few, many, holds):
    rows = [
        {"run": name, "final bound, nats per point": final, "bound after a tenth": final - 10.0}
        for name, final in (
            ("few, none", -34.7),
            ("few, control variate", few),
            ("many, none", many),
            ("many, control variate", -10.4),
        )
    ]
    checks = script("qsgp/traces").judge(rows)
    assert [ok for what, ok in checks.items() if "about as good" in what] == [holds]
    assert sum(not ok for ok in checks.values()) == (not holds)


def test_small_mnist_does_not_pass_for_the_published_one(script):
    base = {"bound / image": -1.0, "NLP": 0.2, "accuracy": 0.9, "change": 0.0, "+-": 0.0}
    better = {"bound / image": -0.3, "NLP": 0.1}
    best = {"bound / image": -0.2, "accuracy": 0.963, "change": -0.01, "+-": 0.001}
    rows = [{"m": 10_000} | row for row in (base, base | better, base | better | best)]
    checks = script("qsgp/mnist").judge(rows)
    assert sum(ok is True for ok in checks.values()) == 3
    assert sum(ok is False for ok in checks.values()) == 2
    assert sum(ok is None for ok in checks.values()) == 2


def mnist_row(m, accuracy, **other):
    row = {"m": m, "accuracy": accuracy, "NLP": 0.07, "bound / image": -0.2}
    return row | {"change": -1.0, "+-": 0.1} | other


def test_both_site_bounds_are_compared_where_both_were_run(script):
    mnist = script("qsgp/mnist")
    affine = [mnist_row(10, 0.9), mnist_row(10, 0.96, NLP=0.06), mnist_row(10, 0.98, NLP=0.06)]
    alone = {what: ok for what, ok in mnist.judge(affine).items() if "site bounds" in what}
    assert alone == {"both site bounds, affine and paper, run": None}
    paper = [{**row, "bound": "paper", "accuracy": 0.97} for row in affine]
    both = mnist.judge([*affine, *paper])
    (found,) = [what for what in both if "site bounds" in what]
    assert both[found]
    assert "m = 10: accuracy 0.980 and 0.970" in found
    assert both.keys() - {found} == mnist.judge(affine).keys() - alone.keys()


def test_folds_of_mnist_are_pooled_by_image(script, monkeypatch):
    mnist = script("qsgp/mnist")
    written = {}
    monkeypatch.setattr(
        mnist,
        "write",
        lambda folder, name, title, notes, rows, checks: written.update(rows=rows, checks=checks),
    )
    cells = mnist.Cells(None, "m", "fold")
    for fold, (images, right) in enumerate([(100, 97)] * 9 + [(50, 50)]):
        row = {"m": 10, "fold": fold, "test images": images, "right": right}
        cells.rows.append(row | {"NLP": 0.06, "NLP, averaged": 0.09})
    mnist.folds_table(cells)
    (pooled,) = written["rows"]["All folds together"]
    assert pooled["accuracy"] == pytest.approx((9 * 97 + 50) / 950)
    assert list(written["checks"].values()) == [False, True]


def test_ratios_of_the_network_are_said_with_the_published_ones(script):
    ratios = script("grids/network").ratios
    slow = ratios({"fill": 1.0, "ignore": 2.0, "ignore, 1000 eigenpairs": 20.0}, 39_000)
    assert "takes 2.0 times as long as filling them (published: 15.1)" in slow
    assert "10 times as long as without (published: 0.11): with 39,000 observed cells" in slow
    fast = ratios({"fill": 1.0, "ignore": 2.0, "ignore, 1000 eigenpairs": 1.0}, 39_000)
    assert fast.endswith("0.5 times as long as without (published: 0.11).")


def test_saved_runs_of_mnist_are_told_apart_by_size_and_bound(script, tmp_path):
    mnist = script("qsgp/mnist")
    rows = [mnist_row(10, 0.9), mnist_row(10, 0.9, bound="paper"), mnist_row(20, 0.9)]
    path = tmp_path / "mnist.json"
    path.write_text(json.dumps({"rows": rows}))
    runs = mnist.grouped(mnist.saved(path))
    assert list(runs) == [(10, "affine"), (10, "paper"), (20, "affine")]
    assert list(mnist.saved(path)[0])[:2] == ["m", "bound"]
