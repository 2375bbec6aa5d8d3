"""Random vectors of an objective: fixed for a run, or drawn anew at every step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedProbes(nn.Module):
    """The generator that each evaluation of an objective draws its random probes from.

    Args:
        resample: use the step's own generator where there is one.

    Attributes:
        seed (): of the fixed probes; checkpoints store it in place of the n x L probes.
    """

    seed: Tensor

    def __init__(self, resample: bool) -> None:
        super().__init__()
        self.resample = resample
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))

    def prepare(self, generator: torch.Generator | None) -> None:
        """Draw the seed of the fixed probes from the run's ``generator``."""
        if generator is not None:
            high = 2**62
            drawn = torch.randint(high, (), generator=generator, device=generator.device)
            self.seed = drawn.to(self.seed.device)

    def generator(self, device: torch.device, given: torch.Generator | None) -> torch.Generator:
        """The step's generator, or a fresh one that starts at the same place every time."""
        if self.resample and given is not None:
            return given
        return torch.Generator(device=device).manual_seed(int(self.seed))
