"""``data.categories=kernel``: a separate kernel for the categorical columns.

The run's kernel becomes a product: the chosen kernel on the numerical inputs, times a
``Categorical`` kernel exp(-sum_c [x_c != x'_c] / l_c) with a lengthscale for each categorical
column. config.yaml holds the product, so resumed runs and predictions build the same kernel.
Names in ``fixed=`` are those of the chosen kernel; config.yaml has them as names in the product.
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
from gpx.options.build import fixed_parameters, target_of
from gpx.options.kernel_expression import COUNTS
from gpx.options.tree import changed, leaves

KERNEL = "kernel"
CATEGORICAL = "gpx.kernels.Categorical"
FACTOR = "kernels.0"
"""Name, within the product, of the kernel that the config had."""


def with_categorical_kernel(config: DictConfig, data: Dataset) -> DictConfig:
    """The config, with the product as its kernel if ``data.categories=kernel``.

    Args:
        config: of the run, with ``facts``; left as it is if its kernel has a ``Categorical``.
        data: of the run.

    Raises:
        ConfigError: no categorical column, a method without such a kernel, or a kernel that
            cannot be restricted to some inputs.
    """
    if config.data.get("categories") != KERNEL:
        return config
    asked = "data.categories=kernel"
    if data.coding is None or not any(c.column.kind == "category" for c in data.coding.columns):
        raise ConfigError(
            f"{asked} needs a column of texts among the inputs, and {data.name} has none: leave it "
            "out"
        )
    model = target_of(config.approx, "approx")
    if config.get("kernel") is None or not getattr(model, "kernel_of_inputs", True):
        raise ConfigError(
            f"{asked} needs a method with a kernel on the inputs, and "
            f"{getattr(model, '__name__', model)} has none: choose another approx=, or "
            "data.categories=auto"
        )
    node: Any = OmegaConf.to_container(config.kernel, resolve=True)
    if any(name.endswith("_target_") and value == CATEGORICAL for name, value in leaves(node)):
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
    fixed = fixed_parameters(config)
    if others and fixed:
        found.fixed = [
            f"{part}.{FACTOR}.{name}" if part == KERNEL else f"{part}.{name}"
            for part, name in fixed
        ]
    return found


@contextmanager
def explain_categorical_kernel(config: DictConfig) -> Iterator[None]:
    """Errors raised inside also say that ``data.categories=kernel`` changed the kernel."""
    try:
        yield
    except ConfigError as error:
        if config.data.get("categories") == KERNEL:
            hint = (
                "; data.categories=kernel made the kernel a product: with data.categories=auto "
                "categories become inputs of 1 and 0, which every method takes"
            )
            error.args = (f"{error}{hint}", *error.args[1:])
        raise


def category_columns(coding: Coding) -> tuple[list[list[int]], list[int]]:
    """Indices of the inputs of each categorical column, and indices of all other inputs."""
    groups = [list(span) for coded, span in coding.spans if coded.column.kind == "category"]
    others = [i for coded, span in coding.spans if coded.column.kind != "category" for i in span]
    return groups, others


def columns_of_kernel(config: DictConfig, data: Dataset) -> list[int]:
    """Indices of the inputs of the kernel that ``kernel=`` names.

    With a projection these are its outputs, and with ``data.categories=kernel`` the inputs that
    are no categories, unless all are.

    Args:
        config: of the run, with ``facts``.
        data: the rows that the run trains on.
    """
    projection = config.approx.get("projection")
    projected = projection.get("num_outputs") if isinstance(projection, DictConfig) else None
    if isinstance(projected, int):
        return list(range(projected))
    every = list(range(data.num_inputs))
    if config.data.get("categories") != KERNEL or data.coding is None:
        return every
    return category_columns(data.coding)[1] or every


def _of_columns(node: dict[str, Any], columns: list[int], num_inputs: int) -> dict[str, Any]:
    """The node of a kernel, restricted to ``columns`` of ``num_inputs`` inputs.

    Raises:
        ConfigError: a kernel in it has no option ``active_dims``.
    """
    target: Any = target_of(OmegaConf.create(node), KERNEL)
    if not isinstance(target, type):  # refused when it is built
        return node
    parts = [name for name in ("kernels", "kernel") if name in node]
    options = inspect.signature(target).parameters
    if "active_dims" in options and node.get("active_dims") is not None:
        return node  # its inputs were chosen by the user
    if "active_dims" in options:

        def counted(option: str, value: Any) -> Any:
            return len(columns) if option in COUNTS and value == num_inputs else value

        return {**changed(node, counted), "active_dims": columns}
    if not parts and options.keys() & {*COUNTS, "family"}:
        raise ConfigError(
            "data.categories=kernel needs a kernel that can be restricted to the numerical inputs, "
            f"and {target.__name__} cannot: choose another kernel=, such as matern52"
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
