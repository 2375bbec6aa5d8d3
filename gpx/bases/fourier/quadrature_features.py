"""Deterministic spectral points: quasi-Monte-Carlo and Gauss-Hermite Fourier features."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpx.bases.base import SelectedBlocks
from gpx.bases.counter_random import words_at
from gpx.bases.fourier.random_fourier import RandomFourier
from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.rbf import RBF

SHIFT_STREAM = 0x48414C54
INDEX_BITS = 40
"""Halton indices are below 2^40."""
MAX_NODES = 64
"""Largest number of nodes per input; with more, Gauss-Hermite weights underflow."""


def primes(count: int) -> list[int]:
    """The first ``count`` primes."""
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % p for p in found if p * p <= candidate):
            found.append(candidate)
        candidate += 1
    return found


def halton(indices: Tensor, count: int) -> Tensor:
    """Halton points ``indices`` (r,) >= 0 in ``count`` dimensions: (r, count) float64 in (0, 1).

    The radical inverse of index + 1 in the first primes; O(count log index) per point.
    """
    columns = []
    for base in primes(count):
        rest, value, weight = indices + 1, torch.zeros_like(indices, dtype=torch.float64), 1.0
        for _ in range(math.ceil(INDEX_BITS / math.log2(base))):
            weight /= base
            value = value + weight * (rest % base).double()
            rest = rest // base
        columns.append(value)
    return torch.stack(columns, dim=1)


class QuasiMonteCarloFourier(RandomFourier):
    """Fourier features at randomly shifted Halton points of the spectral distribution.

    Normals come from points that fill the cube evenly; a random shift modulo one (from ``seed``)
    gives every single frequency its exact distribution, so that the kernel approximation is
    unbiased. Its error is nearer m^-1 than m^-1/2 in few dimensions. Beyond about 15 normals per
    frequency the points are uneven unless very many: use orthogonal features. Nothing is stored,
    any subset costs only itself. Arguments as ``RandomFourier``.

    Source: Avron et al., "Quasi-Monte Carlo feature maps for shift-invariant kernels", JMLR 2016;
    Cranley and Patterson 1976 for the shift.
    """

    def draws(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """Normals (r, q) behind frequencies ``indices`` (r,), at shifted Halton points."""
        count = self.kernel.num_spectral_normals(num_inputs)
        words = words_at(self.seed, SHIFT_STREAM, torch.arange(count, device=indices.device))[0]
        shift = (words.double() + 0.5) * 2.0**-32
        uniform = (halton(indices, count) + shift).frac().clamp(2.0**-53, 1.0 - 2.0**-53)
        return (math.sqrt(2.0) * torch.special.erfinv(2.0 * uniform - 1.0)).to(dtype)


class GaussHermiteFourier(InDoublePrecision, RandomFourier):
    """Fourier features at the nodes of a Gauss-Hermite product rule: few inputs, smooth kernels.

    With q nodes per input (even) the rule has q^d frequencies, of which one of each pair (w, -w) is
    kept: m = q^d columns scaled by the square root of their weight, prior N(0, I). It is exact for
    polynomials of the frequency of degree 2 q - 1 in each input: the kernel error falls faster than
    exponentially in q at lags below about sqrt(q) lengthscales; at larger lags the features repeat
    and the error is large.

    Args:
        kernel: RBF with ``ard_num_dims`` (it fixes d).
        num_basis: m = q^d with q even, at most 64.
        seed, block_frequencies: as ``RandomFourier``; nodes have no spread.

    Raises:
        ConfigError: another kernel, an unknown d, or another m.

    Source: Dao, De Sa and Re, "Gaussian quadrature for kernel features", NeurIPS 2017.
    """

    in_double = ("points", "weights")
    points: Tensor
    weights: Tensor
    num_inputs: int

    def __init__(
        self,
        kernel: Kernel,
        num_basis: int,
        seed: int = 0,
        block_frequencies: int = 500,
    ) -> None:
        if not isinstance(kernel, RBF) or kernel.ard_num_dims is None:
            raise ConfigError(
                "Gauss-Hermite features need kernel=RBF() with ard_num_dims (one lengthscale per "
                "input); for other kernels use random, orthogonal or quasi-Monte-Carlo features"
            )
        d = kernel.ard_num_dims
        nodes = round(num_basis ** (1.0 / d))
        if nodes**d != num_basis or nodes % 2 or nodes > MAX_NODES:
            even = max(2, min(MAX_NODES, 2 * round(nodes / 2)))
            raise ConfigError(
                f"num_basis={num_basis}: a Gauss-Hermite rule in {d} inputs has q^{d} functions "
                f"for an even q up to {MAX_NODES}; the nearest is {even**d}"
            )
        super().__init__(kernel, num_basis, seed, block_frequencies)
        self.nodes, self.num_inputs = nodes, d
        points, weights = np.polynomial.hermite_e.hermegauss(nodes)
        weights = weights / weights.sum()
        self.register_buffer("points", torch.from_numpy(points), persistent=False)
        self.register_buffer("weights", torch.from_numpy(weights), persistent=False)

    def _digits(self, indices: Tensor) -> Tensor:
        """Node numbers (r, d); the first input takes its positive half only."""
        half = self.nodes // 2
        digits = [half + indices % half]
        rest = indices // half
        for _ in range(self.num_inputs - 1):
            digits.append(rest % self.nodes)
            rest = rest // self.nodes
        return torch.stack(digits, dim=1)

    def frequency_weights(self, indices: Tensor) -> Tensor:
        """Weights (r,) of the kept frequencies, float64; they sum to one over all m / 2."""
        return 2.0 * self.weights[self._digits(indices)].prod(1)

    def draws(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """Nodes (r, d) of frequencies ``indices`` (r,), in units of a standard normal."""
        return self.points[self._digits(indices)].to(dtype)

    def selected(self, blocks: Tensor, x: Tensor) -> SelectedBlocks:
        """As in ``Basis``, without products on the fly: features have individual weights."""
        return SelectedBlocks(self, blocks)

    def _relative(self, indices: Tensor, dtype: torch.dtype) -> Tensor:
        """sqrt(weight / mean weight) of frequencies: their factor relative to the common scale."""
        return (self.frequency_weights(indices) * (self.num_basis / 2)).sqrt().to(dtype)

    def _heights(self, indices: Tensor) -> Tensor:
        """As in ``RandomFourier``."""
        return self._relative(indices, torch.float64)

    def block_features(self, x: Tensor, blocks: Tensor) -> Tensor:
        """Features of whole blocks: (n, L * block_size)."""
        relative = self._relative(self._frequency_indices(blocks), x.dtype)
        return super().block_features(x, blocks) * self.by_column(relative)

    def features_of(self, blocks: Tensor) -> Callable[[Tensor], Tensor]:
        """As in ``Basis``; frequencies are read from the table of nodes, nothing is kept."""
        return lambda x: self.block_features(x, blocks)

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """phi(x) at any columns; (n, len(columns)) or (n, m)."""
        found = super().forward(x, columns)
        if columns is None:  # ``block_features`` has weighted them
            return found
        return found * self._relative(self.waves_of(columns)[0], x.dtype)
