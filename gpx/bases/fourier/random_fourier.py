"""Random Fourier features of a stationary kernel, any column on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor

from gpx.bases.base import Basis, SelectedBlocks, check_inputs, largest_divisor
from gpx.bases.closed_forms import Waves
from gpx.bases.counter_random import KnownRows, standard_normals
from gpx.bases.fourier.products import FourierForm, FourierProducts, FourierSquares
from gpx.bases.fourier.spread import (
    check_spreadable,
    drawn_spreads,
    resolve_spread,
    spread_weights,
    warn_of_wide_spread,
)
from gpx.bases.fourier.trigonometric import trigonometric_features
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary
from gpx.tensor_checks import check_at_least

CHUNK_ENTRIES = 1 << 20
"""Entries of frequencies whose prior variances are evaluated at once."""

SAMPLED_FUNCTIONS = 4096
"""Number of functions from which the effective share of all of them is estimated."""


class RandomFourier(Basis):
    """cos and sin of m / 2 random frequencies, scaled so that the weight prior is N(0, I).

    k(x, z) ~= phi(x)^T phi(z) with phi = sqrt(2 outputscale / m) [cos(w_r^T x), sin(w_r^T x)]; the
    approximation is stationary for every m, exact at x = z, and its error falls like m^-1/2.

    Layout: blocks of 2F columns, first the F cosines, then the F sines of frequencies
    b F .. b F + F - 1. F is the largest divisor of m / 2 not above ``block_frequencies``.

    Nothing of size m is stored: frequency r comes from row r of a counter-based generator
    (seed, r), so any subset costs only itself, and the same seed gives the same basis everywhere.
    Frequencies are differentiable in the lengthscales, features also in the outputscale.

    Args:
        kernel: one with a spectral sampler and an ``outputscale`` (RBF, Matern).
        num_basis: m, even.
        seed: of the frequencies.
        block_frequencies: upper limit of F; num_basis / 2 needs a divisor of about that size.
        spread: factors by which frequencies are stretched beyond the spectral density, each for an
            equal share of them; the prior variances 1 / S of the weights compensate
            (``spread_weights``), so that the kernel stays unbiased, while k(x, x) varies a little.
            ``auto``: factors by the kind of kernel (``automatic_spread``). Useful for data of small
            noise, which determine more functions of high frequency than the prior contains: fewer
            functions then give the same posterior. For RBF and Matern kernels with
            ``ard_num_dims``, alone or scaled.

    Raises:
        ConfigError: m is odd or below 2 or would make blocks of one frequency, the kernel has no
            spectral sampler, or a spread other than one does not fit it (``check_spreadable``).

    Source: Rahimi and Recht 2007; Evans thesis, chapter 5 (rescaled to S = I). Where to draw:
        Avron et al., "Random Fourier features for kernel ridge regression", ICML 2017.
    """

    parts = 2  # cosines and sines
    fixed_shapes = True
    kernel: Kernel

    def __init__(
        self,
        kernel: Kernel,
        num_basis: int,
        seed: int = 0,
        block_frequencies: int = 500,
        spread: Literal["auto"] | float | Sequence[float] = 1.0,
    ) -> None:
        super().__init__()
        if num_basis < 2 or num_basis % 2:
            raise ConfigError(
                f"num_basis={num_basis}: random Fourier features come in pairs of a cosine and a "
                "sine, so it must be even and at least 2"
            )
        check_at_least(1, block_frequencies=block_frequencies)
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed={seed} of the frequencies must be in [0, 2^64)")
        self.kernel = kernel
        self.num_inputs = kernel.ard_num_dims if isinstance(kernel, Stationary) else None
        self.num_basis = num_basis
        self.seed = seed
        self.per_block = largest_divisor(num_basis // 2, block_frequencies)
        self.block_size = 2 * self.per_block
        if self.per_block == 1 and block_frequencies > 1 and num_basis > 2:
            raise ConfigError(
                f"num_basis={num_basis} would make blocks of a single frequency, because "
                f"num_basis / 2 = {num_basis // 2} has no divisor up to block_frequencies="
                f"{block_frequencies}; choose a num_basis with one, such as a round number"
            )
        self._known = KnownRows()
        self.spread = resolve_spread(spread, kernel)
        self.kernel.num_spectral_normals(1)  # raises now for a kernel without a sampler
        if self.spread != (1.0,):
            check_spreadable(kernel)
            columns = torch.arange(min(num_basis, SAMPLED_FUNCTIONS))
            variances = self.precision_diagonal(columns).double().reciprocal()
            warn_of_wide_spread(self.spread, variances, num_basis)

    @property
    def _outputscale(self) -> Tensor:
        return cast(Tensor, self.kernel.outputscale)

    def draws(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """Standard normals (r, q) of frequencies ``indices`` (r,)."""
        count = self.kernel.num_spectral_normals(num_inputs)
        return standard_normals(self.seed, indices, count, dtype=dtype)

    def normals(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """``draws`` stretched by the factors of ``spread``: (r, q); independent of hyperparameters.

        On a GPU they are read from a table of all frequencies if it fits: generating them takes a
        hundred launches.
        """
        if indices.is_cuda:
            shape = self.num_basis // 2, self.kernel.num_spectral_normals(num_inputs)
            table = self._known.of(
                shape, dtype, indices.device, lambda rows: self._generate(rows, num_inputs, dtype)
            )
            if table is not None:
                return table[indices]
        return self._generate(indices, num_inputs, dtype)

    def _generate(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """``normals``, generated."""
        draws = self.draws(indices, num_inputs, dtype)
        if self.spread == (1.0,):
            return draws
        factors = drawn_spreads(self.seed, indices, self.spread).to(draws.dtype)
        return torch.cat((factors[:, None] * draws[:, :num_inputs], draws[:, num_inputs:]), 1)

    def frequencies(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """Angular frequencies (r, d) of ``indices`` (r,); differentiable in the lengthscales."""
        normals = self.normals(indices, num_inputs, dtype)
        return self.kernel.spectral_frequencies(normals).to(dtype)

    def _frequency_indices(self, blocks: Tensor) -> Tensor:
        within = torch.arange(self.per_block, device=blocks.device)
        return (blocks[:, None] * self.per_block + within).reshape(-1)

    def waves_of(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """For ``columns`` (r,) the indices of their frequencies, and their places in the blocks."""
        block, within = columns // self.block_size, columns % self.block_size
        return block * self.per_block + within % self.per_block, within

    def by_column(self, values: Tensor) -> Tensor:
        """Values (L F,) per frequency of L blocks as values per column: (2 L F,)."""
        return values.view(-1, 1, self.per_block).expand(-1, 2, -1).reshape(-1)

    def selected(self, blocks: Tensor, x: Tensor) -> SelectedBlocks:
        """As in ``Basis``; frequencies are generated once, products computed tile by tile."""
        check_inputs(x, "RandomFourier")
        indices = self._frequency_indices(blocks)
        return SelectedFrequencies(self, blocks, self.normals(indices, x.shape[1], x.dtype))

    def scale(self, dtype: torch.dtype) -> Tensor:
        """sqrt(2 outputscale / m), 0-d."""
        return (2.0 / self.num_basis * self._outputscale).sqrt().to(dtype)

    def block_features(self, x: Tensor, blocks: Tensor) -> Tensor:
        """Features of whole blocks: (n, L * block_size), a view of a column-major buffer.

        Cost: O(n L F d) and 2 n L F trigonometric functions; memory the result and half of it.
        """
        check_inputs(x, "RandomFourier")
        return trigonometric_features(x, self._stacked(x, blocks), self.scale(x.dtype))

    def _stacked(self, x: Tensor, blocks: Tensor) -> Tensor:
        """Frequencies (L, F, d) of ``blocks`` (L,) for inputs like x."""
        frequencies = self.frequencies(self._frequency_indices(blocks), x.shape[1], x.dtype)
        return frequencies.view(blocks.shape[0], self.per_block, x.shape[1])

    def features_of(self, blocks: Tensor) -> Callable[[Tensor], Tensor]:
        """As in ``Basis``; frequencies are generated once for every dtype, L F d numbers."""
        known: dict[tuple[torch.dtype, int], tuple[Tensor, Tensor]] = {}

        def features(x: Tensor) -> Tensor:
            check_inputs(x, "RandomFourier")
            kind = x.dtype, x.shape[1]
            if kind not in known:
                with torch.no_grad():
                    known[kind] = self._stacked(x, blocks), self.scale(x.dtype)
            return trigonometric_features(x, *known[kind])

        return features

    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """phi(x) at any columns; (n, len(columns)) or (n, m).

        Cost: O(n len(columns) d) time, O((n + d) len(columns)) memory.
        """
        if columns is None:
            return self.block_features(x, torch.arange(self.num_blocks, device=x.device))
        check_inputs(x, "RandomFourier")
        indices, within = self.waves_of(columns)
        angles = x @ self.frequencies(indices, x.shape[1], x.dtype).T
        waves = torch.where(within < self.per_block, torch.cos(angles), torch.sin(angles))
        return waves * self.scale(x.dtype)

    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """S: one (the features carry the prior scale) divided by the weights of ``spread``."""
        like = next(self.parameters())
        count = self.num_basis if columns is None else columns.shape[0]
        if self.spread == (1.0,):
            return torch.ones(count, dtype=like.dtype, device=like.device)
        if columns is None:
            every = torch.arange(self.num_basis // 2, device=like.device)
            variances = self.by_column(self._prior_variances(every))
        else:
            variances = self._prior_variances(self.waves_of(columns)[0])
        return variances.reciprocal().to(like)

    def block_precision(self, blocks: Tensor) -> Tensor:
        """As in ``Basis``; ones need no column numbers."""
        if self.spread != (1.0,):
            return super().block_precision(blocks)
        like = next(self.parameters())
        count = blocks.shape[0] * self.block_size
        return torch.ones(count, dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def _prior_variances(self, indices: Tensor) -> Tensor:
        """Prior variances of the weights of frequencies ``indices`` (r,), float64; O(r d)."""
        one = torch.ones(1, self.kernel.spectral_normals, device=indices.device)
        inputs = self.kernel.spectral_frequencies(one).shape[1]
        pieces = [
            spread_weights(self.kernel, self.frequencies(piece, inputs, torch.float64), self.spread)
            for piece in indices.split(max(1, CHUNK_ENTRIES // inputs))
        ]
        return torch.cat(pieces)

    @torch.no_grad()
    def closed_form(self, num_inputs: int) -> Waves:
        """As in ``Basis``."""
        columns = torch.arange(self.num_basis, device=self._outputscale.device)
        indices, within = self.waves_of(columns)
        turns = self.frequencies(indices, num_inputs, torch.float64) / (2.0 * math.pi)
        heights = self.scale(torch.float64) * self._heights(indices)
        return Waves(turns, 0.75 * (within >= self.per_block).double(), heights)

    def _heights(self, indices: Tensor) -> Tensor:
        """Amplitudes (r,) of frequencies, relative to ``scale``; float64."""
        return torch.ones_like(indices, dtype=torch.float64)

    def mean_column_square(self) -> Tensor:
        """Expected phi_r(x)^2 over a cosine and sine pair: outputscale / m, exact; 0-d."""
        return self._outputscale / self.num_basis


class SelectedFrequencies(SelectedBlocks):
    """Blocks (L,) of cosines and sines whose frequencies are generated once.

    The standard normals of the frequencies do not depend on hyperparameters: ``split`` and ``of``
    reuse them. The feature matrix is evaluated in tiles that stay in the cache.

    Args:
        basis: its owner.
        blocks (L,): block numbers.
        normals (L F, q): of their frequencies.
        known: frequencies (L F, d) and scale (), if already evaluated.
    """

    basis: RandomFourier

    def __init__(
        self,
        basis: RandomFourier,
        blocks: Tensor,
        normals: Tensor,
        known: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(basis, blocks)
        self.normals = normals
        if known is None:
            frequencies = basis.kernel.spectral_frequencies(normals).to(normals.dtype)
            known = frequencies, basis.scale(normals.dtype)
        self.frequencies, self.scale = known

    def split(self, sizes: Sequence[int]) -> list[SelectedBlocks]:
        """Parts of ``sizes`` blocks, in order."""
        rows = [size * self.basis.per_block for size in sizes]
        parts = self.blocks.split(list(sizes)), self.normals.split(rows)
        return [
            SelectedFrequencies(self.basis, blocks, normals, (frequencies, self.scale))
            for blocks, normals, frequencies in zip(
                *parts, self.frequencies.split(rows), strict=True
            )
        ]

    def of(self, basis: Basis) -> SelectedBlocks:
        """The same blocks of a copy of the basis at other hyperparameters."""
        assert isinstance(basis, type(self.basis))
        return SelectedFrequencies(basis, self.blocks, self.normals)

    def _by_wave(self, weights: Tensor) -> Tensor:
        """Weights (L W, k) with all cosines before all sines: (2, L F, k)."""
        blocks, per_block = self.blocks.shape[0], self.basis.per_block
        ordered = weights.view(blocks, 2, per_block, -1).transpose(0, 1)
        return ordered.reshape(2, blocks * per_block, weights.shape[1])

    def _room(self, x: Tensor, keep: list[Tensor] | None) -> Tensor | None:
        """Memory (2, L F, n) for the features, appended to ``keep``; None without it."""
        if keep is None:
            return None
        keep.append(x.new_empty(2, self.frequencies.shape[0], x.shape[0]))
        return keep[-1]

    def products(self, x: Tensor, weights: Tensor, keep: list[Tensor] | None = None) -> Tensor:
        """As in ``SelectedBlocks``; O(n L F (d + k)) time; see ``FourierProducts``."""
        room = self._room(x, keep)
        return FourierProducts.apply(x, self.frequencies, self.scale, self._by_wave(weights), room)

    def form(
        self, x: Tensor, weights: Tensor, direction: Tensor, keep: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As in ``SelectedBlocks``, with value and gradients in one pass; see ``FourierForm``."""
        room = self._room(x, keep)
        return FourierForm.apply(
            x, self.frequencies, self.scale, self._by_wave(weights), direction, room
        )

    def column_squares(self, x: Tensor) -> Tensor:
        """As in ``SelectedBlocks``; one cosine per frequency and row."""
        sums = FourierSquares.apply(x, self.frequencies, self.scale)
        ordered = sums.view(2, self.blocks.shape[0], self.basis.per_block).transpose(0, 1)
        return ordered.reshape(-1)

    @torch.no_grad()
    def carry(self, total: Tensor, kept: Tensor, change: Tensor) -> None:
        """As in ``SelectedBlocks``."""
        scaled = self._by_wave(change) * self.scale
        total += kept.flatten(0, 1).T @ scaled.flatten(0, 1)
