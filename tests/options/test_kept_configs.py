"""A config is composed once for the same options, as long as nothing that it is made of changes."""

import os

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from gpx.errors import ConfigError
from gpx.options import composition, kept_configs
from gpx.options.choices import with_choices_made
from gpx.options.composition import composed
from gpx.options.kept_configs import MAX_KEPT, kept_or_composed

OPTIONS = ["approx=exact", "data=toy1d", "kernel=rbf*periodic"]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(kept_configs, "_kept", type(kept_configs._kept)())


@pytest.fixture
def compositions(monkeypatch):
    """Options of every composition."""
    made = []
    compose = composition.compose
    monkeypatch.setattr(
        composition,
        "compose",
        lambda *a, overrides: made.append(overrides) or compose(*a, overrides),
    )
    return made


@pytest.fixture
def ask(tmp_path):
    """``ask(options)``: how many compositions that took, of a folder with one file."""
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "one.yaml").write_text("a: 1\n")
    made = []

    def ask(*options):
        before = len(made)

        def compose():
            made.append(options)
            return OmegaConf.create({"options": list(options)})

        assert kept_or_composed(tmp_path, options, compose).options == list(options)
        return len(made) - before

    return ask


def test_the_same_options_are_composed_once_and_whoever_has_the_config_may_change_it(compositions):
    first = composed(OPTIONS)
    first.seed, first.kernel = 7, None
    second, third = composed(OPTIONS), composed([*OPTIONS, "seed=1"])
    assert len(compositions) == 1
    assert (second.seed, third.seed) == (0, 1)
    second.seed = 1
    assert second == third
    assert OmegaConf.to_yaml(second) == OmegaConf.to_yaml(third)
    assert second.facts._get_parent() is second
    assert "${" in OmegaConf.to_yaml(second)  # what is filled in later still is


VALUES = [
    ["trainer.max_steps=3", "trainer.dtype=float32", "seed=3"],
    [
        "approx=exact",
        "kernel.lengthscale=2",
        "kernel.lengthscale=3.5",
        "fixed=[kernel.lengthscale]",
    ],
    ["data.shape=[3,4]", "data=grid_stress", "approx=grid", "likelihood.noise_variance=1e-2"],
    ["++trainer.max_steps=3", "+facts.more=1"],
    ["data=npz", "data.path='a=b c.npz'", "resume='x y'"],
    ["approx=sgpr", "optimizer=adam", "optimizer.groups.inducing={lr: 0.5}"],
]


@pytest.mark.parametrize("options", VALUES)
def test_values_are_set_as_hydra_sets_them(options):
    """Also of a config that is kept."""
    with composition._composing():
        known = with_choices_made(composition.compose("train", overrides=options))
    assert OmegaConf.to_yaml(composed(options)) == OmegaConf.to_yaml(known)
    assert OmegaConf.to_yaml(composed(options)) == OmegaConf.to_yaml(known)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("trainer.max_step=3", "did you mean trainer.max_steps"),
        ("trainer.max_steps=many", "could not be converted to Integer"),
        ("trainer.max_steps=1,2", "add -m to sweep"),
        ("kernel.lengthscale@x=1", "kernel.lengthscale"),
        ("hydra.job.nme=1", "hydra.job.nme"),
    ],
)
def test_mistakes_are_said_of_a_config_that_is_kept(option, words):
    composed(OPTIONS[:2])
    with pytest.raises(ConfigError, match=words):
        composed([*OPTIONS[:2], option])


def test_a_file_that_changed_or_is_new_is_read(ask, tmp_path):
    file = tmp_path / "group" / "one.yaml"
    assert [ask("x=1"), ask("x=1"), ask("x=2")] == [1, 0, 1]
    file.write_text("a: 12\n")
    assert [ask("x=1"), ask("x=1")] == [1, 0]
    os.utime(file, (1, 1))
    assert [ask("x=1"), ask("x=1")] == [1, 0]
    (tmp_path / "group" / "two.yaml").write_text("")
    assert [ask("x=1"), ask("x=1")] == [1, 0]
    file.unlink()
    assert [ask("x=1"), ask("x=1")] == [1, 0]


def test_a_node_that_is_stored_anew_is_another_one(ask, monkeypatch):
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", {**store.repo})
    assert [ask("x=1"), ask("x=1")] == [1, 0]
    for value in (1, 2):
        store.store(group="own", name="node", node={"a": value})
        assert [ask("x=1"), ask("x=1")] == [1, 0]


def test_only_the_last_ones_are_kept(ask):
    assert sum(ask(f"x={i}") for i in range(MAX_KEPT + 1)) == MAX_KEPT + 1
    assert [ask("x=1"), ask("x=0"), ask("x=2")] == [0, 1, 1]
