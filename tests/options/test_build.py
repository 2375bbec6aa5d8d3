"""What a model is built from, and a model that is built from a likelihood alone."""

import re
import warnings

import pytest
import torch
from omegaconf import OmegaConf
from random_network import RandomNetwork

from gpx import models
from gpx.errors import ConfigError, OutOfMemory, ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg import UnconvergedWarning
from gpx.means import Zero
from gpx.options.build import build, build_model, parts_of
from gpx.options.composition import composed
from gpx.runs import RunFolder, load, run
from gpx.training.initialisation import SubsetInitialisation
from gpx.training.neighbour_initialisation import NeighbourInitialisation
from gpx.training.parsimonious_initialisation import ParsimoniousInitialisation

NETWORK = {"_target_": "random_network.RandomNetwork", "num_inputs": "${facts.num_inputs}"}


def config(*overrides, approx=NETWORK):
    made = composed(["approx=svgp", "data=toy1d", "trainer.max_steps=200", *overrides])
    made.approx = approx
    return made


def test_a_model_says_what_it_is_built_from():
    assert parts_of(RandomNetwork) == {"likelihood": True}
    assert parts_of(models.SGPR) == {"kernel": True, "mean": True, "likelihood": True}

    class Rest(models.SGPR):
        def __init__(self, *, mean=None, **rest):
            super().__init__(mean=Zero() if mean is None else mean, **rest)

    assert parts_of(Rest) == {"kernel": False, "mean": False, "likelihood": False}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("approx.weights.half_width=wide", r"approx\.weights\.half_width=wide: expected a number$"),
        (
            "approx.noise={_target_: gpx.models.NoiseGrid, lowest: low, highest: 1}",
            r"approx\.noise\.lowest=low: expected a number$",
        ),
        (
            "approx.noise={_target_: gpx.models.NoiseGrid, lowst: 1, highest: 1}",
            r"approx\.noise\.lowst: NoiseGrid has no option lowst; did you mean lowest\?$",
        ),
        (
            "approx.noise={_target_: gpx.models.NoiseGird}",
            r"cannot build approx\.noise=gpx\.models\.NoiseGird: nothing has that name$",
        ),
        (
            "approx.noise={_target_: gpx.nowhere.NoiseGrid}",
            r"cannot build approx\.noise=gpx\.nowhere\.NoiseGrid: nothing has that name$",
        ),
    ],
)
def test_options_of_nodes_inside_a_node_are_checked_by_name(option, expected):
    made = composed(["approx=direct", "data=toy1d", option])
    with pytest.raises(ConfigError, match=expected):
        build_model(made)


class Silent:
    """A mean whose constructor fails without a message."""

    def __init__(self):
        raise ValueError


def test_an_error_without_a_message_is_told_by_its_name():
    made = OmegaConf.create({"mean": {"_target_": f"{__name__}.Silent"}})
    with pytest.raises(ConfigError, match=r"cannot build mean=.*Silent: ValueError$"):
        build(made, "mean")


def test_what_a_model_needs_must_be_chosen():
    made = composed(["approx=sgpr", "data=toy1d", "~mean"])
    with pytest.raises(ConfigError, match="mean= is not chosen"):
        build_model(made)


def test_a_model_without_a_kernel_trains_and_predicts(tmp_path):
    folder = RunFolder(tmp_path / "run")
    metrics = run(config("trainer.figures=false", "trainer.tensorboard=false"), folder)
    assert metrics["model.name"] == "RandomNetwork"
    assert metrics["train.objective"] == "SVGPELBO"
    assert metrics["test.rmse"] < 0.8
    with pytest.raises(Exception, match="trust=random_network"):
        load(folder.path)
    found = load(folder.path, trust=("random_network",))
    kept = folder.read_config(trust=("random_network",))
    assert kept.kernel is None
    assert kept.mean is None
    assert torch.isfinite(torch.tensor(found.predict([[0.3]]).mean)).all()


@pytest.mark.parametrize(
    ("group", "target", "wanted"),
    [("kernel", "gpx.means.Zero", "Kernel"), ("data", "builtins.dict", "DataSource")],
)
def test_a_class_out_of_place_is_refused(group, target, wanted, tmp_path):
    options = ["data=toy1d", "approx=exact", f"{group}._target_={target}"]
    words = f"{group}={target}: expected a subclass of {wanted} as {group}._target_"
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}$"):
        run(composed(options), RunFolder(tmp_path / "run"))


@pytest.mark.parametrize("target", ["3", "[1]"])
def test_a_class_that_is_no_name_is_refused(target, tmp_path):
    options = ["data=toy1d", "approx=exact", f"kernel._target_={target}"]
    words = f"kernel._target_={target}: expected the name of a class"
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}$"):
        run(composed(options), RunFolder(tmp_path / "run"))


def test_inputs_that_do_not_fit_are_said_before_anything_is_written(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ShapeError, match="RandomNetwork is made for 3 inputs"):
        run(config(approx={**NETWORK, "num_inputs": 3}), folder)
    assert not folder.path.exists()
    model = models.ExactGP(kernel=RBF(3), mean=Zero(), likelihood=Gaussian())
    model.check(torch.zeros(4, 3))
    with pytest.raises(ShapeError):
        model.check(torch.zeros(4, 2))


