"""Natural gradient steps of variational distributions, beside any optimiser of the rest."""

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

LONGEST = 1.0
"""Length of a step of the mean of q, in prior standard deviations, under noise that is not
Gaussian: the curvature where it begins says little of places farther away."""


class NaturalGradient(torch.optim.Optimizer):
    """Steps along the natural gradient, in nats of the evidence.

    A step of rate one leads to the optimal q at once where the noise is Gaussian and the batch is
    all data; with mini-batches q is an average over the last 1 / lr of them. Unlike Adam's, a step
    does not depend on how q is parametrised. Under noise that is not Gaussian the mean moves by at
    most ``LONGEST`` in a step: counts of hundreds, say, ask a prior near one for a leap after which
    exp(f) overflows.

    Args:
        params: those of variational distributions, complete.
        lr: rate, above 0 and at most 1.

    Raises:
        ValueError: another rate.

    Source: Salimbeni, Eleftheriadis and Hensman 2018.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.1) -> None:
        if not 0.0 <= lr <= 1.0:
            raise ValueError(f"lr={lr}: a natural gradient step has a rate of at most 1")
        super().__init__(params, {"lr": lr})
        self._scale, self._longest = 1.0, LONGEST
        self._distributions: list[WhitenedGaussian] = []
        self._record: Record | None = None
        self._replayed: Replayed | None = None

    def replay(self, record: Record = record_cuda_graph) -> None:
        """Steps are recorded once and replayed from now on (``gpx.linalg.replayed``)."""
        self._record, self._replayed = record, None

    def attach(self, model: nn.Module | None, scale: float) -> None:
        """Find the distributions whose parameters were given.

        Args:
            model: owner of them; None for none.
            scale: nats of the evidence in one unit of the loss.

        Raises:
            ConfigError: a parameter belongs to nothing that has natural gradient steps.
        """
        mine = {id(p) for group in self.param_groups for p in group["params"]}
        self._scale, self._replayed = scale, None
        gaussian = isinstance(getattr(model, "likelihood", None), (Gaussian, NoisyOutputs))
        self._longest = math.inf if gaussian else LONGEST
        self._distributions = [
            module
            for module in ([] if model is None else model.modules())
            if isinstance(module, WhitenedGaussian)
            and type(module).natural_step is not WhitenedGaussian.natural_step
            and all(id(p) in mine for p in module.parameters())
        ]
        found = {id(p) for module in self._distributions for p in module.parameters()}
        if mine - found:
            raise ConfigError(
                f"{class_name(model)} has variational parameters without natural gradient steps; "
                "FullCholesky and MeanField have them: take another algorithm, such as adam"
            )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move every distribution whose gradients are there; nothing is evaluated."""
        rate = self.param_groups[0]["lr"] * self._scale
        gradients = [p.grad for q in self._distributions for p in q.parameters()]
        given = [g for g in gradients if g is not None]
        if self._record is not None and given and len(given) == len(gradients):
            if self._replayed is None:  # of no method, which would keep it until a collection
                places = partial(_places, self._distributions)
                moved = partial(_moved, self._distributions, self._longest)
                self._replayed = Replayed(moved, self._record, places)
            held = torch.full((), rate, dtype=torch.float64, device=given[0].device)
            self._replayed(held, *given)
            return
        for q in self._distributions:
            if q.mean.grad is not None:
                q.natural_step(rate, self._longest)


def _moved(
    distributions: Sequence[WhitenedGaussian], longest: float, rate: Tensor, *gradients: Tensor
) -> None:
    """Every distribution by its gradients, and the rate ()."""
    left = iter(gradients)
    for q in distributions:
        own = [next(left) for _ in q.parameters()]
        q.natural_step(rate, longest, own)


def _places(distributions: Sequence[WhitenedGaussian]) -> object:
    return tuple(p.data_ptr() for q in distributions for p in q.parameters())
