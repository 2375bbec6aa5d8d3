"""Facts in, a method and its reason out."""

from dataclasses import replace

import pytest

from gpx.options.composition import composed
from gpx.options.config import CONFIGS
from gpx.runs.choosing.method_choice import CHAIN_STEPS, METHODS, Facts, Method, choose

TABLE = Facts(num_train=900, num_inputs=8)
SEVERAL = replace(TABLE, num_outputs=2, gaussian=False, gaussian_outputs=True)
CLASSES = replace(TABLE, task="binary", gaussian=False)
ORDERED = replace(TABLE, task="ordinal", gaussian=False)

CASES = {
    "small": (TABLE, "exact"),
    "at the limit": (replace(TABLE, num_train=2_000), "exact"),
    "beyond": (replace(TABLE, num_train=2_001), "vecchia"),
    "middle": (replace(TABLE, num_train=36_000), "vecchia"),
    "large": (replace(TABLE, num_train=400_000), "vecchia"),
    "too many for passes": (replace(TABLE, num_train=2_000_000), "svgp"),
    "a GPU": (replace(TABLE, num_train=9_000, device="cuda", memory=2**35), "exact"),
    "a full GPU": (replace(TABLE, num_train=9_000, device="cuda", memory=2**30), "vecchia"),
    "little memory": (replace(TABLE, num_train=2_000, memory=2**20), "svgp"),
    "a periodic kernel": (replace(TABLE, num_train=9_000, local_kernel=False), "sgpr"),
    "a periodic kernel, few rows": (replace(TABLE, local_kernel=False), "exact"),
    "a periodic kernel, many rows": (
        replace(TABLE, num_train=900_000, local_kernel=False),
        "svgp",
    ),
    "several targets": (SEVERAL, "coregional"),
    "several targets at the limit": (replace(SEVERAL, num_train=3_174), "coregional"),
    "several targets beyond": (replace(SEVERAL, num_train=3_175), "svgp"),
    "ten targets beyond": (replace(SEVERAL, num_train=1_857, num_outputs=10), "svgp"),
    "several targets, most missing": (
        replace(SEVERAL, num_train=4_000, observed=4_000),
        "coregional",
    ),
    "several targets, one missing": (
        replace(SEVERAL, num_train=1_500, observed=2_999),
        "coregional",
    ),
    "several targets, few missing": (
        replace(SEVERAL, num_train=3_000, observed=4_001),
        "independent",
    ),
    "several targets, few missing of many rows": (
        replace(SEVERAL, num_train=4_000, observed=7_000),
        "svgp",
    ),
    "many targets, one missing": (
        replace(SEVERAL, num_train=500, num_outputs=40, observed=19_999),
        "independent",
    ),
    "several targets on a GPU": (replace(SEVERAL, num_train=7_000, device="cuda"), "coregional"),
    "several targets, little memory": (replace(SEVERAL, memory=2**20), "svgp"),
    "mixed targets": (replace(SEVERAL, gaussian_outputs=False), "svgp"),
    "several targets of weighted rows": (replace(SEVERAL, row_noise=True), "coregional"),
    "several targets of many weighted rows": (
        replace(SEVERAL, num_train=2_500, row_noise=True),
        "independent",
    ),
    "mixed targets of weighted rows": (
        replace(SEVERAL, row_noise=True, gaussian_outputs=False),
        "svgp",
    ),
    "several targets in files": (replace(SEVERAL, form="stream"), "svgp"),
    "two classes": (CLASSES, "ep"),
    "two classes, more rows": (replace(CLASSES, num_train=1_200), "laplace"),
    "two classes, little time": (replace(CLASSES, budget=15.0), "laplace"),
    "ordered classes": (replace(ORDERED, num_train=600), "vgp"),
    "ordered classes, more rows": (ORDERED, "laplace"),
    "ordered classes, little time": (replace(ORDERED, num_train=400, budget=8.0), "laplace"),
    "ordered classes in files": (replace(ORDERED, form="stream"), "svgp"),
    "ordered classes without curvature": (
        replace(ORDERED, num_train=400, suits_laplace=False),
        "svgp",
    ),
    "two classes, many rows": (replace(CLASSES, num_train=5_000), "svgp"),
    "counts": (replace(TABLE, task="count", gaussian=False), "laplace"),
    "several classes": (replace(TABLE, task="multiclass", gaussian=False), "svgp"),
    "outliers": (replace(TABLE, gaussian=False, suits_laplace=False), "svgp"),
    "a grid": (replace(TABLE, form="grid", factors=True, num_train=10**6), "grid"),
    "a grid, a kernel that is no product": (
        replace(TABLE, form="grid", num_train=9_000),
        "vecchia",
    ),
    "counts on a grid": (
        replace(TABLE, form="grid", factors=True, gaussian=False, task="count"),
        "laplace",
    ),
    "images": (replace(TABLE, form="images", task="multiclass", gaussian=False), "cnn_rf"),
    "images with a number each": (replace(TABLE, form="images"), "exact"),
    "rows in files": (replace(TABLE, form="stream"), "svgp"),
    "classes in files": (replace(CLASSES, form="stream"), "svgp"),
    "noise by row": (replace(TABLE, row_noise=True), "exact"),
    "noise by row of many": (replace(TABLE, num_train=30_000, row_noise=True), "vecchia"),
    "noise by row, in time": (
        replace(TABLE, num_train=30_000, row_noise=True, local_kernel=False),
        "sgpr",
    ),
    "noise by row of a grid": (replace(TABLE, form="grid", factors=True, row_noise=True), "exact"),
    "much time": (replace(TABLE, num_train=36_000, budget=1e4), "vecchia"),
    "some time": (replace(TABLE, num_train=36_000, budget=30.0), "committee"),
    "no time": (replace(TABLE, num_train=36_000, budget=0.1), "committee"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_method(case):
    facts, name = CASES[case]
    choice = choose(facts)
    assert choice.name == name
    assert choice.reason
    assert "\n" not in choice.reason


def test_the_reason_names_what_decided():
    assert "900 rows" in choose(TABLE).reason
    assert "2 targets" in choose(CASES["several targets"][0]).reason
    little = choose(CASES["little memory"][0]).reason
    assert little.endswith("approx=exact needs about 0.12 GiB, above trainer.memory_budget")
    assert "decay with distance" not in choose(replace(TABLE, num_train=9_000)).reason
    assert "decay with distance" in choose(CASES["a periodic kernel"][0]).reason
    assert "trainer.budget=30" in choose(CASES["some time"][0]).reason
    assert "above trainer.budget=0.1" in choose(CASES["no time"][0]).reason


def test_the_reason_for_ordered_classes_says_what_laplace_lacks():
    reason = choose(replace(ORDERED, num_train=400)).reason
    assert reason.startswith("400 rows are few enough for the variational Gaussian approximation; ")
    assert "its probabilities are too even" in reason
    assert "laplace" not in choose(CASES["two classes"][0]).reason


def test_few_rows_are_averaged_over_hyperparameters():
    few = replace(TABLE, num_train=200)
    assert choose(few).name == "fully_bayesian"
    assert "200 rows leave hyperparameters open" in choose(few).reason
    assert choose(replace(few, row_noise=True, budget=60.0)).name == "fully_bayesian"
    changes = {"num_train": 201}, {"samples": False}, {"budget": 30.0}, {"form": "images"}
    assert [choose(replace(few, **change)).name for change in changes] == ["exact"] * 4


def test_the_steps_of_chains_are_those_of_the_config():
    chains = composed(["approx=fully_bayesian"]).optimizer
    assert chains.burn_in + chains.iterations == CHAIN_STEPS


def test_few_rows_are_told_of_averages_over_hyperparameters():
    few, more = replace(TABLE, num_train=300), replace(TABLE, num_train=301)
    assert "approx=fully_bayesian averages over its hyperparameters" in choose(few).reason
    assert "fully_bayesian" not in choose(more).reason
    assert "fully_bayesian" not in choose(replace(few, budget=10.0)).reason


def test_every_method_has_its_options():
    assert {m.name for m in METHODS} <= {p.stem for p in (CONFIGS / "approx").glob("*.yaml")}
    assert METHODS[-1].takes(Facts(10**9, 500, 3, "multiclass", "stream", False))


def test_a_new_method_is_one_entry():
    new = Method(
        "new",
        takes=lambda f: f.num_inputs > 5,
        seconds=lambda f: 1.0,
        memory=lambda f: 0.0,
        why=lambda f: "many inputs",
    )
    methods = [new, *METHODS]
    assert choose(TABLE, methods).name == "new"
    assert choose(replace(TABLE, num_inputs=2), methods).name == "exact"
