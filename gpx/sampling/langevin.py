"""Metropolis-adjusted Langevin: Markov chains that follow the gradient of a log density."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Density = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Position (k,) -> log density () up to a constant, and its gradient (k,)."""

TARGET_ACCEPTANCE = 0.574
"""Optimal acceptance rate in many dimensions."""

ADAPTATION_DECAY = 0.6
"""The log step changes by t^-0.6 times the excess acceptance in burn-in step t."""


class Langevin:
    """A chain whose stationary distribution is a density known up to a constant.

    Proposals are u + e^2/2 V g(u) + e sqrt(V) N(0, I) with g the gradient of the log density and V
    a diagonal preconditioner, accepted with the Metropolis-Hastings probability. A proposal whose
    density is not finite is rejected. The chain is not stationary while ``adapt`` is called, so it
    must only be called during burn-in.

    Args:
        density: log density and gradient.
        position (k,): initial state.
        variances (k,): V, all positive.
        step: e; None: 0.5 k^(-1/6).

    Attributes:
        position (k,), value (), gradient (k,): current state, its log density and gradient.

    Cost per step: one call of ``density`` and O(k); one host synchronisation, for the decision.
    Source: Roberts and Rosenthal 1998; Evans thesis, section 5.4.2.
    """

    def __init__(
        self, density: Density, position: Tensor, variances: Tensor, step: float | None = None
    ) -> None:
        self.density = density
        self.position = position.clone()
        self.variances = variances.clone()
        k = len(position)
        self.log_step = math.log(0.5 * k ** (-1.0 / 6.0) if step is None else step)
        self.value, self.gradient = density(self.position)

    @property
    def step_size(self) -> float:
        """e."""
        return math.exp(self.log_step)

    def step(self, *, generator: torch.Generator) -> tuple[float, bool]:
        """Propose once: the acceptance probability, and whether the chain moved."""
        squared = math.exp(2.0 * self.log_step)
        drift = 0.5 * squared * self.variances
        noise = torch.randn(
            len(self.position), generator=generator, dtype=torch.float64, device=generator.device
        )
        uniform = torch.rand((), generator=generator, dtype=torch.float64, device=generator.device)
        forth = self.step_size * self.variances.sqrt() * noise
        proposal = self.position + drift * self.gradient + forth
        value, gradient = self.density(proposal)
        back = self.position - proposal - drift * gradient
        # the exponent of the forward proposal density is that of the noise
        log_ratio = (
            value
            - self.value
            - 0.5 / squared * (back.square() / self.variances).sum()
            + 0.5 * noise.square().sum()
        )
        log_ratio = torch.where(torch.isfinite(log_ratio), log_ratio, -torch.inf)
        probability, draw = torch.stack([log_ratio.clamp_max(0.0).exp(), uniform]).tolist()
        moved = draw < probability
        if moved:
            self.position, self.value, self.gradient = proposal, value, gradient
        return probability, moved

    def reevaluate(self) -> None:
        """Evaluate the density at the current position again, after it has changed."""
        self.value, self.gradient = self.density(self.position)

    def adapt(self, count: int, probability: float) -> None:
        """Adapt the step towards the acceptance rate ``TARGET_ACCEPTANCE``.

        Args:
            count: steps of burn-in so far, from 1.
            probability: acceptance probability of the last proposal.
        """
        self.log_step += count**-ADAPTATION_DECAY * (probability - TARGET_ACCEPTANCE)

    def state_dict(self) -> dict[str, Any]:
        """Everything except the density: 3 k + 2 numbers."""
        return {
            "position": self.position,
            "value": self.value,
            "gradient": self.gradient,
            "variances": self.variances,
            "log_step": self.log_step,
        }

    @classmethod
    def restored(cls, density: Density, state: Mapping[str, Any]) -> Langevin:
        """The chain with this ``state_dict``; it continues bit for bit."""
        chain = cls.__new__(cls)
        chain.density = density
        for name, value in state.items():
            setattr(chain, name, value)
        return chain
