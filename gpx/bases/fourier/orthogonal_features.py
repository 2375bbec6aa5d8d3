"""Random Fourier features whose directions are orthogonal within groups: ORF and SORF."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.bases.counter_random import philox4x32, standard_normals
from gpx.bases.fourier.random_fourier import RandomFourier

MASK = 0xFFFFFFFF
SIGN_STREAM = 0x5349474E
"""Second key word of the sign stream, so that signs and normals of one seed are independent."""


class OrthogonalFourier(RandomFourier):
    """Orthogonal random features: frequencies of a group of d have orthogonal directions.

    Each group is a matrix of d x d normals from the counter-based generator; its rows are made
    orthogonal (Gram-Schmidt) and keep their lengths. Directions after Gram-Schmidt depend on
    directions alone, so every frequency still has exactly the spectral distribution: the kernel
    approximation is unbiased and has lower variance than independent frequencies at every lag
    that matters (up to about a lengthscale). Only the first d normals of a frequency are changed;
    the denominators of Matern frequencies stay independent. Arguments as ``RandomFourier``.

    Cost: O(r d^2) to generate r frequencies of whole groups; a lone frequency costs its group. The
    groups asked for are made unique (one host synchronisation on a GPU).
    Source: Yu et al., "Orthogonal random features", NeurIPS 2016.
    """

    def draws(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """Normals (r, q) behind frequencies ``indices`` (r,), directions orthogonal in groups."""
        count = self.spectral.num_spectral_normals(num_inputs)
        normals = standard_normals(self.seed, indices, count)
        groups, place = torch.unique(indices // num_inputs, return_inverse=True)
        within = torch.arange(num_inputs, device=indices.device)
        rows = (groups[:, None] * num_inputs + within).reshape(-1)
        square = standard_normals(self.seed, rows, num_inputs).view(-1, num_inputs, num_inputs)
        q, r = torch.linalg.qr(square.mT)
        # the sign makes it Gram-Schmidt (r_ii > 0), which keeps the distribution of directions
        directions = (q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)).mT
        rotated = directions[place, indices % num_inputs] * square[
            place, indices % num_inputs
        ].norm(dim=1, keepdim=True)
        return torch.cat((rotated, normals[:, num_inputs:]), dim=1).to(dtype)


class StructuredOrthogonalFourier(RandomFourier):
    """Structured orthogonal features: rows of H D1 H D2 H D3 instead of a Gram-Schmidt process.

    H is the Walsh-Hadamard matrix of the next power of two D >= d, the D are random signs from the
    counter-based generator; rows are scaled by chi-distributed lengths and cut to d entries. No
    O(d^3) work and no stored matrix, for many inputs (images); slightly biased, by O(1 / sqrt D),
    so for few inputs ``OrthogonalFourier`` is the better choice. Arguments as ``RandomFourier``.

    Cost: O(r D log D) to generate r frequencies, any subset alone.
    Source: Yu et al., "Orthogonal random features", NeurIPS 2016, section 4.
    """

    def draws(self, indices: Tensor, num_inputs: int, dtype: torch.dtype) -> Tensor:
        """Normals (r, q) behind frequencies ``indices`` (r,), directions orthogonal in groups."""
        size = 1 << max(0, (num_inputs - 1).bit_length())
        count = self.spectral.num_spectral_normals(num_inputs)
        normals = standard_normals(self.seed, indices, max(count, size))
        signs = random_signs(self.seed, indices // size, 3, size)
        rows = hadamard_rows(indices % size, size)
        for k in range(3):
            rows = rows * signs[:, k]
            if k < 2:
                rows = hadamard_transform(rows) / math.sqrt(size)
        length = normals[:, :size].norm(dim=1, keepdim=True)
        rotated = (rows * (length / math.sqrt(size)))[:, :num_inputs]
        return torch.cat((rotated, normals[:, num_inputs:count]), dim=1).to(dtype)


def random_signs(seed: int, groups: Tensor, count: int, size: int) -> Tensor:
    """Independent signs +-1 addressed by (seed, group): (r, count, size) float64."""
    quads = -(-size // 4)
    group = groups[:, None, None]
    layer = torch.arange(count, device=groups.device)[None, :, None]
    quad = torch.arange(quads, device=groups.device)[None, None, :]
    key = (seed & MASK, ((seed >> 32) & MASK) ^ SIGN_STREAM)
    words = philox4x32((group & MASK, group >> 32, quad, layer), key)  # (4, r, count, quads)
    bits = words.permute(1, 2, 3, 0).reshape(groups.shape[0], count, 4 * quads) & 1
    return 2.0 * bits[:, :, :size].double() - 1.0


def hadamard_rows(rows: Tensor, size: int) -> Tensor:
    """Rows of the Walsh-Hadamard matrix, (-1)^popcount(i & j): (r, size) float64; entries +-1."""
    overlap = rows[:, None] & torch.arange(size, device=rows.device)
    parity = torch.zeros_like(overlap)
    for bit in range(max(1, size.bit_length())):
        parity ^= (overlap >> bit) & 1
    return 1.0 - 2.0 * parity.double()


def hadamard_transform(vectors: Tensor) -> Tensor:
    """H v for each row v of (r, size), size a power of two; O(r size log size)."""
    size = vectors.shape[1]
    width = 1
    while width < size:
        pairs = vectors.view(-1, size // (2 * width), 2, width)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        vectors = torch.stack((first + second, first - second), dim=2).reshape(-1, size)
        width *= 2
    return vectors
