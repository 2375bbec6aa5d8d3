"""Random numbers that are the same on every device: drawn on the CPU and copied.

With the same seed, a GPU draws other numbers than a CPU, and a run draws on the device on which it
computes. Subsets, probes and starting points then differ between devices, and the evidence by per
cents. Inside ``drawn_alike()`` runs on two devices agree to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map


class HostGenerator(torch.Generator):
    """Draws on the CPU, but reports the device for which it was made."""

    wanted = torch.device("cpu")

    def __new__(cls, device: torch.device | str = "cpu") -> HostGenerator:
        return super().__new__(cls, "cpu")

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.wanted = torch.device(device)

    device = property(lambda self: self.wanted)


class _Draws(TorchFunctionMode):
    """Runs functions that take a generator on the CPU and copies their results to its device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        generator = kwargs.get("generator")
        if not isinstance(generator, HostGenerator) or generator.wanted.type == "cpu":
            return func(*args, **kwargs)
        target = generator.wanted
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        here, options = tree_map(lambda v: v.cpu() if isinstance(v, Tensor) else v, (args, kwargs))
        found = func(*here, **options)
        if getattr(func, "__name__", "").endswith("_"):  # in place
            return args[0].copy_(found)
        return tree_map(lambda v: v.to(target) if isinstance(v, Tensor) else v, found)


@contextlib.contextmanager
def drawn_alike() -> Iterator[None]:
    """Generators made inside, for any device, draw the numbers of the CPU."""
    with mock.patch.object(torch, "Generator", HostGenerator), _Draws():
        yield
