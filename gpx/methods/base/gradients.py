"""Predictions keep a graph for inputs that require a gradient, and only then."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from gpx.errors import NotAvailable, class_name

if TYPE_CHECKING:
    from gpx.methods.base.posterior import Marginals, Posterior


def wants_gradient(x: Tensor) -> bool:
    """Whether what is computed from x is to keep a graph."""
    return x.requires_grad and torch.is_grad_enabled()


def keep_graph_if_wanted(cls: type[Posterior], method: str) -> None:
    """Let ``method``, if ``cls`` itself defines it, keep a graph only if x requires a gradient."""
    inner = vars(cls).get(method)
    if inner is None or getattr(inner, "__isabstractmethod__", False):
        return

    @functools.wraps(inner)
    def run(self: Posterior, x: Tensor, *rest: Any, **options: Any) -> Any:
        wanted = wants_gradient(x)
        with torch.set_grad_enabled(wanted):
            found = inner(self, x, *rest, **options)
        if wanted and len(x) and not all(part.requires_grad for part in _tensors(found)):
            raise no_gradient(self)  # a subclass has dropped the graph
        return found

    setattr(cls, method, run)


def leave_inference_mode(cls: type, method: str) -> None:
    """Let ``method``, if ``cls`` itself defines it, run without gradients where inference mode is
    on: what it keeps for later calls could not be part of their graphs."""
    inner = vars(cls).get(method)
    if inner is None or getattr(inner, "__isabstractmethod__", False):
        return

    @functools.wraps(inner)
    def run(*arguments: Any, **options: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return inner(*arguments, **options)
        with torch.inference_mode(False), torch.no_grad():
            return inner(*arguments, **options)

    setattr(cls, method, run)


def _tensors(found: Marginals | Tensor | Distribution) -> Sequence[Tensor]:
    """What a prediction is made of, as far as derivatives are concerned."""
    if isinstance(found, Distribution):
        return (found.probs if isinstance(found, Categorical) else found.mean,)
    return (found,) if isinstance(found, Tensor) else found


def no_gradient(posterior: Posterior, of: str = "") -> NotAvailable:
    """The error to raise for inputs that require a gradient which predictions do not carry.

    Args:
        of: what these predictions are of, after the word.
    """
    return NotAvailable(
        f"{class_name(posterior)}: predictions{of} carry no gradient with respect to x; functions "
        "drawn by posterior.sample_paths may; without need of one, give x.detach()"
    )
