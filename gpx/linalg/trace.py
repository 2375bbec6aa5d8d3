"""Stochastic estimates of traces, with standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError

Kind = Literal["rademacher", "gaussian"]


@dataclass(frozen=True)
class Estimate:
    """A stochastic estimate.

    Attributes:
        value (): unbiased unless the routine says otherwise.
        standard_error (): of ``value``, from the scatter of the samples; infinite for one sample.
        samples (L,): one term per probe, whose mean enters ``value``.
    """

    value: Tensor
    standard_error: Tensor
    samples: Tensor


def probe_vectors(
    n: int,
    count: int,
    *,
    kind: Kind = "rademacher",
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Random w with E[w w^T] = I as columns, (n, count).

    Rademacher probes (signs) have the least variance among independent entries; Gaussian ones are
    invariant under rotation. Keep the result and pass it again for a fixed-probe line search.
    """
    if count < 1:
        raise ConfigError(f"a stochastic estimate needs at least one probe, got {count}")
    if kind == "gaussian":
        return torch.randn(n, count, generator=generator, dtype=dtype, device=device)
    if kind == "rademacher":
        bits = torch.randint(0, 2, (n, count), generator=generator, device=device)
        return bits.to(dtype).mul_(2.0).sub_(1.0)
    raise ConfigError(f'probes are "rademacher" or "gaussian", got {kind!r}')


class FixedProbes(nn.Module):
    """The generator from which each evaluation of an objective draws its random probes.

    Args:
        resample: draw new probes at each step, from the step's own generator where there is one.

    Attributes:
        seed (): of the fixed probes; stored in checkpoints in place of the n x L probes.
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
        """The step's generator, or a new one with the fixed seed."""
        if self.resample and given is not None:
            return given
        return torch.Generator(device=device).manual_seed(int(self.seed))


def mean_and_error(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of samples (L,), L >= 1, and its standard error (infinite for L = 1)."""
    if samples.shape[0] < 1:
        raise ConfigError("a stochastic estimate needs at least one probe, got none")
    if samples.shape[0] < 2:
        return samples.mean(), torch.full_like(samples.mean(), torch.inf)
    return samples.mean(), samples.std() / samples.shape[0] ** 0.5
