"""Objects made in Python that no config can describe, for runs that leave no folder.

A node in their place names them by a key, which is valid in this process and while they are given.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from gpx.errors import ConfigError, class_name

TARGET = "gpx.options.given_objects.copy_of"
_OBJECTS: dict[str, object] = {}
_NUMBERS = itertools.count()


@contextmanager
def given_objects(objects: Sequence[object]) -> Iterator[list[dict[str, Any]]]:
    """Inside, the nodes that it yields, one for each object, build copies of the objects.

    Raises:
        ConfigError: an object cannot be copied.
    """
    keys = [f"object{next(_NUMBERS)}" for _ in objects]
    try:
        for key, each in zip(keys, objects, strict=True):
            try:
                _OBJECTS[key] = copy.deepcopy(each)  # as it is now
            except Exception as error:  # whatever a class of the user raises
                raise ConfigError(
                    f"a {class_name(each)} is trained as a copy, and cannot be copied: {error}"
                ) from error
        yield [{"_target_": TARGET, "key": key} for key in keys]
    finally:
        for key in keys:
            _OBJECTS.pop(key, None)


def copy_of(key: str) -> Any:
    """A copy of the object with that key, with the sharing of modules and parameters inside."""
    if key not in _OBJECTS:
        raise ConfigError("the objects that this config was made for are of another process")
    return copy.deepcopy(_OBJECTS[key])


def class_of_given(node: DictConfig) -> type | None:
    """The class of the object that a node names; None for a node of another kind."""
    if OmegaConf.select(node, "_target_", default=None) != TARGET:
        return None
    found = _OBJECTS.get(str(node.get("key")))
    if found is None:
        return None
    kind = type_before_parametrizations(found) if isinstance(found, nn.Module) else type(found)
    assert isinstance(kind, type)
    return kind
