"""Configs of earlier versions, as this one writes them."""

import dataclasses
import inspect
from pydoc import locate

import pytest

from gpx import bases
from gpx.errors import ConfigError
from gpx.options.build import build_model
from gpx.options.composition import composed
from gpx.options.old import BASES, FAMILIES, SELECTORS, SOLVERS, current, new_name


def translated(**approx):
    return current({"approx": approx, "facts": {"num_inputs": 3}})["approx"]


def test_a_named_basis_becomes_its_class_with_its_options():
    found = translated(
        _target_="gpx.models.QSGP",
        basis="orthogonal",
        num_basis=100,
        spread="auto",
        seed=7,
        block_frequencies=50,
        covariance="full",
    )
    node = {
        "_target_": "gpx.bases.OrthogonalFourier",
        "seed": 7,
        "block_frequencies": 50,
        "spread": "auto",
    }
    want = {"_target_": "gpx.models.QSGP", "basis": node, "num_basis": 100, "covariance": "full"}
    assert found == want


def test_options_that_the_basis_never_had_are_left_out():
    found = translated(basis="gauss_hermite", seed=0, block_frequencies=50, spread="auto")
    options = {"seed": 0, "block_frequencies": 50}
    assert found == {"basis": {"_target_": "gpx.bases.GaussHermiteFourier", **options}}
    # blocks of eigenfunctions were counted in pairs, and the number of inputs was the kernel's
    found = translated(basis="grief", seed=0, block_frequencies=50, spread=1.0)
    options = {"num_inputs": 3, "block_columns": 100}
    assert found == {"basis": {"_target_": "gpx.bases.GridFeatures", **options}}
    found = translated(basis="dictionary", num_inputs=2, num_data=9, grid=None, proposal=None)
    options = {"num_inputs": 2, "num_data": 9}
    assert found == {"basis": {"_target_": "gpx.bases.TrainingPoints", **options}}


def test_configs_of_now_and_others_stay_and_nothing_is_resolved():
    for approx in (
        {"basis": {"_target_": "gpx.bases.RandomFourier"}, "seed": 1},
        {"num_inducing": 3, "grid": None},
        {"basis": "what", "seed": 1},
        {"basis": ["orthogonal"]},
    ):
        assert translated(**approx) == approx
    found = translated(basis="orthogonal", seed="${oc.env:HOME}")
    assert found["basis"]["seed"] == "${oc.env:HOME}"


def test_classes_and_options_exist():
    for name, options in BASES.values():
        constructor = getattr(bases, name).__init__.__code__
        assert set(options) <= set(constructor.co_varnames)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("approx.spread", "approx.basis.spread"),
        ("approx.grid.margin", "approx.basis.grid.margin"),
        ("approx.gaps", "approx.solver.gaps"),
        ("approx.max_iterations", "approx.solver.max_iterations"),
        ("objective.restart_every", "objective.solver.restart_every"),
        ("objective.gaps", None),
        ("approx.num_basis", None),
        ("spread", None),
    ],
)
def test_new_names(old, new):
    assert new_name(old) == new


@pytest.mark.parametrize(("word", "target"), SELECTORS.items())
def test_selectors_that_were_words(word, target):
    old = {
        "approx": {"_target_": "gpx.models.SGPR", "selector": word},
        "kernel": {"family": "full"},
    }
    found = current(old)
    assert found["approx"]["selector"] == {"_target_": target}
    assert old["approx"]["selector"] == word
    assert found["kernel"] == old["kernel"]
    assert composed([f"selector={word}"]).approx.selector._target_ == target


@pytest.mark.parametrize(("word", "target"), FAMILIES.items())
def test_families_that_were_words(word, target):
    old = {"approx": {"_target_": "gpx.models.SVGP", "selector": None, "family": word}}
    assert current(old)["approx"] == {
        "_target_": "gpx.models.SVGP",
        "selector": None,
        "family": {"_target_": target},
    }
    assert composed([f"family={word}"]).approx.family._target_ == target


def test_other_words_and_other_models_stay():
    for old in (
        {"approx": {"_target_": "gpx.models.SVGP", "family": "mine", "selector": "mine"}},
        {"approx": {"_target_": "mine.Model", "family": "full", "selector": "greedy"}},
        {"approx": None},
        {},
    ):
        assert current(old) == old


