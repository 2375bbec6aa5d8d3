"""``data.categories=kernel``: categories compared by a kernel of their own.

The run's kernel is one of the columns that are no categories, times a ``Categorical`` kernel with a
lengthscale for each column of categories: exp(-sum_c [x_c is not x'_c] / l_c). config.yaml holds
the product, so that a run that goes on, and predictions, build it again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gpx.data import Dataset
from gpx.data.columns.coding import Coding
from gpx.errors import ConfigError
from gpx.options.build import target_of

KERNEL = "kernel"
CATEGORICAL = "gpx.kernels.Categorical"
COUNTS = ("ard_num_dims", "num_inputs")
"""Options of kernels, and of what is in them, that say how many inputs there are."""


def with_categorical_kernel(config: DictConfig, data: Dataset) -> DictConfig:
    """A copy of the config with the product for its kernel, where that is asked for.

    Args:
        config: of the run, with ``facts``; one whose kernel has a ``Categorical`` stays as it is.
        data: loaded, of a table.

    Raises:
        ConfigError: no column of categories, a kernel that is to be chosen or is missing, or one
            that looks at all inputs whatever it is told.
    """
    if config.data.get("categories") != KERNEL:
        return config
    asked = "data.categories=kernel"
    if data.coding is None or not any(c.column.kind == "category" for c in data.coding.columns):
        raise ConfigError(
            f"{asked}, and no input of {data.name} is a column of texts: leave it out"
        )
    model = target_of(config.approx, "approx")
    if config.get("kernel") is None or not getattr(model, "kernel_of_inputs", True):
        raise ConfigError(
            f"{asked} needs a kernel that compares the inputs themselves, and "
            f"{getattr(model, '__name__', model)} has none: choose another approx=, or "
            "data.categories=auto"
        )
    node: Any = OmegaConf.to_container(config.kernel, resolve=True)
    if CATEGORICAL in _targets(node):
        return config
    groups, others = category_columns(data.coding)
    categorical: dict[str, Any] = {"_target_": CATEGORICAL, "groups": groups, "lengthscale": 1.0}
    if others:
        factors = [_of_columns(node, others, data.num_inputs), {**categorical, "outputscale": None}]
        made: dict[str, Any] = {"_target_": "gpx.kernels.Product", "kernels": factors}
    else:
        made = {**categorical, "outputscale": 1.0}
    found = config.copy()
    found.kernel = made
    return found


@contextmanager
def categories_said(config: DictConfig) -> Iterator[None]:
    """Adds to errors about a kernel that it is a product because of its categories."""
    try:
        yield
    except ConfigError as error:
        if config.data.get("categories") == KERNEL:
            said = (
                "; data.categories=kernel makes the kernel a product with one of categories: with "
                "data.categories=auto they become inputs of 1 and 0, which any method takes"
            )
            error.args = (f"{error}{said}", *error.args[1:])
        raise


def category_columns(coding: Coding) -> tuple[list[list[int]], list[int]]:
    """Numbers of the inputs of each column of categories, and those of all other columns."""
    groups: list[list[int]] = []
    others: list[int] = []
    place = 0
    for coded in coding.columns:
        own = list(range(place, place + len(coded.names)))
        place += len(own)
        if coded.column.kind == "category":
            groups.append(own)
        else:
            others += own
    return groups, others


def _of_columns(node: dict[str, Any], columns: list[int], num_inputs: int) -> dict[str, Any]:
    """The node of a kernel that looks at some of ``num_inputs`` columns.

    Raises:
        ConfigError: a kernel in it has no option for that.
    """
    target: Any = target_of(OmegaConf.create(node), KERNEL)
    if not isinstance(target, type):  # which is said where it is built
        return node
    parts = [name for name in ("kernels", "kernel") if name in node]
    options = inspect.signature(target).parameters
    if "active_dims" in options and node.get("active_dims") is not None:
        return node  # says itself what it looks at
    if "active_dims" in options:
        return {**_counted(node, len(columns), num_inputs), "active_dims": columns}
    if not parts and options.keys() & {*COUNTS, "family"}:
        raise ConfigError(
            "data.categories=kernel multiplies a kernel of the other inputs, and "
            f"{target.__name__} looks at all inputs: choose another kernel=, such as matern52"
        )
    made = dict(node)
    for name in parts:
        part = node[name]
        made[name] = (
            [_of_columns(each, columns, num_inputs) for each in part]
            if isinstance(part, list)
            else _of_columns(part, columns, num_inputs)
        )
    return made


def _counted(node: dict[str, Any], count: int, num_inputs: int) -> dict[str, Any]:
    """``node`` and what is in it with options that say ``num_inputs`` saying ``count``."""
    made: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, dict):
            made[name] = _counted(value, count, num_inputs)
        elif isinstance(value, list) and all(isinstance(each, dict) for each in value):
            made[name] = [_counted(each, count, num_inputs) for each in value]
        else:
            made[name] = count if name in COUNTS and value == num_inputs else value
    return made


def _targets(node: Any) -> set[str]:
    if isinstance(node, list):
        return {found for part in node for found in _targets(part)}
    if not isinstance(node, dict):
        return set()
    own = {str(node["_target_"])} if "_target_" in node else set()
    return own | {found for part in node.values() for found in _targets(part)}
