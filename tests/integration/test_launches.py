"""How many kernels a training step would launch on a GPU, and how often it would wait.

The figures are ceilings: fewer is better, more is a step that has become slower where launches are
what it costs. A step of a method that has to look at the device (a factorisation that may fail, a
misfit that decides) waits a few times; sampled gradients never do.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from claimed_cuda import claimed_cuda
from launches import Launches, most, steps_of

from gpx.methods.direct.mean_field import logits_after_sweep

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ["data=npz", "data.path=@classes"]  # tables of scripts/gpu_tables.py
# a checkpoint, which waits, is not due however slow the machine is
DATA = ["data.num_points=1500", "trainer.max_steps=3", "trainer.checkpoint_seconds=100000"]
CEILINGS = {
    "svgp": (["approx=svgp", "approx.num_inducing=64"], 159, 2),
    "svgp, by Adam": (["approx=svgp", "optimizer=svgp", "approx.num_inducing=64"], 139, 1),
    "sgpr": (["approx=sgpr", "optimizer=adam", "approx.num_inducing=64"], 154, 3),
    "cglb": (["approx=cglb", "data.num_points=600", "approx.num_inducing=64"], 557, 26),
    "qsgp, block step": (
        [
            "approx=qsgp",
            "approx.num_basis=2000",
            "approx.block_columns=500",
            "approx.basis.block_frequencies=50",
        ],
        195,
        10,
    ),
    "qsgp, stochastic step": (
        [
            *("approx=qsgp", "optimizer=qsgp", "approx.num_basis=2000"),
            *("approx.warm_start_size=200", "approx.block_solves=1"),
        ],
        255,
        0,
    ),
    "pic": (["approx=pic", "data.num_points=3000", "approx.num_inducing=64"], 419, 12),
    "fitc": (["approx=fitc", "approx.num_inducing=64"], 178, 3),
    "ssgp": (["approx=ssgp", "approx.num_basis=40"], 142, 3),
    "grief": (
        ["approx=grief", "approx.num_eigenfunctions=60", "approx.noise_first=false"],
        472,
        13,
    ),
    "reweighted, MALA": (
        [
            *("approx=reweighted", "approx.num_basis=40", "optimizer.burn_in=3"),
            *("optimizer.iterations=6", "optimizer.thin=2"),
        ],
        130,
        6,
    ),
    "ski": (["approx=ski", "projection=unit", "approx.grid_size=40"], 1650, 50),
    "deep_rf": (["approx=deep_rf", "approx.num_features=40"], 176, 0),
    "swsgp": (
        ["approx=swsgp", "approx.num_inducing=64", "approx.num_neighbours=6"],
        260,
        1,
    ),
    "vnngp": (
        [
            *("approx=vnngp", "data.num_points=300", "approx.num_neighbours=6"),
            "init.neighbour_evaluations=1",
        ],
        272,
        1,
    ),
    "local_experts": (["approx=local_experts"], 124, 6),
    "committee": (["approx=committee"], 105, 6),
    "direct": (["approx=direct", "approx.num_basis=40", "approx.restarts=0"], 76, 3),
    "exact": (["approx=exact", "data.num_points=500"], 115, 8),
    "exact, iterative": (
        [
            *("approx=exact", "data.num_points=600"),
            *("approx.solver=iterative", "approx.iterative.rank=200"),
            "approx.iterative.variance=exact",
        ],
        1139,
        26,
    ),
    "transductive": (["approx=transductive"], 124, 6),
    "sod": (["approx=sod", "approx.num_points=100"], 105, 4),
    "sor": (["approx=sor", "approx.num_inducing=64"], 154, 4),
    "dtc": (["approx=dtc", "approx.num_inducing=64"], 154, 4),
    "fic": (["approx=fic", "approx.num_inducing=64"], 178, 3),
    "pitc": (["approx=pitc", "approx.num_inducing=64"], 263, 6),
    "vssgp": (["approx=vssgp", "approx.num_basis=40"], 282, 3),
    "qsrvm": (["approx=qsrvm", "approx.sweeps=2", "data.num_points=600"], 255, 0),
    "deep_svgp": (["approx=deep_svgp", "approx.num_inducing=64"], 349, 2),
    "direct_mixture": (["approx=direct_mixture", "approx.num_basis=40"], 251, 3),
    "direct_network": (["approx=direct_network", "approx.hidden=[1]", "approx.starts=2"], 156, 16),
    "direct_logistic": ([*CLASSES, "approx=direct_logistic", "approx.num_basis=40"], 74, 1),
    "laplace": ([*CLASSES, "approx=laplace"], 392, 24),
    "ep": ([*CLASSES, "approx=ep"], 1365, 46),
    "vgp": ([*CLASSES, "approx=vgp"], 1180, 33),
    "elliptical_slice": ([*CLASSES, "approx=elliptical_slice"], 3386, 44),
    "svgp, classes": (
        [*CLASSES, "approx=svgp", "likelihood=bernoulli", "approx.num_inducing=64"],
        240,
        2,
    ),
    "coregional": (["data=npz", "data.path=@two_targets", "approx=coregional"], 198, 6),
    "independent": (["data=npz", "data.path=@two_targets", "approx=independent"], 80, 2),
    "coregional, two latents": (
        ["data=npz", "data.path=@two_targets", "approx=coregional", "approx.num_latents=2"],
        275,
        6,
    ),
    "derivatives": (
        [
            *("data=npz", "data.path=@two_targets", "approx=derivatives"),
            "approx.with_respect_to=[0]",
        ],
        260,
        6,
    ),
    "vecchia": (["approx=vecchia", "data.num_points=600"], 363, 24),
    "grid": (
        [
            *("data=grid_stress", "data.field=rastrigin", "data.shape=[12,12]"),
            *("data.gap_share=0.2", "approx=grid"),
        ],
        872,
        26,
    ),
}


@pytest.fixture
def script(monkeypatch):
    """``scripts/launches.py``, which makes the table."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    found = importlib.util.spec_from_file_location("table", ROOT / "scripts" / "launches.py")
    made = importlib.util.module_from_spec(found)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found.loader.exec_module(made)
    return made


