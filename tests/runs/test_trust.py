"""What the config of a run folder may build: payloads of a stranger, and classes of one's own."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from gpx.errors import CheckpointError, ConfigError
from gpx.options.composition import composed
from gpx.options.config import CONFIGS
from gpx.runs.folder import RunFolder
from gpx.runs.trust import require_known_classes, trusted_packages

FACTS = {"num_train": 100, "num_inputs": 3, "num_outputs": 2, "num_classes": 2, "image_shape": None}


def plain(*options):
    """The config of a run as its folder keeps it."""
    return kept(composed(options))


def kept(config):
    config.facts = FACTS
    for name in OmegaConf.missing_keys(config):
        OmegaConf.update(config, name, "given")
    return OmegaConf.to_container(config, resolve=True)


@pytest.fixture(scope="module")
def resolved():
    return OmegaConf.create(plain("approx=sgpr", "data=toy1d"))


@pytest.fixture
def config(resolved):
    return resolved.copy()


@pytest.fixture
def nothing_runs(monkeypatch, tmp_path):
    """Fails a test in which anything outside gpx is imported, or a folder is made."""
    ran = []
    original = importlib.import_module
    original("gpx.runs.watching.tensorboard")  # with what it needs itself

    def imported(name, package=None):
        if name.partition(".")[0] != "gpx":
            ran.append(name)
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", imported)
    (tmp_path / "has_effects").mkdir()
    (tmp_path / "has_effects" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "has_effects" / "inner.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert ran == []
    assert list(Path().iterdir()) == []
    assert "has_effects" not in sys.modules


def refused(config, words, trust=()):
    with pytest.raises(CheckpointError, match=words) as error:
        require_known_classes(config, "run/config.yaml", trust)
    assert "\n" not in str(error.value)
    return str(error.value)


PLACES = ("kernel", "mean", "likelihood", "approx", "objective", "optimizer", "init", "data")
PLACES += ("calibrate", "prior")
GROUPS = ("approx", "data", "kernel", "mean", "likelihood", "objective", "optimizer", "init")
GROUPS += ("basis", "inducing", "selector", "family", "inference", "experiment")
GROUPS += ("calibrate", "partition", "prior", "projection")
NEEDS = {
    "basis": ["approx=reweighted"],
    "inducing": ["approx=sgpr"],
    "selector": ["approx=sod"],  # takes them all
    "family": ["approx=svgp"],
    "inference": ["approx=reweighted"],
    "partition": ["approx=committee"],
    "projection": ["approx=ski"],
}


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_of_every_group_passes(group):
    folder, exact = CONFIGS / group, composed(("approx=exact",))
    choices = sorted(path.stem for path in folder.glob("*.yaml"))
    if group == "data":  # forty sets of two kinds
        choices = [c for c in choices if c in ("kin40k", "csv", "npz", "grid", "frames", "toy1d")]
    for choice in choices:
        if choice == "auto":  # made before anything is written: no folder holds it
            continue
        named = NEEDS.get(group, [] if group in ("approx", "experiment") else ["approx=exact"])
        path = folder / f"{choice}.yaml"
        if re.search("defaults:|@package", path.read_text()):
            config = plain(*named, f"{group}={choice}")
        else:  # nothing but its own node: composing all of it takes a hundred times as long
            config = exact.copy()
            config[group] = OmegaConf.load(path)
            config = kept(config)
        require_known_classes(OmegaConf.create(config), choice)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"_target_": "os.mkdir", "path": "made"}, "os.mkdir, which is not part of gpx and was"),
        ({"_target_": "builtins.print", "_args_": ["ran"]}, "builtins.print, which is not part"),
        ({"_target_": "hydra.utils.call"}, "trust=hydra"),
        ({"_target_": "has_effects.Kernel"}, "trust=has_effects"),
        ({"_target_": "gpx.runs.run.resume", "path": "/x"}, "not a class defined in gpx"),
        ({"_target_": "gpx.runs.watching.tensorboard.TensorBoard"}, "is expected"),
    ],
)
def test_a_payload_in_any_place(config, place, payload, words):
    config[place] = payload
    assert place in refused(config, words)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("os.system", "not part of gpx"),
        ("subprocess.Popen", "not part of gpx"),
        ("functools.partial", "not part of gpx"),
        ("hydra.utils.instantiate", "not part of gpx"),
        ("torch.hub.load", "not part of gpx"),
        ("torch.load", "not part of gpx"),
        ("numpy.load", "not part of gpx"),
        ("has_effects.inner.Kernel", "not part of gpx"),
        ("gpxtended.kernels.RBF", "not part of gpx"),
        ("eval", "not the name of a class"),
        ("", "not the name of a class"),
        (7, "not the name of a class"),
        (["os.mkdir"], "not the name of a class"),
        ({"_target_": "os.mkdir"}, "not the name of a class"),
        ("gpx", "not the name of a class"),
        ("gpx..kernels.RBF", "not the name of a class"),
        (".gpx.kernels.RBF", "not the name of a class"),
        ("gpx.kernels.__builtins__", "not the name of a class"),
        ("gpx/../os.mkdir", "not the name of a class"),
        ("gpx.kernels.RBF\n", "not the name of a class"),
        # reached through gpx, written elsewhere
        ("gpx.runs.environment.subprocess.Popen", "there is no module"),
        ("gpx.kernels.base.torch.load", "there is no module"),
        ("gpx.options.build.hydra.utils.call", "there is no module"),
        ("gpx.kernels.RBF.evaluate", "there is no module"),
        ("gpx.nowhere.RBF", "there is no module gpx.nowhere"),
        ("gpx.runs.run.DictConfig", "not a class defined in gpx"),
        ("gpx.runs.run.Path", "not a class defined in gpx"),
        ("gpx.options.build.pydoc", "not a class defined in gpx"),
        ("gpx.kernels.stationary", "not a class defined in gpx"),
        ("gpx.kernels.RBFF", "not a class defined in gpx"),
        ("gpx.runs.fit.Fitted", "not a class defined in gpx"),  # gpx.runs.fit is a function
        # of gpx, and not a kernel
        ("gpx.commands.train.main", "not a class defined in gpx"),
        ("gpx.runs.fit", "not a class defined in gpx"),
        ("gpx.runs.RunFolder", "a subclass of Kernel is expected"),
        ("gpx.training.interrupt.InterruptGuard", "a subclass of Kernel is expected"),
        ("gpx.data.CSVFile", "a subclass of Kernel is expected"),
        ("gpx.means.Zero", "a subclass of Kernel is expected"),
    ],
)
def test_a_payload_as_kernel_as_its_member_and_in_an_option(config, target, words):
    config.kernel = {"_target_": target}
    refused(config, words)
    config.kernel = {"_target_": "gpx.kernels.Sum", "kernels": [{"_target_": target}]}
    refused(config, words)
    config.kernel = {"_target_": "gpx.kernels.RBF", "active_dims": {"_target_": target}}
    refused(config, words.replace("a subclass of Kernel is expected", "no class is expected there"))


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("place", ["trainer", "facts.choice", "seed", "resume", "selector", "more"])
def test_where_nothing_is_built_no_class_can_stand(config, place):
    OmegaConf.update(config, place, {"_target_": "gpx.kernels.RBF"}, force_add=True, merge=False)
    refused(config, f"has {place}=gpx.kernels.RBF, but no class is expected there")
    OmegaConf.update(config, place, [{"deep": {"_target_": "gpx.runs.run.resume"}}], merge=False)
    refused(config, f"has {place}.0.deep=gpx.runs.run.resume, which is not a class defined")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    "option",
    [
        {"_target_": "numpy.load", "file": "x.npy", "allow_pickle": True},
        [{"_target_": "os.mkdir", "path": "made"}],
        [[{"deep": {"_target_": "os.mkdir", "path": "made"}}]],
        {"_target_": "gpx.kernels.RBF"},
        {"_target_": "gpx.kernels.RBF", "active_dims": {"_target_": "os.mkdir"}},
        {"plain": {"_target_": "gpx.kernels.RBF"}},
    ],
)
@pytest.mark.parametrize("name", ["active_dims", "lengthscale"])
def test_options_of_numbers_take_no_class(config, option, name):
    config.kernel = {"_target_": "gpx.kernels.RBF", name: option}
    refused(config, "not part of gpx|no class is expected there")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_args_", ["made"]),
        ("_partial_", True),
        ("_recursive_", False),
        ("_convert_", {"_target_": "os.mkdir"}),
        ("_anything_", 1),
    ],
)
def test_words_that_steer_construction_are_refused(config, key, value):
    config.kernel[key] = value
    refused(config, rf"has {key}=|not part of gpx")
    del config.kernel[key]
    config.approx.grid = {"_target_": "gpx.bases.GridOptions", key: value}
    refused(config, rf"has {key}=|not part of gpx")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    "text",
    ["${oc.env:HOME}", "${oc.decode:os.mkdir}", "x${seed}", "${hydra:runtime.cwd}", "${now:%Y}"],
)
@pytest.mark.parametrize("place", ["kernel._target_", "kernel.lengthscale", "facts.num_train"])
def test_interpolations_are_refused(config, text, place):
    OmegaConf.update(config, place, text)
    refused(config, f"holds the interpolation {place}=")


@pytest.mark.parametrize("place", ["kernel", "kernel._target_", "kernel.lengthscale"])
def test_values_that_are_missing(config, place):
    OmegaConf.update(config, place, "???")
    refused(config, f"has no value for {place}")


def test_options_take_what_their_type_says(config):
    nested = OmegaConf.create(plain("approx=exact"))
    nested.approx.iterative["_target_"] = "gpx.bases.GridOptions"
    refused(nested, "approx.iterative=gpx.bases.GridOptions, but a subclass of IterativeOptions")
    nested.approx.iterative["_target_"] = "gpx.models.IterativeOptions"
    require_known_classes(nested, "config")
    config.kernel = {
        "_target_": "gpx.kernels.Sum",
        "kernels": [{"_target_": "gpx.kernels.RBF"}, {"_target_": "gpx.means.Zero"}],
    }
    refused(config, r"kernel.kernels.1=gpx.means.Zero, but a subclass of Kernel is expected")


@pytest.mark.parametrize(
    ("group", "value", "words"),
    [
        ("kernel", None, "kernel=null, expected"),
        ("kernel", 7, "kernel=7, expected"),
        ("mean", [], r"mean=\[\], expected"),
        ("approx", "svgp", "approx=svgp, expected"),
        ("likelihood", {}, "a likelihood without _target_"),
        ("data", 3, "data=3, expected"),
    ],
)
def test_groups_that_are_none(config, group, value, words):
    config[group] = value
    refused(config, words)


def test_a_run_needs_no_initialisation(config):
    config.init = None
    require_known_classes(config, "config")


OWN = """
import os
import torch
from functools import partial
from gpx.kernels import RBF
from gpx.kernels import Kernel, Sum
from torch.nn import Linear


