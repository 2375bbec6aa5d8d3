"""Natural gradient steps for variational distributions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, class_name
from gpx.inference.variational import WhitenedGaussian
from gpx.likelihoods import Gaussian
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.linalg.replayed import Record, Replayed, record_cuda_graph

MAX_STEP = 1.0
"""Longest step of the mean of q, in prior standard deviations, unless the noise is Gaussian: the
local curvature says little about points farther away."""


class NaturalGradient(torch.optim.Optimizer):
    """Steps of q(u) along the natural gradient of the evidence.

    With Gaussian noise and all data in the batch, one step of rate 1 gives the optimal q; with
    mini-batches q averages over the last 1 / lr of them. The step does not depend on how q is
    parametrised. Without Gaussian noise the mean moves by at most ``MAX_STEP`` per step: counts in
    the hundreds would otherwise make exp(f) overflow.

    Args:
        params: all parameters of one or more variational distributions.
        lr: rate in [0, 1].

    Raises:
        ValueError: a rate outside this range.

    Source: Salimbeni, Eleftheriadis and Hensman 2018.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.1) -> None:
        if not 0.0 <= lr <= 1.0:
            raise ValueError(f"lr={lr}: a natural gradient step has a rate of at most 1")
        super().__init__(params, {"lr": lr})
        self._scale, self._max_step = 1.0, MAX_STEP
        self._distributions: list[WhitenedGaussian] = []
        self._record: Record | None = None
        self._replayed: Replayed | None = None

    def replay(self, record: Record = record_cuda_graph) -> None:
        """From now on record one step as a CUDA graph and replay it (``gpx.linalg.replayed``)."""
        self._record, self._replayed = record, None

    def attach(self, model: nn.Module | None, scale: float) -> None:
        """Find the variational distributions that own the parameters.

        Args:
            model: that contains them; None for none.
            scale: the loss is the negative evidence divided by this.

        Raises:
            ConfigError: a parameter is not of a distribution with natural gradient steps.
        """
        self._scale, self._replayed = scale, None
        gaussian = isinstance(getattr(model, "likelihood", None), (Gaussian, NoisyOutputs))
        self._max_step = math.inf if gaussian else MAX_STEP
        owners = owners_with_steps(
            model, (p for group in self.param_groups for p in group["params"])
        )
        if owners is None:
            raise ConfigError(
                f"{class_name(model)} has variational parameters without natural gradient steps; "
                "use FullCholesky or MeanField, or another algorithm such as adam"
            )
        self._distributions = owners

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every distribution that has gradients; ``closure`` is ignored."""
        rate = self.param_groups[0]["lr"] * self._scale
        gradients = [p.grad for q in self._distributions for p in q.parameters()]
        given = [g for g in gradients if g is not None]
        if self._record is not None and given and len(given) == len(gradients):
            if self._replayed is None:  # functions, as methods would form a reference cycle
                places = partial(_places, self._distributions)
                step = partial(_natural_steps, self._distributions, self._max_step)
                self._replayed = Replayed(step, self._record, places)
            held = torch.full((), rate, dtype=torch.float64, device=given[0].device)
            self._replayed(held, *given)
            return
        for q in self._distributions:
            if q.mean.grad is not None:
                q.natural_step(rate, self._max_step)


def owners_with_steps(
    model: nn.Module | None, parameters: Iterable[nn.Parameter]
) -> list[WhitenedGaussian] | None:
    """The variational distributions that own ``parameters``, if these have natural steps.

    Args:
        model: that contains them; None for none.
        parameters: all that are to be trained.

    Returns:
        None if a parameter is of no distribution, of a family without natural steps of its own, or
        of one of which another parameter is not among them.
    """
    mine = {id(p) for p in parameters}
    owners = [
        module
        for module in ([] if model is None else model.modules())
        if isinstance(module, WhitenedGaussian)
        and _has_natural_step(type(module))
        and all(id(p) in mine for p in module.parameters())
    ]
    found = {id(p) for module in owners for p in module.parameters()}
    return None if mine - found else owners


def _has_natural_step(family: type[WhitenedGaussian]) -> bool:
    """Whether a family has natural steps, which its base class did not make for other parameters.

    A step that is inherited is that of the inherited parameters and of their ``root``.
    """
    if family.natural_step is WhitenedGaussian.natural_step:
        return False
    step, start, root = (
        next(depth for depth, owner in enumerate(family.__mro__) if name in vars(owner))
        for name in ("natural_step", "_start", "root")
    )
    return step <= min(start, root)


def _natural_steps(
    distributions: Sequence[WhitenedGaussian], max_step: float, rate: Tensor, *gradients: Tensor
) -> None:
    """One step of every distribution, given the rate () and the gradients of all parameters."""
    remaining = iter(gradients)
    for q in distributions:
        own = [next(remaining) for _ in q.parameters()]
        q.natural_step(rate, max_step, own)


def _places(distributions: Sequence[WhitenedGaussian]) -> object:
    """Addresses of the parameters: if they change, a step has to be recorded again."""
    return tuple(p.data_ptr() for q in distributions for p in q.parameters())
