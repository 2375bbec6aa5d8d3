from collections.abc import Callable
from typing import Literal

import pytest
from omegaconf import OmegaConf
from torch import nn

from gpx.errors import ConfigError
from gpx.kernels import Kernel
from gpx.models import CGLB, SGPR, ExactGP
from gpx.options.types import check_numbers, check_option_names, check_option_types


class Thing:
    def __init__(
        self,
        count: int = 1,
        rate: float = 1.0,
        column: str | int | None = None,
        flag: bool = False,
        scale: float | list[float] = 1.0,
        anything=None,
        rank: int | Literal["auto", "full"] = "auto",
        kind: Literal["one", "two"] = "one",
        warp: nn.Module | Kernel | None = None,
        either: Kernel | Callable[[], Kernel] = None,
        *,
        kernel: Kernel,
    ):
        pass


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("count", "abc", "thing.count=abc: expected a whole number"),
        ("count", 1.5, "thing.count=1.5: expected a whole number"),
        ("count", None, "thing.count=null: expected a whole number"),
        ("count", True, "thing.count=True: expected a whole number"),
        ("rate", "fast", "thing.rate=fast: expected a number"),
        ("column", 1.5, "thing.column=1.5: expected text or a whole number or null"),
        ("flag", 1, "thing.flag=1: expected true or false"),
        ("rate", [1], "thing.rate=[1]: expected a number"),
        ("count", {"a": 1}, "thing.count={'a': 1}: expected a whole number"),
        ("scale", ".nan", "thing.scale=.nan: expected a number or a list"),
        ("rank", True, "thing.rank=True: expected a whole number or auto or full"),
        ("rank", "atuo", "thing.rank=atuo: expected a whole number or auto or full"),
        (
            "kernel",
            None,
            "thing.kernel=null: expected a subclass of Kernel as thing.kernel._target_, and its "
            "options",
        ),
        (
            "warp",
            [3],
            "thing.warp=[3]: expected a subclass of Module or Kernel as thing.warp._target_, and "
            "its options",
        ),
        (
            "kernel",
            {"no": "class"},
            "thing.kernel={'no': 'class'}: expected a subclass of Kernel as thing.kernel._target_, "
            "and its options",
        ),
    ],
)
def test_names_the_option_and_what_it_takes(option, value, expected):
    with pytest.raises(ConfigError) as error:
        check_option_types(OmegaConf.create({option: value}), "thing", Thing)
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rate", 2),
        ("column", "y"),
        ("column", None),
        ("scale", ["left to the class"]),
        ("anything", "x"),
        ("rank", 3),
        ("rank", "auto"),
        ("kind", "left to the class, which names the nearest word"),
        ("kernel", {"_target_": "gpx.kernels.RBF"}),
        ("warp", None),
        ("either", "left to the class"),
        ("unknown", "the constructor says so"),
    ],
)
def test_accepts_what_fits_or_cannot_be_judged(option, value):
    check_option_types(OmegaConf.create({option: value}), "thing", Thing)


@pytest.mark.parametrize("option", ["size", "kernel", "rest"])
def test_null_is_accepted_where_it_is_the_default(option):
    """Code of users often has ``size: int = None``, whose hint does not allow None."""

    def thing(size: int = None, kernel: Kernel = None, *, rest: str = None, **more):  # noqa: RUF013
        return size

    check_option_types(OmegaConf.create({option: None}), "thing", thing)
    with pytest.raises(ConfigError, match=f"thing.{option}"):
        check_option_types(OmegaConf.create({option: [1]}), "thing", thing)


def test_an_option_of_another_class_names_that_class():
    sparse = "EffectivePrior and FullyBayesianSGPR and SGPR and others have", "one of them"
    many = "CGLB and ConvGP and DKL and others have", "one of them"
    for model, choice, option, (having, which) in (
        (CGLB, {"num_inducing": 5, "features": None}, "inducing=eigenfunctions", sparse),
        (ExactGP, {"reinitialise": 1}, "inducing=auto", ("SGPR has", "that")),
        (ExactGP, {"selector": None}, "selector=", many),
        (SGPR, {"family": None}, "family=", ("ConvGP and SVGP have", "one of them")),
    ):
        with pytest.raises(ConfigError) as error:
            check_option_names(OmegaConf.create(choice), "approx", model)
        name = list(choice)[-1]
        assert str(error.value) == (
            f"approx.{name}: {model.__name__} has no option {name}, {having}; {option} sets it and "
            f"needs {which}"
        )


def test_a_misspelt_option_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match=r"thing.colum: Thing has no option colum; .* column\?"):
        check_option_names(OmegaConf.create({"count": 1, "colum": "y"}), "thing", Thing)


def test_names_are_left_to_classes_that_take_any():
    def anything(**options):
        return options

    for target in (anything, None, OmegaConf):
        check_option_names(OmegaConf.create({"_target_": "a.b", "x": 1}), "thing", target)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": {"b": float("nan")}}, "a.b=nan: expected a finite number"),
        ({"a": [1.0, [float("-inf")]]}, r"a\.1\.0=-inf: expected a finite number"),
        ({"seed": 2**63}, "seed=9223372036854775808: expected a whole number of at most 64 bits"),
    ],
)
def test_numbers_that_mean_nothing_as_an_option(content, words):
    with pytest.raises(ConfigError, match=words):
        check_numbers(OmegaConf.create(content))


def test_numbers_that_do():
    check_numbers(OmegaConf.create({"seed": 2**63 - 1, "a": [-(2**63), 1e308, None, True, "nan"]}))
