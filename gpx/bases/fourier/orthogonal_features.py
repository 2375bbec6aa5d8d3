"""Fourier features from orthogonal and from Hadamard matrices: ORF, SORF and Fastfood."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gpx.bases.counter_random import standard_normals
from gpx.bases.fourier.random_fourier import RandomFourier
from gpx.bases.random_directions import ROWS, Directions, next_power_of_two


class _TiedFourier(RandomFourier):
    """Random Fourier features whose directions are drawn in groups.

    Only the first d normals of a frequency are affected; the denominators of Matern frequencies
    stay independent.
    """

    directions: ClassVar[Directions]

    def first_denominator(self, num_inputs: int) -> int:
        """Index of a frequency's first normal that does not determine its direction and length."""
        return num_inputs

    def draws(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """Normals (r, q) behind frequencies ``indices`` (r,)."""
        rows = ROWS[self.directions](self.seed, indices, num_inputs)
        more = self.kernel.num_spectral_normals(num_inputs) - num_inputs
        first = self.first_denominator(num_inputs)
        rest = standard_normals(self.seed, indices, first + more)[:, first:]
        return torch.cat((rows, rest), dim=1).to(dtype)


class OrthogonalFourier(_TiedFourier):
    """Orthogonal random features: frequencies of a group of d have orthogonal directions.

    Every frequency still has exactly the spectral distribution: the kernel approximation is
    unbiased and has lower variance than with independent frequencies at lags up to about a
    lengthscale. Arguments as ``RandomFourier``.

    Cost and source: ``orthogonal_rows``.
    """

    directions = "orthogonal"


class StructuredOrthogonalFourier(_TiedFourier):
    """Structured orthogonal features: rows of H D1 H D2 H D3 instead of a Gram-Schmidt process.

    For many inputs (images): no O(d^3) work and no stored matrix. Slightly biased, by O(1 / sqrt D)
    with D the next power of two; for few inputs ``OrthogonalFourier`` is better. With Matern
    kernels a d that is not a power of two adds to the bias, since lengths and denominators share
    normals (kept for the sake of stored runs). Arguments as ``RandomFourier``.

    Cost and source: ``structured_rows``.
    """

    directions = "structured"


class FastfoodFourier(_TiedFourier):
    """Fastfood: frequencies that cost O(log d) an entry, each with exactly the right distribution.

    For comparisons: unbiased, but with a larger error than independent frequencies (1.7 times the
    mean square at d = 64 and 4 d frequencies), unlike structured orthogonal features of the same
    cost. Arguments as ``RandomFourier``.

    Cost and source: ``fastfood_rows``.
    """

    directions = "fastfood"

    def first_denominator(self, num_inputs: int) -> int:
        """Lengths take the normals of the padded dimension."""
        return next_power_of_two(num_inputs)
