"""Base class of posterior processes that store their data, under Gaussian noise."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gpx.inference.exact_solver import require_finite
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.posterior import Posterior, untrained
from gpx.sampling import Frequencies, PriorFunctions, prior_functions


class GaussianPosterior(Posterior):
    """Stores the data and the prior; a subclass predicts.

    Args:
        kernel, mean, likelihood: copied.

    Attributes:
        inputs (n, d), residual (n,): the data, y less its prior mean.
        row_noise (2, n): ``RowNoise`` of the data; None: one noise variance for all.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("inputs", "residual", "row_noise")
    inputs: Tensor
    residual: Tensor
    row_noise: Tensor | None

    def __init__(self, kernel: Kernel, mean: Mean, likelihood: Gaussian) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.likelihood = untrained(likelihood)
        self.register_data_sized()
        self.row_noise = None  # then it is not part of the saved state

    @property
    def num_inputs(self) -> int | None:
        """As in ``Posterior``: that of the data; None before there are any."""
        return self.inputs.shape[1] if self.inputs.ndim == 2 else None

    def know_noise(self, noise: RowNoise) -> None:
        """Set the noise of each row, before ``condition_``."""
        self.row_noise = torch.stack(list(noise))

    @torch.no_grad()
    def keep_data(self, x: Tensor, y: Tensor) -> None:
        """Keep x (n, d) and y (n,).

        Raises:
            DataError: targets that are not finite.
        """
        self.keep(x, inputs=x, residual=y - self.mean(x))
        require_finite(self.residual)

    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> Posterior:
        """As in ``Posterior``: all rows are conditioned on anew."""
        made = copy.deepcopy(self)
        if noise is not None or self.row_noise is not None:
            plain = RowNoise.plain(self.residual)
            known = plain if self.row_noise is None else RowNoise(*self.row_noise)
            more = RowNoise.plain(y) if noise is None else noise
            made.know_noise(known.concatenated(more.like(known.known)))
        rows = torch.cat([self.inputs, x])
        targets = torch.cat([self.residual + self.mean(self.inputs), y])
        made.condition_(rows, targets)
        return made

    @abstractmethod
    def condition_(self, x: Tensor, y: Tensor) -> object:
        """Condition on x (n, d) and y (n,), in place, before any prediction.

        Raises:
            DataError: targets that are not finite.
        """

    def noise_variances(self) -> Tensor:
        """Noise variance of the data: () for all rows, or (n,)."""
        learned = self.likelihood.noise_variance
        return learned if self.row_noise is None else RowNoise(*self.row_noise).variance(learned)

    @torch.no_grad()
    def prior_paths(
        self, num: int, generator: torch.Generator, frequencies: Frequencies
    ) -> tuple[PriorFunctions, Tensor]:
        """Sampled functions of the prior, and their gap to the data for pathwise conditioning.

        Returns:
            functions x (t, d) -> (num, t) from random Fourier features, without the mean function;
            and residual - prior(inputs) - noise (num, n) (Wilson et al. 2020).

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        n, num_inputs = self.inputs.shape
        prior = prior_functions(
            self.kernel, num, num_inputs, generator=generator, frequencies=frequencies
        )
        noise = self.residual.new_empty(num, n).normal_(generator=generator)
        noise *= self.noise_variances().sqrt()
        return prior, self.residual - prior(self.inputs) - noise
