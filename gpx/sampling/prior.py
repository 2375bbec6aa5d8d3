"""Functions drawn from a stationary prior, as sums of random Fourier features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.errors import ConfigError, NoSpectrum
from gpx.kernels.base import Kernel
from gpx.kernels.own_covariance import computes_as
from gpx.kernels.warped import Warped
from gpx.tensor_checks import check_alike

CHUNK_BYTES = 1 << 28
"""Phases, cosines and sines held at once."""

GIVEN_ROWS = "; draws at given rows need none:"
"""How advice on kernels without features begins."""


@dataclass(frozen=True)
class Frequencies:
    """Number of random frequencies of drawn functions, and whether the functions share them.

    The covariance of functions that share F frequencies is an average of F cosines, not the
    kernel: at any two inputs its standard error, over calls, is at most k(0) / sqrt(2 F) for a
    kernel whose correlations r are those of an RBF or Matern kernel (whenever r(2 t) <= 2 r(t)^2),
    and at most k(0) / sqrt(F) for any. The error is the same for all functions of one call, so
    drawing more of them does not average it out. With separate frequencies for every path it does:
    averages over many paths of one call then have the kernel's covariance, apart from Monte Carlo
    error, while each single path is no closer to Gaussian.

    Args:
        count: F. 2,048: 1.6 % of k(0); 20,000: 0.5 %.
        per_path: draw F new frequencies for every path.

    Cost per row: O(F (d + num)) for num paths; ``per_path`` O(F d num).
    """

    count: int = 2048
    per_path: bool = False

    def __post_init__(self) -> None:
        """Check the count."""
        if self.count < 1:
            raise ConfigError(f"at least one frequency is needed, got {self.count}")

    @property
    def covariance_error(self) -> float:
        """Standard error of covariances between the paths of one call, in units of k(0).

        The bound for RBF and Matern kernels; 0 for ``per_path``, whose errors average out.
        """
        return 0.0 if self.per_path else math.sqrt(0.5 / self.count)


SHARED = Frequencies()
"""The default: 2,048 frequencies shared by all paths of a call."""


def prior_functions(
    kernel: Kernel,
    num: int,
    num_inputs: int,
    *,
    generator: torch.Generator,
    frequencies: Frequencies = SHARED,
) -> PriorFunctions:
    """``num`` zero-mean functions of approximately this covariance: x (n, d) -> (num, n).

    f(x) = sqrt(k(0) / F) sum_i a_i cos(w_i . x) + b_i sin(w_i . x) with standard normal a, b and F
    spectral frequencies w. For a sum of kernels the functions of its parts are added, with numbers
    of frequencies proportional to their variances, which gives the same error as for one kernel.

    Args:
        kernel: stationary with a spectral sampler, a sum of such kernels, or such a kernel of
            warped inputs; its dtype and device are used.
        num: number of functions.
        num_inputs: d.
        generator: on the kernel's device.
        frequencies: how many, and whether shared.

    Raises:
        ConfigError: a kernel has no spectral sampler, or ``num`` is below 1.

    Cost: see ``Frequencies``; memory of the result and ``CHUNK_BYTES``.
    """
    if num < 1:
        raise ConfigError(f"at least one function must be drawn, got {num}")
    if isinstance(kernel, Warped) and computes_as(kernel, Warped):
        like = next(kernel.parameters(), torch.empty(0))
        with torch.no_grad():
            width = kernel.warped(like.new_zeros(1, num_inputs)).shape[1]
        inner = prior_functions(
            kernel.kernel, num, width, generator=generator, frequencies=frequencies
        )
        within = inner.warp
        warp = kernel.warped if within is None else _Composed(kernel.warped, within)
        return replace(inner, warp=warp)
    sizes = [1] * num if frequencies.per_path else [num]
    try:
        return PriorFunctions(
            [_Waves.draw(kernel, size, num_inputs, frequencies.count, generator) for size in sizes]
        )
    except NoSpectrum as error:
        raise NoSpectrum(
            f"{error}{GIVEN_ROWS} fitted.sample(x, num, jointly=True), in a loop of your own "
            "posterior.sample(x, num, generator=...)"
        ) from error


@dataclass(frozen=True)
class PriorFunctions:
    """Drawn functions, differentiable in x; see ``prior_functions``."""

    waves: list[_Waves]
    warp: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Values (num, n) at x (n, d)."""
        if self.warp is not None:
            x = self.warp(x)
        return torch.cat([waves(x) for waves in self.waves])

    def each(self, x: Tensor) -> Tensor:
        """Values (num, r) of function i at its own inputs x[i], x (num, r, d).

        Cost: O(F (d + 1)) per value, a factor of num less than a call at all inputs.
        """
        if self.warp is not None:
            x = self.warp(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        sizes = [waves.weights.shape[0] for waves in self.waves]
        parts = zip(self.waves, x.split(sizes), strict=True)
        return torch.cat([waves.each(rows) for waves, rows in parts])


@dataclass(frozen=True)
class _Composed:
    """x -> inner(outer(x)): the inputs of a warped kernel within a warped one."""

    outer: Callable[[Tensor], Tensor]
    inner: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(self.outer(x))


@dataclass(frozen=True)
class _Waves:
    """Functions that share their frequencies (F, d), whose waves have scales (F,).

    The weights (num, 2 F) of the cosines and sines include the scales.
    """

    frequencies: Tensor
    scales: Tensor
    weights: Tensor

    @classmethod
    @torch.no_grad()
    def draw(
        cls, kernel: Kernel, num: int, num_inputs: int, count: int, generator: torch.Generator
    ) -> _Waves:
        like = next(kernel.parameters(), torch.empty(0))
        origin = torch.zeros(1, num_inputs, dtype=like.dtype, device=like.device)
        parts = [(part, scale * part.diagonal(origin)) for part, scale in kernel.summands()]
        variances = torch.cat([variance for _, variance in parts])
        total = variances.sum()
        # rounded up, so that every part has at least its share of frequencies
        shares = torch.where(total > 0, variances / total, 1.0 / len(parts)) * count
        frequencies, scales = [], []
        for (part, variance), share in zip(parts, shares.tolist(), strict=True):
            found = part.draw_frequencies(max(1, math.ceil(share)), num_inputs, generator=generator)
            frequencies.append(found)
            scales.append((variance / found.shape[0]).sqrt().expand(found.shape[0]))
        scale = torch.cat(scales)
        weights = like.new_empty(num, 2 * scale.shape[0]).normal_(generator=generator)
        return cls(torch.cat(frequencies), scale, weights.mul_(torch.cat([scale, scale])))

    def __call__(self, x: Tensor) -> Tensor:
        """(n, d) -> (num, n), in chunks of rows.

        Raises:
            DTypeError: x has another precision or device than the functions.
        """
        check_alike("sampled functions and the inputs given to them", self.weights, x)
        row = 3 * self.frequencies.shape[0] * x.element_size()
        cosines, sines = self.weights.chunk(2, 1)
        parts = []
        for rows in row_chunks(x.shape[0], row, CHUNK_BYTES):
            phase = self.frequencies @ x[rows].mT
            parts.append(torch.addmm(cosines @ phase.cos(), sines, phase.sin()))
        return torch.cat(parts, 1) if parts else x.new_zeros(self.weights.shape[0], 0)

    def each(self, x: Tensor) -> Tensor:
        """(num, r, d) -> (num, r)."""
        phase = x @ self.frequencies.mT
        cosines, sines = self.weights.unsqueeze(2).chunk(2, 1)
        return torch.baddbmm(phase.cos() @ cosines, phase.sin(), sines).squeeze(2)
