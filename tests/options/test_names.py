import ast
import re
import warnings
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import gpx
from gpx.errors import ConfigError
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.options.names import option_names, with_option_names

CONFIG = OmegaConf.create(
    {
        "approx": {
            "_target_": "a.B",
            "rank": 80,
            "num_data": 5,
            "num_inputs": "${facts.num_inputs}",
            "grid": {"_target_": "a.C", "margin": 0.1},
            "inference": "type2",
            "memory_budget": "${objective.memory_budget}",
        },
        "objective": {
            "_target_": "a.D",
            "num_data": 5,
            "num_inputs": 3,
            "columns": None,
            "memory_budget": "${oc.select:trainer.memory_budget,null}",
        },
        "optimizer": None,
        "init": None,
        "seed": 1,
        "trainer": {"memory_budget": 7},
        "calibrate": {"_target_": "a.E", "fraction": 0.1},
    }
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("rank=80 is above the 54 points", "approx.rank=80 is above the 54 points"),
        ("fraction=1 cannot be held out", "calibrate.fraction=1 cannot be held out"),
        ("rank was set to -1; it must be above", "approx.rank was set to -1; it must be above"),
        ("margin=-1 is a share", "approx.grid.margin=-1 is a share"),
        ("set columns=None, lower rank", "set objective.columns=null, lower rank"),
        ("3 at least, or None", "3 at least, or null"),
        ("raise rank= or grid=", "raise approx.rank= or approx.grid="),
        ("less (rank=4), or more", "less (approx.rank=4), or more"),
        ("take Class(rank=4)", "take Class(rank=4)"),
        ("num_data=5 of two nodes", "num_data=5 of two nodes"),
        ("num_inputs=3 of whom it was given to", "objective.num_inputs=3 of whom it was given to"),
        ("D.num_data=5 of one of them", "objective.num_data=5 of one of them"),
        ("more C.margin", "more approx.grid.margin"),
        ("memory_budget=1 of all three", "trainer.memory_budget=1 of all three"),
        ("approx.rank=80 is named already", "approx.rank=80 is named already"),
        ("my_rank=80 is another word", "my_rank=80 is another word"),
        ("seed=3 is the run's own", "seed=3 is the run's own"),
        ("outputs/rank=80/config.yaml", "outputs/rank=80/config.yaml"),
        ("nothing to name", "nothing to name"),
    ],
)
def test_arguments_become_options(said, told):
    assert with_option_names(said, CONFIG) == told


def test_options_whose_names_have_dots_are_left_as_they_are():
    prior = {"_target_": "a.Normal", "median": 1.0}
    named = {"kernel.lengthscale": prior, "kernel.kernels.0.outputscale": prior, "noise": prior}
    config = OmegaConf.merge(CONFIG, {"prior": {"_target_": "a.F", "parameters": named}})
    assert with_option_names("rank=80, median=2", config) == "approx.rank=80, median=2"


def test_the_node_that_raised_an_error_is_asked_first():
    assert with_option_names("num_data=5", CONFIG, node="objective") == "objective.num_data=5"
    assert with_option_names("rank=5", CONFIG, node="objective") == "approx.rank=5"


def test_groups_keep_their_names():
    assert "inference" in CONFIG.approx
    assert with_option_names("use inference=x", CONFIG) == "use inference=x"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("use kernel=RBF(), Matern32() or Matern52()", "use kernel=rbf, matern32 or matern52"),
        ("or model=SVGP(), which", "or approx=svgp, which"),
        (
            "model=SGPR() or QSGP(), with basis=GridFeatures()",
            "approx=sgpr or qsgp, with basis=grief",
        ),
        ("choose another model= or likelihood=", "choose another approx= or likelihood="),
        ("leave calibration= out", "leave calibrate= out"),
        ("use data=CSVFile(), or NPZFile()", "use data=csv, or npz"),
        ("kernel=AxisProduct(family=matern32)", "kernel=product_matern32"),
        ("likelihood=Bernoulli()", "likelihood=bernoulli"),
        ("likelihood=Bernoulli(link=probit)", "likelihood=probit"),
        ("init=SubsetInitialisation()", "init=subset"),
        ("optimizer=FirstOrder(), BlockSteps()", "optimizer=qsgp, qsgp_blocks"),
        ("inference=type1, not inference=type2", "inference=type1_mala, not inference=type2"),
        ("model=Mine() and f()", "approx=Mine() and f()"),
        ("use kernel=RBF() or Matern32()", "use kernel=rbf or matern32"),
    ],
)
def test_classes_become_choices(said, told):
    config = OmegaConf.create({"approx": {"_target_": "gpx.models.QSGP"}})
    assert with_option_names(said, config) == told


ABOVE = ("commands", "options", "runs", "training")
SAID = re.compile(r"(?<![\w.])(?:approx|calibrate|trainer)(?:=|\.[a-z])|\bdata=[a-z]")


def test_messages_below_training_speak_of_arguments():
    """What only configs have is named where options are known; docstrings may say both."""
    package, found = Path(gpx.__file__).parent, []
    for file in package.glob("*/**/*.py"):
        if file.relative_to(package).parts[0] in ABOVE:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise):
                parts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                found += [(file.name, part) for part in parts if SAID.search(str(part))]
    assert not found


def test_errors_keep_their_type():
    with pytest.raises(ConfigError, match=r"^approx\.rank=80 is too large$"), option_names(CONFIG):
        raise ConfigError("rank=80 is too large")


def test_warnings_name_options_as_well():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        shown = warnings.showwarning
        with option_names(CONFIG):
            warnings.warn("raise rank=80", UserWarning, stacklevel=1)
        assert warnings.showwarning is shown
        warnings.warn("raise rank=80", UserWarning, stacklevel=1)
    assert [str(each.message) for each in found] == ["raise approx.rank=80", "raise rank=80"]
    assert all(each.category is UserWarning for each in found)


def test_an_error_of_a_constructor_names_the_node_that_was_built():
    # both the model and its objective have an argument epsilon
    config = composed(
        ["approx=cglb", "data=toy1d", "data.num_points=0", "objective.solver.epsilon=-1"]
    )
    with pytest.raises(ConfigError, match=r"^objective\.solver\.epsilon"):
        build(config, "objective")
    with pytest.raises(ConfigError, match=r"^data\.num_points=0 must be at least 1$"):
        build(config, "data")
