"""What the tables of discrete weights are made of: the bound of figure 7.4, the limits of 7.1."""

import itertools
import math
import sys
from pathlib import Path

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import Direct, DirectMixture, NoiseGrid, WeightGrid

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.syspath_prepend(str(EXPERIMENTS / "direct"))
    before = set(sys.modules)
    import demo

    yield demo
    for name in set(sys.modules) - before:
        if not name.startswith("gpx"):
            monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.syspath_prepend(str(EXPERIMENTS / "direct"))
    import uci_tables

    yield uci_tables
    for name in ("uci_tables", "uci_notes", "published", "record"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def small(cls, **options):
    """A model of four weights with three values each, away from its prior; features, targets."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(9, 1, generator=draws, dtype=torch.float64)
    y = torch.randn(9, generator=draws, dtype=torch.float64)
    model = cls(
        kernel=RBF(1, lengthscale=0.7, outputscale=2.0),
        mean=Zero(),
        likelihood=Gaussian(0.3),
        basis=RandomFourier,
        num_basis=4,
        weights=WeightGrid(values=[-1.0, 0.0, 1.5], probabilities=[0.2, 0.5, 0.3]),
        noise=NoiseGrid(lowest=0.1, highest=1.0, num_values=3),
        anneal=0,
        **options,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in [p for group in model.parameter_groups().values() for p in group]:
            parameter += torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
    return model, model.basis(x).detach(), y


@torch.no_grad()
def enumerated_bound(model, features, y):
    """E_q log p(y, w, noise) - log q(w) q(noise), over every hypothesis."""
    shares, q = model.mixture()
    prior, values = model.log_prior(), model.values()
    noise, log_noise_prior = model.noise_grid()
    log_noise = model.noise_probabilities().log()
    bound = 0.0
    for places in itertools.product(range(3), repeat=4):
        chosen = torch.tensor(places)
        mass = shares @ q[:, range(4), places].prod(1)
        error = (y - features @ values[chosen]).square().sum()
        rest = prior[chosen].sum() - mass.log()
        for level in range(3):
            fit = -0.5 * (error / noise[level] + len(y) * math.log(2.0 * math.pi * noise[level]))
            over_noise = log_noise_prior[level] - log_noise[level]
            bound += mass * log_noise[level].exp() * (fit + rest + over_noise)
    return float(bound)


def test_the_true_bound_of_a_mean_field_is_exact(demo):
    model, features, y = small(Direct)
    bound, error = demo.true_bound(model, 1000)
    assert error == 0.0
    assert bound == pytest.approx(enumerated_bound(model, features, y), abs=1e-9)


def test_the_true_bound_of_a_mixture_is_within_its_error(demo):
    model, features, y = small(DirectMixture, components=3, sweeps=0)
    want = enumerated_bound(model, features, y)
    bound, error = demo.true_bound(model, 40_000)
    assert 1e-4 < error < 0.01  # of 40,000 draws of an entropy with a deviation of about one
    assert abs(bound - want) < 4.0 * error


def test_errors_and_zeros_within_the_published_ones(tables):
    assert tables.inside(1.15, 1.0, 0.1)
    assert not tables.inside(1.16, 1.0, 0.1)
    assert tables.inside(1.5, 1.0, 0.5)
    assert not tables.inside(1.51, 1.0, 0.5)
    folds = [{"rmse": 1.0, "sparsity": 40.0}, {"rmse": 1.4, "sparsity": 50.0}]
    row, near, sparse = tables.beside("set", folds, (1.0, 0.2, 55.0))
    assert row["RMSE"] == pytest.approx(1.2)
    assert row["std"] == pytest.approx(math.sqrt(0.08))
    assert row["within"] == "yes"
    assert near
    assert sparse  # 45 for 55
    row, near, sparse = tables.beside("set", folds, (1.0, 0.1, 55.1))
    assert (row["within"], near, sparse) == ("no", False, False)


def test_a_share_of_the_published_sets_is_wanted_not_of_those_run(tables):
    names = list(tables.PUBLISHED)
    few = dict.fromkeys(names[:3], True)
    assert tables.share_passes(few, 0.75) is None
    assert tables.share_passes(dict.fromkeys(names, True), 1.0) is True
    assert tables.share_passes(dict.fromkeys(names, True) | {names[0]: False}, 1.0) is False
    assert tables.share_passes(few | {names[3]: False}, 1.0) is False


def test_the_reason_stands_behind_the_check(tables):
    found = {"gas": False, "yacht": True, "wine": False}
    assert (
        tables.because(found, {"gas": "many maxima", "yacht": "one fold"}) == "; gas: many maxima"
    )
    assert tables.because({"gas": True}, {"gas": "many maxima"}) == ""
    own = ("mean_field", "subset")
    groups = {
        ("gas", *own): [{"gaussian": 0.3, "linear": 0.2, "neighbours": 0.4, "trivial": 1.0}],
        ("wine", *own): [{"gaussian": 0.3, "linear": 0.5, "neighbours": 0.4, "trivial": 1.0}],
    }
    assert tables.lost_by_gaussian_weights(groups, ["gas", "wine"]).startswith("; on 1 of these")
    assert tables.gaussian_weights(groups, ["gas"]) == {"gas": "Gaussian weights 0.3"}


def test_of_several_settings_the_largest_bound_is_shown_fold_by_fold(tables):
    folds = [
        {"split": 1, "bound": -3.0, "rate": 0.05, "rmse": 1.0},
        {"split": 0, "bound": -2.0, "rate": 0.05, "rmse": 1.0},
        {"split": 0, "bound": -1.0, "rate": 0.01, "rmse": 9.0},  # a worse error does not matter
    ]
    chosen = tables.largest_bounds(folds)
    assert sorted((f["split"], f["bound"]) for f in chosen) == [(0, -1.0), (1, -3.0)]
    assert tables.settings_of(chosen, folds, "rate") == "0.01, 0.05"
    assert tables.settings_of(folds[:1], folds, "rate") == "0.05 of 0.01, 0.05"
    fold = {"data": "servo", "split": 0, "functions": 2000, "method": "mixture_sampled"}
    old, new = tables.key_of(fold), tables.key_of(fold | {"rate": 0.01})
    assert old == tables.key_of(fold | {"rate": 0.05, "perturbation": 0.1})
    assert old != new


def test_settings_are_listed_where_a_fold_has_several(tables):
    fold = {"split": 0, "rmse": 1.0, "evaluations": 9, "commit": "a", "perturbation": 0.1}
    fold |= {"rate": 0.05, "bound": -10.0}
    groups = {
        ("servo", "plain", "whole_set"): [fold],
        ("servo", "mixture_around", "whole_set"): [fold, fold | {"bound": -8.0, "perturbation": 1}],
        ("yacht", "plain", "whole_set"): [fold],
        ("yacht", "mixture_around", "whole_set"): [fold],
    }
    rows = tables.settings_tried(groups)
    assert [(r["data"], r["perturbation"], r["above the mean field's"]) for r in rows] == [
        ("servo", 0.1, 0.0),
        ("servo", 1, 2.0),
    ]
    assert rows[0]["rate"] is None


def test_a_mixture_far_below_its_mean_field_fails(tables):
    fold = {"split": 0, "rmse": 1.0, "sparsity": 17.0, "commit": "a"}
    groups = {
        (name, method, "whole_set"): [fold | {"bound": bound, "perturbation": 0.1, "rate": 0.05}]
        for name, method, bound in (
            ("servo", "plain", -10.0),
            ("servo", "mixture_sampled", -10.9),
            ("yacht", "plain", -10.0),
            ("yacht", "mixture_sampled", -11.1),
        )
    }
    judged = {}, {}, {}
    rows = tables.mixtures(groups, "mixture_sampled", "whole_set", tables.PUBLISHED_SAMPLED, judged)
    assert [(row["data"], row["rate"]) for row in rows] == [("servo", "0.05"), ("yacht", "0.05")]
    assert judged[2] == {"servo": True, "yacht": False}


def test_reparam_is_compared_on_the_folds_of_both(tables):
    def folds(*errors):
        return [{"split": split, "rmse": rmse, "commit": "a"} for split, rmse in errors]

    groups = {
        ("servo", "plain", "whole_set"): folds((0, 0.3), (1, 9.0)),
        ("servo", "reparam", "whole_set"): folds((0, 0.5)),
        ("airfoil", "plain", "whole_set"): folds((0, 2.2)),
        ("airfoil", "reparam", "whole_set"): folds((0, 2.1)),
        ("yacht", "plain", "whole_set"): folds((0, 0.4)),
        ("energy", "reparam", "whole_set"): folds((0, 0.4)),
    }
    better = {}
    rows = tables.against_reparam(groups, better)
    assert better == {"servo": True, "airfoil": False}
    assert [(row["data"], row["folds"], row["mean field"]) for row in rows] == [
        ("servo", 1, 0.3),
        ("airfoil", 1, 2.2),
    ]
    text = tables.compared_with_reparam(better)
    assert "on 1 of 2 (not on airfoil); published: on 1 of these (not on airfoil)" in text
    assert tables.most(better) is False
    assert tables.most({}) is None


def test_errors_far_below_the_published_ones_are_named(tables):
    row = {"published std": 0.1, "published": 1.0}
    rows = [row | {"data": "a", "RMSE": 0.8}, row | {"data": "b", "RMSE": 0.9}]
    assert tables.better_than_published(rows)[0].endswith(": a (0.8, published 1.0).")
    assert tables.better_than_published(rows[1:]) == []


def test_kegg_is_shown_by_both_readings_of_the_deviation_on_its_first_fold(tables):
    def fold(split, rmse, sparsity):
        return {"split": split, "rmse": rmse, "sparsity": sparsity}

    groups = {("kegg", "plain", "whole_set"): [fold(1, 9.0, 9.0), fold(0, 0.28, 97.0)]}
    assert tables.first_fold_by_the_root(groups) == []
    groups["kegg", "plain", "whole_set_root"] = [fold(0, 0.22, 93.0)]
    (said,) = tables.first_fold_by_the_root(groups)
    assert "RMSE 0.28 and 97 % of zeros, by the root of the variance RMSE 0.22 and 93 %" in said