class Mine(RBF):
    pass


class Holder(Sum):
    def __init__(self, kernels, extra=None):
        super().__init__(kernels)


class Other:
    pass


class Net(torch.nn.Module):
    pass


def make():
    raise AssertionError("called")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A package of the user's own, importable; forgotten afterwards."""
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("from own_package.parts import Mine")
    (tmp_path / "own_package" / "parts.py").write_text(OWN)
    (tmp_path / "own_package" / "broken.py").write_text("import nowhere_at_all")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [n for n in sys.modules if n.startswith("own_package")]:
        del sys.modules[name]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("target", "trust"),
    [
        ("own_package.Mine", ("own_package",)),
        ("own_package.Mine", "own_package"),
        ("own_package.parts.Mine", ("other", "own_package")),
        ("own_package.parts.Mine", ("own_package.parts",)),
    ],
)
def test_a_class_of_ones_own_needs_trust(config, target, trust):
    config.kernel = {"_target_": target}
    said = refused(config, "which is not part of gpx and was not run; if that code is yours")
    assert "add trust=own_package (in Python trust=('own_package',))" in said
    assert "own_package" not in sys.modules
    require_known_classes(config, "config", trust)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("own_package.parts.os.mkdir", "there is no module own_package.parts.os"),
        ("own_package.parts.partial", "not a class defined in own_package"),
        ("own_package.parts.Linear", "not a class defined in own_package"),
        ("own_package.parts.make", "not a class defined in own_package"),
        ("own_package.parts.Other", "a subclass of Kernel is expected"),
        ("own_package.nowhere.Mine", "there is no module own_package.nowhere"),
        ("own_package.broken.Mine", "importing own_package.broken failed: ModuleNotFoundError"),
        ("os.mkdir", "not part of gpx"),
        ("own_package_too.Mine", "not part of gpx"),
    ],
)
def test_trust_is_for_classes_written_there_that_belong(config, target, words):
    config.kernel = {"_target_": target}
    refused(config, words, trust=("own_package",))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("model", ["DKL", "SVDKL"])
