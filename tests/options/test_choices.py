"""Nodes of several choices become the one that fits the likelihood, with its options."""

import sys
from types import ModuleType

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from gpx.errors import ConfigError
from gpx.likelihoods import Bernoulli
from gpx.options.choices import with_choices_made
from gpx.options.composition import composed
from gpx.options.config import CONFIGS


def raw(*overrides):
    """As Hydra composes it."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def made(*overrides):
    return composed(["approx=qsgp", *overrides])


def alone(group, option):
    """The node of one option of a group, by itself."""
    return made(f"{group}={option}")[group]


@pytest.mark.parametrize(
    ("likelihood", "objective", "optimizer"),
    [
        ("gaussian", "quadruply_stochastic_elbo", "qsgp_blocks"),
        ("poisson", "site_bound_elbo", "qsgp_sites"),
    ],
)
def test_without_options_it_is_the_node_itself(likelihood, objective, optimizer):
    config = made(f"likelihood={likelihood}")
    chosen = made(f"likelihood={likelihood}", f"objective={objective}", f"optimizer={optimizer}")
    assert OmegaConf.to_container(config) == OmegaConf.to_container(chosen)


def test_options_that_are_set_reach_the_choice():
    config = made("objective.columns=200", "optimizer.sweeps=2")
    assert (config.objective.columns, config.optimizer.sweeps) == (200, 2)
    config = made(
        "likelihood=bernoulli",
        "objective.columns=200",
        "objective.bound=paper",
        "optimizer.groups.hyperparameters.lr=0.5",
    )
    assert (config.objective.columns, config.objective.bound) == (200, "paper")
    assert config.optimizer.groups.hyperparameters == {
        "algorithm": "adam",
        "lr": 0.5,
        "freeze_steps": 0,
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["objective.bound=paper"], "objective.bound is set, but QuadruplyStochasticELBO, which"),
        (
            ["likelihood=bernoulli", "optimizer.sweeps=2"],
            "optimizer.sweeps is set, but FirstOrder, which is used with a Bernoulli likelihood",
        ),
    ],
)
def test_options_of_another_choice_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        made(*overrides)


def test_options_of_a_choice_not_made_yet_name_the_choices_and_no_recipe():
    with pytest.raises(ConfigError, match="optimizer= has no options as long as it is not chosen"):
        composed(["optimizer.lr=1"])


def test_an_option_of_a_choice_not_made_yet_names_the_choices_that_have_it():
    expected = (
        "optimizer.iterations is an option of optimizer=elliptical_slice, hamiltonian, mala, and "
        "no optimizer= is chosen: add one of these, or approx=, which chooses one"
    )
    with pytest.raises(ConfigError, match=expected):
        composed(["approx=auto", "optimizer.iterations=100"])


def test_a_likelihood_of_ones_own_needs_no_config(monkeypatch):
    module = ModuleType("my_likelihood")
    module.Mine = type("Mine", (Bernoulli,), {})
    monkeypatch.setitem(sys.modules, "my_likelihood", module)
    config = raw("approx=qsgp", "likelihood=bernoulli")
    config.likelihood._target_ = "my_likelihood.Mine"
    found = with_choices_made(config)
    assert found.objective._target_ == "gpx.objectives.SiteBoundELBO"
    assert found.approx.covariance == "mean_field"


def test_a_node_that_is_chosen_already_and_other_approximations_stay():
    assert alone("optimizer", "qsgp")._target_ == "gpx.training.FirstOrder"
    config = raw("approx=exact")
    assert with_choices_made(config) == config


def test_every_class_of_the_choices_offers_its_options():
    """The union lists all options of all choices, null each."""
    for group in ("objective", "optimizer"):
        node = OmegaConf.to_container(raw("approx=qsgp"), resolve=False)[group]
        choices = node.pop("choices")
        wanted = set()
        for choice in choices.values():
            wanted |= (choice if "_target_" in choice else choice[group]).keys()
        assert wanted - {"_target_", "num_data"} == node.keys()
