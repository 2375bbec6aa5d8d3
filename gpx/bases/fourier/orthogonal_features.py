"""Fourier features from orthogonal and from Hadamard matrices: ORF, SORF and Fastfood."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gpx.bases.counter_random import standard_normals
from gpx.bases.fourier.random_fourier import RandomFourier
from gpx.bases.random_directions import ROWS, Directions, padded


class _TiedFourier(RandomFourier):
    """Random Fourier features whose directions come in groups.

    Only the first d normals of a frequency are changed; the denominators of Matern frequencies stay
    independent of each other.
    """

    directions: ClassVar[Directions]

    def first_denominator(self, num_inputs: int) -> int:
        """Number of the first normal of a frequency that is no part of its direction and length."""
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
    unbiased and has lower variance than independent frequencies at every lag that matters (up to
    about a lengthscale). Arguments as ``RandomFourier``.

    Cost and source: ``orthogonal_rows``.
    """

    directions = "orthogonal"


class StructuredOrthogonalFourier(_TiedFourier):
    """Structured orthogonal features: rows of H D1 H D2 H D3 instead of a Gram-Schmidt process.

    No O(d^3) work and no stored matrix, for many inputs (images); slightly biased, by O(1 / sqrt D)
    with D the next power of two from d on, so for few inputs ``OrthogonalFourier`` is the better
    choice. With Matern kernels a d that is no power of two adds to the bias: lengths and
    denominators then share normals, which stored runs rely on. Arguments as ``RandomFourier``.

    Cost and source: ``structured_rows``.
    """

    directions = "structured"


class FastfoodFourier(_TiedFourier):
    """Fastfood: frequencies that cost O(log d) an entry, each with exactly the right distribution.

    Unbiased, at an error above that of independent frequencies (at d = 64 and 4 d frequencies 1.7
    times the mean square), where structured orthogonal features of the same cost are below it: for
    comparisons. Arguments as ``RandomFourier``.

    Cost and source: ``fastfood_rows``.
    """

    directions = "fastfood"

    def first_denominator(self, num_inputs: int) -> int:
        """Lengths take the normals of the padded dimension."""
        return padded(num_inputs)
