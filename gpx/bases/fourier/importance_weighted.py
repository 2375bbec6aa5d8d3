"""Fourier features that stay while the kernel they stand for is learned."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gpx.bases.base import Basis, Spent, never
from gpx.bases.closed_forms import Waves
from gpx.bases.fourier.importance_weights import (
    ImportanceWeights,
    importance_weights,
    log_ratios,
    warn_of_few,
)
from gpx.bases.fourier.random_fourier import RandomFourier
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.kernels.families import family_of
from gpx.kernels.stationary import Stationary


@dataclass(frozen=True)
class Proposal:
    """The kernel that frequencies are drawn for, in terms of the one they are to stand for.

    Weights vary least where the two agree; their variance is finite where the spectrum of the
    proposal has the heavier tails: shorter lengthscales, or a rougher family.

    Args:
        family: of kernels; ``same`` as the kernel's, rbf, matern12, matern32, matern52, or a
            subclass of ``Stationary``.
        lengthscale: factor on the kernel's initial lengthscales. A squared exponential may shrink
            to 1/sqrt(2) of the proposal's lengthscales, and grow at a price geometric in the
            number of inputs: a share lengthscale sqrt(2 - lengthscale^2) of the frequencies per
            input counts at the start, 0.93 at 0.8.
        normalise: divide the weights by their mean, so that k(x, x) is exact; biased by O(1 / m).

    Raises:
        ConfigError: an unknown family, or a factor that is not positive.
    """

    family: str | type[Stationary] = "same"
    lengthscale: float = 0.8
    normalise: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.family != "same":
            family_of(self.family, "same")
        if not 0.0 < self.lengthscale < float("inf"):
            raise ConfigError(
                f"proposal.lengthscale={self.lengthscale} is a factor on lengthscales and "
                "must be positive and finite"
            )

    @torch.no_grad()
    def of(self, kernel: Kernel) -> Kernel:
        """The proposal for ``kernel`` as it is now; not trainable.

        Raises:
            ConfigError: the kernel has no lengthscales to start from.
        """
        if not isinstance(kernel, Stationary):
            raise ConfigError(
                "basis=ImportanceWeightedFourier() draws frequencies for other lengthscales of the "
                f"kernel, got {class_name(kernel)}; use "
                "kernel=RBF(), Matern12(), Matern32() or Matern52()"
            )
        if self.family == "same":
            found: Stationary = copy.deepcopy(kernel)
        else:
            found = family_of(self.family)(kernel.ard_num_dims)
            found = found.to(kernel.lengthscale)
            found.outputscale = kernel.outputscale
        found.lengthscale = self.lengthscale * kernel.lengthscale
        return found.requires_grad_(False)


class ImportanceWeightedFourier(Basis):
    """Random Fourier features of a proposal with weights that make them stand for ``kernel``.

    k(x, z) ~= phi(x)^T diag(g) phi(z), g the ratio of the spectral densities at the frequencies:
    a change of the kernel's hyperparameters moves g and leaves phi, and whatever was summed of
    phi over the data, as they are.

    Args:
        kernel: stationary with lengthscales and a spectral density; stays trainable.
        num_basis: m, even.
        num_inputs: d.
        seed: of the frequencies.
        proposal: how the kernel that they are drawn for follows from ``kernel``.

    Raises:
        ConfigError: m is odd, or the kernel does not fit.

    Cost: that of ``RandomFourier``; the weights O(m d).
    Source: Evans thesis, chapter 5 (importance-weighted random Fourier features).
    """

    parts = 2  # cosines and sines
    follows_kernel = True
    kernel: Kernel

    num_inputs: int

    def __init__(
        self,
        kernel: Kernel,
        num_basis: int,
        num_inputs: int,
        seed: int = 0,
        proposal: Proposal | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.proposal = Proposal() if proposal is None else proposal
        self.features = RandomFourier(self.proposal.of(kernel), num_basis, seed)
        self.num_basis, self.block_size = self.features.num_basis, self.features.block_size
        self.num_inputs = num_inputs
        _ = self.weights()  # a kernel without a spectral density says so now, not later

    def draw(self) -> None:
        """Draw the frequencies anew, for the kernel as it is now; the same random numbers."""
        self.features.kernel = self.proposal.of(self.kernel)

    def weights(self) -> ImportanceWeights:
        """log g (m,), differentiable in the kernel, and how many frequencies count."""
        return importance_weights(
            self.features, self.kernel, self.num_inputs, normalise=self.proposal.normalise
        )

    def start(
        self,
        x: Tensor,
        residual: Tensor,
        noise: Tensor,
        *,
        generator: torch.Generator,
        spent: Spent = never,
    ) -> str:
        """Draw the frequencies for the kernel as it is now; ``generator`` is not used."""
        self.draw()
        return super().start(x, residual, noise, generator=generator, spent=spent)

    def log_variances(self) -> Tensor:
        """log g (m,), float64, differentiable in the kernel."""
        return self.weights().log_variances

    def mean_column_square(self) -> Tensor:
        """As in ``Basis``, of the features of the proposal."""
        return self.features.mean_column_square()

    def facts(self) -> dict[str, bool | int | float | str]:
        """How many frequencies count."""
        return {"effective_frequencies": float(self.weights().effective)}

    def warn_of_few(self) -> bool:
        """As in ``Basis``: frequencies whose weight is next to nothing do not count."""
        return warn_of_few(self.weights().effective, self.num_basis)

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """As in ``Basis``; nothing of it depends on ``kernel``."""
        return cast(Tensor, self.features(x, columns))

    def block_features(self, x: Tensor, blocks: Tensor) -> Tensor:
        """As in ``Basis``."""
        return self.features.block_features(x, blocks)

    def features_of(self, blocks: Tensor) -> Callable[[Tensor], Tensor]:
        """As in ``Basis``."""
        return self.features.features_of(blocks)

    def closed_form(self, num_inputs: int) -> Waves:
        """As in ``Basis``."""
        return self.features.closed_form(num_inputs)

    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """1 / g, float64; normalised ones are known only together."""
        if columns is None or self.proposal.normalise:
            precision = (-self.log_variances()).exp()
            return precision if columns is None else precision[columns]
        indices = self.features.waves_of(columns)[0]
        return (-log_ratios(self.features, self.kernel, indices, self.num_inputs)).exp()