def test_a_network_of_ones_own(config, model):
    def with_backbone(target):
        config.approx = {"_target_": f"gpx.models.{model}", "backbone": {"_target_": target}}
        return config

    trust = ("own_package",)
    refused(with_backbone("own_package.parts.Net"), "if that code is yours")
    require_known_classes(with_backbone("own_package.parts.Net"), "config", trust)
    refused(with_backbone("own_package.parts.Other"), "a subclass of Module is expected", trust)
    refused(with_backbone("torch.nn.Linear"), "not part of gpx", trust)


@pytest.mark.usefixtures("own")
def test_options_of_a_class_of_ones_own(config):
    def holder(member, extra=None):
        config.kernel = {
            "_target_": "own_package.parts.Holder",
            "kernels": [{"_target_": member}],
            "extra": extra,
        }
        return config

    trust = ("own_package",)
    require_known_classes(holder("gpx.kernels.RBF"), "config", trust)
    require_known_classes(holder("own_package.Mine"), "config", trust)
    refused(holder("gpx.runs.watching.tensorboard.TensorBoard"), "is expected", trust)
    refused(holder("gpx.kernels.RBF", [{"_target_": "os.mkdir"}]), "not part of gpx", trust)


def test_names_of_packages(config):
    assert trusted_packages("a") == ("a",)
    assert trusted_packages("[a, b.c]") == ("a", "b.c")
    for wrong in ("", "a b", "../x", "a.", "x=1"):
        with pytest.raises(ConfigError, match="is not the name of a package"):
            require_known_classes(config, "config", trusted_packages(wrong))
    with pytest.raises(ConfigError, match="trust=7 is not the name"):
        require_known_classes(config, "config", (7,))


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    "name",
    ["has_effects.inner", "has_effects.inner.Steps", "os.mkdir", "torch.optimal.Adam", "a b.c"],
)
def test_optimisers_of_other_packages_are_not_imported(config, name):
    groups = {"variational": {"algorithm": name, "lr": 0.1}}
    config.optimizer = {"_target_": "gpx.training.FirstOrder", "groups": groups}
    place = "optimizer.groups.variational.algorithm="
    refused(config, f"{place}{re.escape(repr(name) if ' ' in name else name)}, which is not")