@pytest.mark.filterwarnings(
    "ignore:max_steps=3 ends before",
    "ignore:the chain accepted",
    "ignore:the weight mean",
    "ignore:the 4 chains have not converged",
)
@pytest.mark.parametrize("name", CEILINGS)
def test_a_step_launches_no_more_than(name, script):
    options, launches, waits = CEILINGS[name]
    points = [] if any(o.startswith("data=") for o in options) else DATA[:1]
    with script.with_tables((*points, *DATA[1:], *options)) as chosen:
        steps = steps_of(*chosen)[:-1]  # the last one is logged, which waits
    found = most(steps)
    assert found[0] <= launches
    assert found[1] <= waits


RECORDED = {
    "svgp": (["approx=svgp", "approx.num_inducing=64"], 19),
    "sgpr": (["approx=sgpr", "approx.num_inducing=64"], 15),
    "fitc": (["approx=fitc", "approx.num_inducing=64"], 15),
    "ssgp": (["approx=ssgp", "approx.num_basis=40"], 15),
    "deep_rf": (["approx=deep_rf", "approx.num_features=40"], 14),
    "deep_svgp": (["approx=deep_svgp", "approx.num_inducing=64"], 18),
}
"""Launches of a later step, where a recording that is replayed counts as one."""


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_launches_no_more_than(name):
    options, launches = RECORDED[name]
    steps = steps_of(*DATA, *options, "trainer.max_steps=7", recorded=True)[:-1]
    assert all(step.launches["graph"] for step in steps[3:])
    assert max(step.launches.total() for step in steps[3:]) <= launches


def test_every_approximation_has_a_row_that_was_measured(script):
    named = {
        next((o.removeprefix("approx=") for o in options if o.startswith("approx=")), name)
        for name, options in script.TABLE.items()
    }
    every = {path.stem for path in (ROOT / "configs" / "approx").glob("*.yaml")} - {"auto"}
    assert every - named == set()
    rows = json.loads((ROOT / "experiments" / "gpu" / "launches.json").read_text())["rows"]
    assert [row["path"] for row in rows] == list(script.TABLE)
    assert all(row["launches"] > 0 and row["waits"] >= 0 for row in rows)


def test_weights_add_no_launches_to_a_sweep_of_coordinate_ascent():
    """Its rounds, one for every weight, are on the host."""

    def launched(m):
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(30, m, generator=generator, dtype=torch.float64)
        values = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)
        prior = torch.zeros(5, dtype=torch.float64).log_softmax(0)
        with Launches() as mode:
            sums = rows.mT @ rows, rows.sum(0)
            logits_after_sweep(*sums, prior.expand(m, 5), values, prior, values[-1])
        return mode.counts.total()

    assert launched(10) == launched(40) <= 20


def test_rows_add_no_launches_to_a_block_step():
    """Chunks are as long as the device's memory allows, and frequencies are made once."""
    options = [
        "approx=qsgp",
        "approx.num_basis=1000",
        "approx.block_columns=200",
        "approx.basis.block_frequencies=50",
    ]
    few, many = (
        most(steps_of(*options, f"data.num_points={n}", "trainer.max_steps=3"))[0]
        for n in (500, 10_000)
    )
    assert few == many


def test_what_the_host_computes_beside_the_device_is_no_launch():
    with claimed_cuda() as waits, Launches() as counted:
        there = torch.ones(3).cuda()
        before = counted.counts.total()
        here = torch.ones(3) + 1.0
        assert counted.counts.total() == before
        there + here.cuda()
        assert counted.counts.total() > before
        found = counted.counts.copy()
        assert float((there + 1.0).cpu().square().sum()) == 12.0
        assert (counted.counts - found)["add"] == 1
        assert not (counted.counts - found).keys() & {"pow", "sum"}
        assert waits.total() == 1


def test_views_and_allocations_are_no_launches():
    x = torch.ones(4, 4)
    with Launches() as counted:
        _ = x[1:].T.detach()
        torch.empty(3)
        assert counted.counts.total() == 0
        _ = x @ x + 1.0
    assert dict(counted.counts) == {"mm": 1, "add": 1}
