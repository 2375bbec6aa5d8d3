"""Random Fourier features drawn for one kernel and re-weighted to approximate another."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gpx.bases.base import LEAST_LOG_VARIANCE, Basis, Spent, never
from gpx.bases.closed_forms import Waves
from gpx.bases.fourier.random_fourier import RandomFourier
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.kernels.families import resolve_family
from gpx.kernels.stationary import Stationary
from gpx.warned_line import users_line

MIN_EFFECTIVE_SHARE = 0.1
"""A warning is given when the effective number of frequencies is below this share."""

MIN_LOG_RATIO = -700.0
"""Logarithms of weights are clamped to this: prior precisions must not overflow in float64."""


class ImportanceWeights(NamedTuple):
    """Prior variances of the features' weights under another kernel.

    Attributes:
        log_variances (m,): log g of every column, in the order of the basis; differentiable in the
            kernel's parameters. Zero for the kernel that the frequencies were drawn for.
        effective (): effective number of the m / 2 frequencies, (sum w)^2 / sum w^2, detached.
    """

    log_variances: Tensor
    effective: Tensor


def importance_weights(
    basis: RandomFourier, kernel: Kernel, num_inputs: int, *, normalise: bool = False
) -> ImportanceWeights:
    """Weights with which the features of the basis' kernel approximate another one, ``kernel``.

    k(x, z) = lim phi(x)^T diag(g) phi(z) with g_r = S(w_r) / S_basis(w_r), the ratio of the
    spectral densities (outputscales included) at the frequency of a column. The features do not
    change, so that evidences at all hyperparameters use the same statistics.

    For squared exponentials the variance of the estimate is finite only if no lengthscale of
    ``kernel`` is below 1/sqrt(2) of the basis': draw the frequencies for the shortest plausible
    lengthscales. The effective number of frequencies falls geometrically with the number of inputs.

    Args:
        basis: at the hyperparameters for which its frequencies were drawn.
        kernel: its spectral density must be positive where the basis' is.
        num_inputs: d.
        normalise: divide the ratios by their mean, so that k(x, x) is exact; biased by O(1 / m),
            of smaller variance.

    Raises:
        ConfigError: the basis is not of independent random frequencies.

    Cost: O(m d). See ``warn_of_few`` for whether the frequencies suffice.
    Source: Evans thesis, chapter 5 (importance-weighted random Fourier features).
    """
    if type(basis) is not RandomFourier or basis.spread != (1.0,):
        raise ConfigError(
            "importance weights need frequencies drawn independently from the spectral density "
            f"(basis=RandomFourier(), spread=1), got {class_name(basis)}"
        )
    count = basis.num_basis // 2
    indices = torch.arange(count, device=next(basis.parameters()).device)
    ratio = log_ratios(basis, kernel, indices, num_inputs)
    with torch.no_grad():
        share = torch.softmax(ratio, 0)
        effective = 1.0 / share.square().sum()
    if normalise:
        origin = torch.zeros(1, num_inputs, dtype=torch.float64, device=ratio.device)
        wanted = kernel.diagonal(origin)[0].log() - basis.kernel.diagonal(origin)[0].detach().log()
        ratio = ratio - (ratio.logsumexp(0) - math.log(count)) + wanted
    return ImportanceWeights(basis.by_column(ratio), effective)


def log_ratios(basis: RandomFourier, kernel: Kernel, indices: Tensor, num_inputs: int) -> Tensor:
    """Log of the ratio of the spectral densities at frequencies ``indices`` (r,): (r,), float64.

    Differentiable in ``kernel``. Cost: O(r d).
    """
    with torch.no_grad():
        omega = basis.frequencies(indices, num_inputs, torch.float64) / (2.0 * math.pi)
        drawn = basis.kernel.log_spectral_density(omega).double()
    return (kernel.log_spectral_density(omega).double() - drawn).clamp_min(MIN_LOG_RATIO)


def warn_of_few(effective: Tensor, num_basis: int) -> bool:
    """Warn if ``effective`` is below a tenth of m / 2; returns whether it did."""
    count = num_basis // 2
    few = float(effective) < MIN_EFFECTIVE_SHARE * count
    if few:
        warnings.warn(
            f"only {float(effective):.0f} of {count} frequencies are effective after re-weighting: "
            "the kernel is too far from the one they were drawn for; draw them for shorter "
            "lengthscales or heavier tails (proposal), or take more (num_basis)",
            stacklevel=users_line(),
        )
    return few


@dataclass(frozen=True)
class Proposal:
    """The kernel for which frequencies are drawn, relative to the one to approximate.

    Weights vary least where the two agree; their variance is finite if the spectrum of the proposal
    has heavier tails: shorter lengthscales, or a rougher family.

    Args:
        family: of kernels; ``same`` as the kernel's, rbf, matern12, matern32, matern52, or a
            subclass of ``Stationary``.
        lengthscale: factor on the kernel's initial lengthscales. A squared exponential may shrink
            to 1/sqrt(2) of the proposal's lengthscales; longer ones lower the effective share of
            frequencies geometrically in the number of inputs: initially lengthscale
            sqrt(2 - lengthscale^2) per input, 0.93 at 0.8.
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
            resolve_family(self.family, "same")
        if not 0.0 < self.lengthscale < float("inf"):
            raise ConfigError(
                f"proposal.lengthscale={self.lengthscale} is a factor on lengthscales and "
                "must be positive and finite"
            )

    @torch.no_grad()
    def of(self, kernel: Kernel) -> Kernel:
        """The proposal for the current ``kernel``; not trainable.

        Raises:
            ConfigError: the kernel is not stationary.
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
            found = resolve_family(self.family)(kernel.ard_num_dims)
            found = found.to(kernel.lengthscale)
            found.outputscale = kernel.outputscale
        found.lengthscale = self.lengthscale * kernel.lengthscale
        return found.requires_grad_(False)


class ImportanceWeightedFourier(Basis):
    """Random Fourier features of a proposal, with prior variances g that make them fit ``kernel``.

    k(x, z) ~= phi(x)^T diag(g) phi(z), g the ratio of the spectral densities at the frequencies.
    The kernel's hyperparameters change g only, not phi and its sums over the data.

    Args:
        kernel: stationary with lengthscales and a spectral density; stays trainable.
        num_basis: m, even.
        num_inputs: d.
        seed: of the frequencies.
        proposal: the kernel for which they are drawn, relative to ``kernel``.

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
        _ = self.weights()  # raises now for a kernel without a spectral density

    def draw(self) -> None:
        """Draw the frequencies for the current kernel, from the same random numbers."""
        self.features.kernel = self.proposal.of(self.kernel)

    def weights(self) -> ImportanceWeights:
        """log g (m,), differentiable in the kernel, and the effective number of frequencies."""
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
        """Draw the frequencies for the current kernel; ``generator`` is not used."""
        self.draw()
        return super().start(x, residual, noise, generator=generator, spent=spent)

    def log_variances(self) -> Tensor:
        """log g (m,), float64, differentiable in the kernel."""
        return self.weights().log_variances

    def mean_column_square(self) -> Tensor:
        """As in ``Basis``, of the features of the proposal."""
        return self.features.mean_column_square()

    def facts(self) -> dict[str, bool | int | float | str]:
        """The effective number of frequencies."""
        return {"effective_frequencies": float(self.weights().effective)}

    def warn_of_few(self) -> bool:
        """As in ``Basis``, judged by the effective number of frequencies."""
        return warn_of_few(self.weights().effective, self.num_basis)

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """As in ``Basis``; independent of ``kernel``."""
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
        """1 / g, float64, at most e^80, which float32 holds.

        With ``normalise`` all of them are computed.
        """
        if columns is None or self.proposal.normalise:
            logs = self.log_variances()
            logs = logs if columns is None else logs[columns]
        else:
            indices = self.features.waves_of(columns)[0]
            logs = log_ratios(self.features, self.kernel, indices, self.num_inputs)
        return (-logs.clamp_min(LEAST_LOG_VARIANCE)).exp()
