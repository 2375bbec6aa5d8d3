from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from gpx.data import DataSource
from gpx.data.grids.file import EXTRA_GRIDS
from gpx.data.sets.extra import EXTRA_SETS
from gpx.data.sets.originals import ORIGINAL_SETS
from gpx.data.sets.uci import ALIASES, UCI_SETS
from gpx.options.composition import composed as whole

FOLDER = Path(__file__).parents[2] / "configs"
NAMES = sorted(path.stem for path in (FOLDER / "data").glob("*.yaml"))
MANDATORY = {
    "csv": "path",
    "npz": "path",
    "parquet": "path",
    "stream": "path",
    "uci": "name",
    "grid": "path",
    "frames": "path",
}
MANDATORY |= {"images": "path"}


def composed(name: str, *overrides: str) -> DictConfig:
    """The data of a run; what no other option enters into is read without composing all of it."""
    path = FOLDER / "data" / f"{name}.yaml"
    if re.search(r"defaults:|@package|\$\{", path.read_text()):
        return whole([f"data={name}", "approx=svgp", *overrides]).data
    node = OmegaConf.load(path)
    options = [each.removeprefix("data.") for each in overrides]
    return OmegaConf.merge(node, OmegaConf.from_dotlist(options))


def test_every_set_has_a_config() -> None:
    others = {
        "robot_arm",
        "toy1d",
        "mnist",
        "mnist10k",
        "mnist_parity",
        "digits",
        "grid_stress",
        "glyphs",
        "fields",
        *EXTRA_GRIDS,
        *MANDATORY,
    }
    assert set(NAMES) == {*UCI_SETS, *ALIASES, *EXTRA_SETS, *ORIGINAL_SETS, *others}


@pytest.mark.parametrize("name", NAMES)
def test_every_config_instantiates(name: str) -> None:
    needed = [f"data.{MANDATORY[name]}=kin40k"] if name in MANDATORY else []
    config = composed(name, *needed, "data.split=3", "data.root=somewhere")
    source = instantiate(config)
    assert isinstance(source, DataSource)
    assert (source.split, source.root) == (3, "somewhere")
    if name in UCI_SETS or name in ALIASES:
        assert source.name == ALIASES.get(name, name)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", MANDATORY)
def test_mandatory_values(name: str) -> None:
    with pytest.raises(MissingMandatoryValue):
        _ = composed(name)[MANDATORY[name]]


def test_help_lists_the_sets_that_are_not_downloaded() -> None:
    """Those whose config says so, in the order of their names."""
    text = (FOLDER / "train.yaml").read_text()
    listed = text.partition("DATA SETS THAT ARE NOT DOWNLOADED")[2].partition("${hydra")[0]
    names = [word for line in listed.splitlines()[1:] for word in line.split()]
    said = [
        path.stem
        for path in sorted((FOLDER / "data").glob("*.yaml"))
        if re.search("not downloaded", path.read_text(), re.I)
    ]
    assert names == said
    never = {name for name, known in UCI_SETS.items() if known.data is None}
    assert never | {*EXTRA_SETS, *EXTRA_GRIDS} <= set(names)


@pytest.mark.parametrize("name", ["digits", "mnist", "mnist10k", "fields", "glyphs"])
def test_labelled_images_choose_the_likelihood_of_classes(name: str) -> None:
    """Where nobody else does: a network would regress on the labels without a word."""
    for options, wanted in (
        (["approx=svdkl"], "Softmax"),
        (["approx=cnn_rf"], "Softmax"),
        (["approx=svdkl", "likelihood=gaussian"], "Gaussian"),
    ):
        config = whole([f"data={name}", *options])
        assert config.likelihood._target_ == f"gpx.likelihoods.{wanted}"
    assert whole(["data=toy1d", "approx=svdkl"]).likelihood._target_ == "gpx.likelihoods.Gaussian"
    for options, wanted in (
        (["data=mnist_parity", "approx=qsgp"], "Bernoulli"),
        (["experiment=qsgp_mnist"], "Bernoulli"),
        (["data=mnist_parity", "approx=qsgp", "likelihood=gaussian"], "Gaussian"),
    ):
        assert whole(options).likelihood._target_ == f"gpx.likelihoods.{wanted}"
