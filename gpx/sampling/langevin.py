"""Metropolis-adjusted Langevin: Markov chains that follow the gradient of a log density."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Density = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Position (k,) -> log density () up to a constant, and its gradient (k,)."""

TARGET = 0.574
"""Acceptance rate that is best in many dimensions."""

ADAPTATION_DECAY = 0.6
"""The logarithm of the step moves by t^-0.6 times the excess of acceptance in burn-in step t."""


class Langevin:
    """A chain whose stationary law is a density known up to its constant.

    Proposals are u + e^2/2 V g(u) + e sqrt(V) N(0, I) with g the gradient of the log density and V
    a diagonal preconditioner, accepted with the Metropolis-Hastings probability. A proposal whose
    density is not finite is rejected. While ``adapt`` is called the chain is not stationary: stop
    calling it when burn-in ends.

    Args:
        density: log density and gradient.
        position (k,): where the chain starts.
        variances (k,): V, all positive.
        step: e; None: 0.5 k^(-1/6).

    Attributes:
        position (k,), value (), gradient (k,): where the chain is.

    Cost per step: one call of ``density`` and O(k); one host synchronisation, of the decision.
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
        # the forward density's exponent is that of the noise itself
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

    def renew(self) -> None:
        """Evaluate the density anew where the chain is: it has become another one."""
        self.value, self.gradient = self.density(self.position)

    def adapt(self, count: int, probability: float) -> None:
        """Move the step towards the acceptance rate ``TARGET``.

        Args:
            count: steps of burn-in so far, from 1.
            probability: of the last proposal.
        """
        self.log_step += count**-ADAPTATION_DECAY * (probability - TARGET)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the density: 3 k + 2 numbers."""
        return {
            "position": self.position,
            "value": self.value,
            "gradient": self.gradient,
            "variances": self.variances,
            "log_step": self.log_step,
        }

    @classmethod
    def restored(cls, density: Density, state: Mapping[str, Any]) -> Langevin:
        """The chain of a ``state_dict``, to the bit."""
        chain = cls.__new__(cls)
        chain.density = density
        for name, value in state.items():
            setattr(chain, name, value)
        return chain
