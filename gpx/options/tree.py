"""All values of a config as plain containers, as ``OmegaConf.to_container`` makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(node: Any, name: str = "", *, lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Every plain value below a node, with its dotted name: ``kernel.kernels.0.lengthscale``.

    Args:
        node: a dictionary, list or plain value.
        name: of the node.
        lists: whether the entries of a list are values; otherwise the list is one.
    """
    if isinstance(node, dict):
        items: Any = node.items()
    elif isinstance(node, list) and lists:
        items = enumerate(node)
    else:
        yield name, node
        return
    for key, value in items:
        yield from leaves(value, f"{name}.{key}" if name else str(key), lists=lists)


def changed(node: Any, change: Callable[[str, Any], Any]) -> Any:
    """A copy of a node, with ``change(option, value)`` for every plain value that has a name.

    Args:
        node: a dictionary, list or plain value; entries of lists that are plain values stay.
        change: gets the last part of the name.
    """
    if isinstance(node, list):
        return [changed(each, change) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        name: changed(value, change) if isinstance(value, (dict, list)) else change(name, value)
        for name, value in node.items()
    }
