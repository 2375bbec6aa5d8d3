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