@pytest.mark.usefixtures("own")
def test_optimisers_of_torch_need_no_trust_and_those_of_ones_own_do(config):
    def named(algorithm):
        groups = {"variational": {"algorithm": algorithm, "lr": 0.1}}
        config.optimizer = {"_target_": "gpx.training.FirstOrder", "groups": groups}
        return config

    require_known_classes(named("torch.optim.AdamW"), "config")
    refused(named("torch.optim.lr_scheduler.StepLR"), "a subclass of torch.optim.Optimizer")
    refused(named("torch.optim.optimizer.nn.Linear"), "there is no module torch.optim.optimizer.nn")
    refused(named("own_package.Mine"), "if that code is yours")
    refused(named("own_package.Mine"), "a subclass of torch.optim.Optimizer", ("own_package",))


@pytest.mark.usefixtures("own")
def test_groups_of_a_class_of_ones_own_are_its_own(config):
    groups = {"first": {"algorithm": "not.imported"}}
    config.kernel = {
        "_target_": "own_package.parts.Holder",
        "kernels": [{"_target_": "gpx.kernels.RBF"}],
        "extra": {"groups": groups},
    }
    require_known_classes(config, "config", trust=("own_package",))
    config.kernel = {"_target_": "gpx.kernels.RBF", "groups": groups}
    refused(config, "kernel.groups.first.algorithm=not.imported, which is not", ("own_package",))


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("approx: !!python/object/apply:os.mkdir [made]\n", "cannot be read"),
        ("approx: !!python/name:os.mkdir\n", "cannot be read"),
        ("a: &a [1, 2]\napprox: [*a, *a]\n", "holds YAML references"),
        ("approx: " + "[" * 700 + "]" * 700, "cannot be read"),
        ("approx: {_target_: os.mkdir}\nkernel: {_target_: os.mkdir}\n", "not part of gpx"),
        ("defaults: [x]\nhydra: {searchpath: [file:///tmp]}\napprox: {}\n", "likelihood=null"),
    ],
)
def test_the_file_itself(tmp_path, text, words):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=words) as error:
        RunFolder(tmp_path).read_config()
    assert str(tmp_path) in str(error.value)
