"""Hamiltonian Monte Carlo: Markov chains that travel far along the gradient of a log density."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Densities = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions (C, k) of C chains -> log densities (C,) up to a constant, and gradients (C, k)."""

TARGET_ACCEPTANCE = 0.75
"""Harmonic mean of the chains' acceptance rates to which burn-in adapts the step."""

LONGEST_TIME = math.pi
"""Trajectories last up to half a period of a standard normal density, so that the mean is a
quarter of one, after which position and start are independent."""

MAX_LEAPS = 50
"""Most leaps of a trajectory."""

ADAPTATION_DECAY = 0.6
"""The log step changes by t^-0.6 times the excess acceptance in step t of an adaptation."""


class Hamiltonian:
    """C chains with a stationary density known up to a constant, moved together.

    In coordinates w with u = R w, in which the density is to be nearly standard normal, a step
    draws momenta, follows the Hamiltonian flow by leap-frog and accepts with the Metropolis
    probability. The number of leaps of a step is uniform between one and that of ``LONGEST_TIME``,
    the same for all chains. A proposal whose density is not finite is rejected. The chains are not
    stationary while ``adapt`` or ``precondition`` is called, so these belong to burn-in.

    Args:
        densities: log densities and gradients; gradients are finite also where a density is -inf.
        positions (C, k): initial states.
        root (k, k): R.

    Attributes:
        positions (C, k), values (C,), gradients (C, k): states, their log densities and gradients.
        evaluations: number of densities of one chain so far.

    Cost per step: one call of ``densities`` a leap, about pi / (2 e) of them for a step size e, and
    two host synchronisations.
    Source: Neal 2011, sections 3 and 4; Bou-Rabee and Sanz-Serna 2017 (random times);
    Sountsov and Hoffman 2021 (the harmonic mean).
    """

    def __init__(self, densities: Densities, positions: Tensor, root: Tensor) -> None:
        self.densities = densities
        self.positions = positions.clone()
        self.values, self.gradients = densities(self.positions)
        self.evaluations = len(positions)
        self.precondition(root)

    @property
    def step_size(self) -> float:
        """e."""
        return math.exp(self.log_step)

    def precondition(self, root: Tensor) -> None:
        """Take another R (k, k); the step size starts anew."""
        self.root = root.clone()
        self.log_step = -0.25 * math.log(max(1, root.shape[0]))
        self.adaptations = 0

    def step(self, *, generator: torch.Generator) -> Tensor:
        """One trajectory of every chain; returns acceptance probabilities (C,)."""
        like: dict[str, Any] = {"dtype": torch.float64, "device": generator.device}
        size = self.step_size
        momenta = torch.randn(self.positions.shape, generator=generator, **like)
        most = max(1, min(MAX_LEAPS, round(LONGEST_TIME / size)))
        leaps = int(torch.randint(1, most + 1, (), generator=generator, device=generator.device))
        uniform = torch.rand(len(self.positions), generator=generator, **like)
        energy = 0.5 * momenta.square().sum(1) - self.values
        positions, gradients = self.positions, self.gradients
        momenta = momenta + 0.5 * size * gradients @ self.root
        for leap in range(1, leaps + 1):
            positions = positions + size * momenta @ self.root.mT
            values, gradients = self.densities(positions)
            share = 0.5 if leap == leaps else 1.0
            momenta = momenta + share * size * gradients @ self.root
        self.evaluations += leaps * len(positions)
        loss = energy + values - 0.5 * momenta.square().sum(1)
        probabilities = torch.where(loss.isfinite(), loss.clamp_max(0.0).exp(), 0.0)
        moved = uniform < probabilities
        self.positions = torch.where(moved.unsqueeze(1), positions, self.positions)
        self.gradients = torch.where(moved.unsqueeze(1), gradients, self.gradients)
        self.values = torch.where(moved, values, self.values)
        return probabilities

    def adapt(self, probabilities: Tensor) -> None:
        """Adapt the step towards ``TARGET_ACCEPTANCE``, given what ``step`` returned.

        With the mean of all chains a step would suit most of them, and one on a cliff never move.
        """
        self.adaptations += 1
        harmonic = 1.0 / (1.0 / probabilities.clamp_min(1e-12)).mean()
        excess = float(harmonic) - TARGET_ACCEPTANCE
        self.log_step += self.adaptations**-ADAPTATION_DECAY * excess

    def state_dict(self) -> dict[str, Any]:
        """Everything except the densities."""
        return {name: value for name, value in vars(self).items() if name != "densities"}

    @classmethod
    def restored(cls, densities: Densities, state: Mapping[str, Any]) -> Hamiltonian:
        """The chains with this ``state_dict``; they continue bit for bit."""
        chains = cls.__new__(cls)
        chains.densities = densities
        vars(chains).update(state)
        return chains
