"""Random rows with the law of standard normals whose directions depend on each other.

Every row is addressed by (seed, index), and any subset is generated alone: group g of d rows (of
the next power of two, for Hadamard matrices) has indices g d .. g d + d - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gpx.bases.counter_random import standard_normals, words_at

SIGN_STREAM = 0x5349474E
"""Stream of the signs, which makes them independent of the normals of the same seed."""
PERMUTATION_STREAM = 0x5045524D
"""As SIGN_STREAM, of permutations."""
DIAGONAL_STREAM = 0x44494147
"""As SIGN_STREAM, of the Gaussian diagonal of Fastfood."""

Directions = Literal["independent", "orthogonal", "structured", "fastfood"]


Rows = Callable[[int, Tensor, int], Tensor]
"""(seed, indices (r,), d) -> rows (r, d), float64."""


def orthogonal_rows(seed: int, indices: Tensor, num_inputs: int) -> Tensor:
    """Rows with orthogonal directions in groups of d, each exactly a standard normal: (r, d).

    Each group is a matrix of d x d normals; its rows are made orthogonal (Gram-Schmidt) and keep
    their lengths, which are independent of the directions.

    Cost: O(r d^2) for whole groups; a single row costs its whole group. One host synchronisation on
    a GPU, to find the groups.
    Source: Yu et al., "Orthogonal random features", NeurIPS 2016.
    """
    groups, place = torch.unique(indices // num_inputs, return_inverse=True)
    within = torch.arange(num_inputs, device=indices.device)
    rows = (groups[:, None] * num_inputs + within).reshape(-1)
    square = standard_normals(seed, rows, num_inputs).view(-1, num_inputs, num_inputs)
    q, r = torch.linalg.qr(square.mT)
    # the signs make it Gram-Schmidt (r_ii > 0), with uniform directions; cosines do not depend on
    # the sign, but rectified units do
    directions = (q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)).mT
    place = place, indices % num_inputs
    return directions[place] * square[place].norm(dim=1, keepdim=True)


def structured_rows(seed: int, indices: Tensor, num_inputs: int) -> Tensor:
    """Rows of H D1 H D2 H D3, H the Walsh-Hadamard matrix of size D, D1 to D3 random signs: (r, d).

    D is the next power of two from d on; rows of a group are orthogonal before they are cut to d
    entries, have chi-distributed lengths, and are slightly biased, by O(1 / sqrt D).

    Cost: O(r D log D), any subset alone.
    Source: Yu et al., "Orthogonal random features", NeurIPS 2016, section 4.
    """
    size = next_power_of_two(num_inputs)
    signs = random_signs(seed, indices // size, 3, size)
    rows = hadamard_rows(indices % size, size)
    for k in range(3):
        rows = rows * signs[:, k]
        if k < 2:
            rows = hadamard_transform(rows) / math.sqrt(size)
    return _with_lengths(seed, indices, rows / math.sqrt(size))[:, :num_inputs]


def fastfood_rows(seed: int, indices: Tensor, num_inputs: int) -> Tensor:
    """Rows of S H G P H B: signs B, a permutation P, a Gaussian diagonal G, lengths S: (r, d).

    Each row alone is exactly a standard normal (of D entries, cut to d); rows of a group share
    their D normals and are not orthogonal, so its error is above that of independent rows.

    Cost: O(r D log D), any subset alone.
    Source: Le, Sarlos and Smola, "Fastfood", ICML 2013.
    """
    size = next_power_of_two(num_inputs)
    groups = indices // size
    diagonal = standard_normals(seed ^ (DIAGONAL_STREAM << 32), groups, size)
    rows = hadamard_rows(indices % size, size) * diagonal
    rows = rows.gather(1, random_permutations(seed, groups, size))
    rows = hadamard_transform(rows) * random_signs(seed, groups, 1, size)[:, 0]
    length = diagonal.norm(dim=1, keepdim=True) * math.sqrt(size)
    return _with_lengths(seed, indices, rows / length)[:, :num_inputs]


ROWS: dict[Directions, Rows] = {
    "independent": standard_normals,
    "orthogonal": orthogonal_rows,
    "structured": structured_rows,
    "fastfood": fastfood_rows,
}


def next_power_of_two(num_inputs: int) -> int:
    """The smallest power of two that is at least ``num_inputs``."""
    return 1 << max(0, (num_inputs - 1).bit_length())


def _with_lengths(seed: int, indices: Tensor, rows: Tensor) -> Tensor:
    """Unit rows (r, D) scaled to the lengths of standard normals of D entries."""
    return rows * standard_normals(seed, indices, rows.shape[1]).norm(dim=1, keepdim=True)


def random_permutations(seed: int, groups: Tensor, size: int) -> Tensor:
    """Independent permutations addressed by (seed, group): (r, size) int64."""
    quads = torch.arange(-(-size // 4), device=groups.device)
    words = words_at(seed, PERMUTATION_STREAM, groups[:, None], quads)  # (4, r, quads)
    return words.permute(1, 2, 0).reshape(len(groups), -1)[:, :size].argsort(dim=1, stable=True)


def random_signs(seed: int, groups: Tensor, count: int, size: int) -> Tensor:
    """Independent signs +-1 addressed by (seed, group): (r, count, size) float64."""
    layer = torch.arange(count, device=groups.device)[:, None]
    quads = torch.arange(-(-size // 4), device=groups.device)
    words = words_at(seed, SIGN_STREAM, groups[:, None, None], quads, layer)  # (4, r, count, quads)
    bits = words.permute(1, 2, 3, 0).flatten(2) & 1
    return 2.0 * bits[:, :, :size].double() - 1.0


def hadamard_rows(rows: Tensor, size: int) -> Tensor:
    """Rows of the Walsh-Hadamard matrix, (-1)^popcount(i & j): (r, size) float64; entries +-1."""
    overlap = rows[:, None] & torch.arange(size, device=rows.device)
    parity = torch.zeros_like(overlap)
    for bit in range(max(1, size.bit_length())):
        parity ^= (overlap >> bit) & 1
    return 1.0 - 2.0 * parity.double()


LEVELS = 6
"""Most levels of sums and differences of the Hadamard transform that one product replaces."""


def hadamard_transform(vectors: Tensor) -> Tensor:
    """H v for each row v of (r, size), size a power of two; O(r size log size).

    H is the Kronecker product of Hadamard matrices of at most 2^``LEVELS`` rows, about equal in
    size. Each is applied to its digit of the index where that is, without moving numbers.
    """
    rows, size = vectors.shape
    levels = size.bit_length() - 1
    each = -(-levels // max(1, -(-levels // LEVELS)))
    signs = vectors.new_ones(1, 1)
    for _ in range(each):
        signs = torch.cat((torch.cat((signs, signs), 1), torch.cat((signs, -signs), 1)))
    below = 1  # numbers with the same higher digits
    while below < size:
        factor = min(len(signs), size // below)
        own = signs[:factor, :factor]
        if below == 1:
            vectors = vectors.reshape(-1, factor) @ own
        else:
            vectors = own @ vectors.view(-1, factor, below)
        below *= factor
    return vectors.reshape(rows, size)