OF_THE_DATA = "swsgp vnngp ssgp vssgp cglb sgpr svgp fitc dkl deep_rf grief qsrvm qsgp_inducing ski"


@pytest.mark.parametrize("approx", [*OF_THE_DATA.split(), "direct_network"])
def test_a_number_of_inputs_that_is_not_that_of_the_data_is_said_by_its_option(approx, tmp_path):
    folder = RunFolder(tmp_path / "run")
    given = [f"approx={approx}", "approx.num_inputs=3", "data=toy1d"]
    with pytest.raises(ConfigError, match=r"made for approx\.num_inputs=3, the data have 1; set "):
        run(composed(given), folder)
    assert not folder.path.exists()


@pytest.mark.parametrize("approx", ["cglb", "vnngp", "qsgp_inducing"])
def test_a_number_of_rows_that_is_not_that_of_the_data_is_said_by_its_option(approx, tmp_path):
    folder = RunFolder(tmp_path / "run")
    given = [f"approx={approx}", "approx.num_data=7", "data=toy1d"]
    with pytest.raises(ConfigError, match=r"^approx\.num_data=7 but there are 180 training rows$"):
        run(composed(given), folder)
    assert not folder.path.exists()


@pytest.mark.parametrize("approx", ["qsgp", "qsrvm", "qsgp_inducing", "dkl", "deep_svgp"])
def test_a_negative_number_of_rows_is_said_by_its_option(approx):
    with pytest.raises(ConfigError, match=r"^approx\.num_data=-1 must be at least 1$"):
        build_model(composed([f"approx={approx}", "approx.num_data=-1", "facts.num_inputs=1"]))


@pytest.mark.parametrize(
    "start",
    [SubsetInitialisation, NeighbourInitialisation, ParsimoniousInitialisation],
)
def test_initialisation_leaves_a_model_without_one_kernel_where_it_is(start):
    model = RandomNetwork(likelihood=Gaussian(0.3), num_inputs=1).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lines = []
    x = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
    start(num_points=10)(
        model, x, x[:, 0], generator=torch.Generator().manual_seed(0), say=lines.append
    )
    assert lines == ["init: RandomNetwork does not have one kernel, starting from constants"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_hyperparameters_are_where_the_model_says():
    class Twice(models.ExactGP):
        """One kernel for slow and one for fast changes."""

        def __init__(self, *, slow, fast, mean, likelihood):
            super().__init__(kernel=slow + fast, mean=mean, likelihood=likelihood)

    model = Twice(slow=RBF(1), fast=RBF(1), mean=Zero(), likelihood=Gaussian(0.5)).double()
    assert model.hyperparameters().kernel is model.kernel
    assert RandomNetwork(likelihood=Gaussian(), num_inputs=1).hyperparameters() is None


def test_one_budget_rules_what_is_kept(tmp_path):
    quick = ["trainer.figures=false", "trainer.tensorboard=false", "trainer.max_steps=1"]
    options = ["init=constants", "trainer.baselines=false", *quick]
    for approx, places in (
        ("cglb", ("approx.solver.memory_budget", "objective.solver.memory_budget")),
        ("sgpr", ("objective.memory_budget",)),
        ("exact", ("approx.iterative.memory_budget",)),
        ("qsgp_inducing", ("approx.memory_budget",)),
        ("grid", ("approx.solver.memory_budget",)),
    ):
        made = composed([f"approx={approx}", "data=toy1d", "trainer.memory_budget=3MiB", *options])
        folder = RunFolder(tmp_path / approx)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnconvergedWarning)
            run(made, folder)
        assert made.trainer.memory_budget == "3MiB"  # the caller's config is left alone
        kept = folder.read_config()
        for place in ("trainer.memory_budget", *places):
            assert OmegaConf.select(kept, place) == 3 * 2**20, (approx, place)


def test_a_budget_of_earlier_versions_is_understood():
    assert models.IterativeOptions(memory_budget_gib=0.5).budget == 2**29
    assert models.IterativeOptions().budget == 2**31
    assert models.IterativeOptions(memory_budget="1GiB").budget == 2**30
    for bad in ({"memory_budget": 0}, {"memory_budget_gib": 0.0}):
        with pytest.raises(ConfigError, match="memory_budget=0 must be positive"):
            models.IterativeOptions(**bad)


@pytest.mark.parametrize(
    ("group", "option"),
    [("approx", "num_basis"), ("likelihood", "num_nodes")],  # arrays of torch, and of NumPy
)
def test_a_part_that_does_not_fit_into_memory_names_its_largest_size(group, option):
    made = composed(["approx=ssgp", "likelihood=student_t", f"{group}.{option}={10**15}"])
    made.facts.num_inputs = 1
    parts = {} if group == "likelihood" else {"kernel": RBF(), "mean": Zero(), "likelihood": None}
    with pytest.raises(
        OutOfMemory, match=rf"does not fit .* is {group}\.{option}=1000000000000000"
    ):
        build(made, group, **parts)