def test_options_of_a_selector_are_options_of_the_command_line():
    config = composed(
        ["approx=svgp", "selector=kmeans", "approx.selector.max_points=123", "family=mean_field"]
    )
    config.facts.num_inputs, config.facts.num_train = 2, 50
    model = build_model(config)
    assert model.selector.max_points == 123
    assert type(model.q).__name__ == "MeanField"


def test_settings_of_a_solver_become_its_options():
    found = current(
        {
            "approx": {
                "_target_": "gpx.models.GridGP",
                "gaps": "fill",
                "penalty": 3.0,
                "axes": None,
            },
            "objective": {"_target_": "gpx.objectives.GridMLL", "probes": 10},
        }
    )
    solver = {"_target_": "gpx.models.GapOptions", "gaps": "fill", "penalty": 3.0}
    assert found["approx"] == {"_target_": "gpx.models.GridGP", "solver": solver, "axes": None}
    assert found["objective"] == {"_target_": "gpx.objectives.GridMLL", "probes": 10}
    found = current(
        {
            "approx": {"_target_": "gpx.models.CGLB", "product_dtype": "float32"},
            "objective": {"_target_": "gpx.objectives.CGLowerBound", "epsilon": 2.0},
        }
    )
    # the model solved to a closer tolerance than the class of the solver does unasked
    solver = {"_target_": "gpx.models.AuxiliarySolver", "product_dtype": "float32"}
    assert found["approx"]["solver"] == solver | {"epsilon": 1e-3, "max_iterations": 1000}
    solver = {"_target_": "gpx.models.AuxiliarySolver", "epsilon": 2.0}
    assert found["objective"]["solver"] == solver
    assert current(found) == found


@pytest.mark.parametrize(("target", "owner"), SOLVERS.items())
def test_the_solver_has_the_options_that_went_to_it(target, owner):
    _, solver, options = owner
    fields = {field.name for field in dataclasses.fields(locate(solver))}
    assert set(options) <= fields
    assert not set(options) & set(inspect.signature(locate(target)).parameters)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["approx=grid", "approx.tolerance=1e-4"],
            "there is no option approx.tolerance here; for approx=grid it is now "
            "approx.solver.tolerance",
        ),
        (
            ["approx=cglb", "objective.epsilon=2"],
            "there is no option objective.epsilon here; for objective=cg_lower_bound it is now "
            "objective.solver.epsilon",
        ),
        (
            ["approx=svgp", "approx.max_iterations=3"],
            "there is no option approx.max_iterations here; for approx=cglb and approx=grid it is "
            "now approx.solver.max_iterations",
        ),
    ],
)
def test_an_old_option_is_told_its_new_name(options, told):
    with pytest.raises(ConfigError) as caught:
        composed(["data=toy1d", *options])
    assert str(caught.value) == told


def test_a_group_of_another_name():
    node = {"_target_": "gpx.calibration.Temperature", "fraction": 0.1}
    assert current({"calibration": node, "seed": 0}) == {"calibrate": node, "seed": 0}
    assert new_name("calibration") == "calibrate"
    for option, words in (
        ("calibration=temperature", "the option calibration has been renamed: use calibrate"),
        ("calibration.fraction=0.2", "the option calibration has been renamed: use calibrate"),
        ("approx=deep_gp", "approx=deep_gp has been renamed: use approx=deep_rf"),
        ("approx=cnn_gp", "approx=cnn_gp has been renamed: use approx=cnn_rf"),
    ):
        with pytest.raises(ConfigError, match=words):
            composed([option])


def test_a_network_with_another_head_is_of_another_class():
    old = {"_target_": "gpx.models.CNNGP", "num_inputs": 64, "num_features": 8, "depth": 1}
    old |= {"width": None, "frequencies": "dropout", "directions": "independent"}
    old |= {"covariance": "dropout", "learn_kernel": False, "keep": 0.5}
    assert translated(**old, head="gp") == old
    for head in ("dense", "dropout"):
        found = translated(**old, head=head)
        left = {"num_inputs": 64, "num_features": 8, "keep": 0.5, "dropout": head == "dropout"}
        assert found == {"_target_": "gpx.models.CNN", **left}
        config = composed(["approx=cnn"])
        config.approx, config.facts.num_classes = found, 3
        assert build_model(config).network.head.num_outputs == 3


@pytest.mark.parametrize("group", ["approx", "objective"])
@pytest.mark.parametrize("target", [[], {}, None, 3])
def test_what_is_no_class_is_left_to_the_checks_that_follow(group, target):
    assert current({group: {"_target_": target}}) == {group: {"_target_": target}}
