"""W^T W and quadratic forms of it, stored by pairs of grid points of each axis.

Rows of W are Kronecker products of one row per axis, so that W^T W, as a table indexed by one pair
of points per axis, is symmetric in every pair. It suffices to store pairs (u, u + delta) with delta
from 0 to the stencil's width, and, for matrices in a Kronecker product basis, pairs of columns
(i, i') of each axis with i <= i'. This saves a factor of 4 per axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.methods.ski.axis_spectra import parities
from gpx.operators import Interpolation

CHUNK_ENTRIES = 1 << 23
"""Entries of a working array."""
EXTRA_DIMENSIONS = 8
"""Dimensions of the basis of products of columns, in addition to their number of frequencies."""
MAX_DIMENSION_SHARE = 0.6
"""Largest dimension of that basis, relative to the number of points, for which it saves time."""
NUM_TRIALS = 4
"""Number of random products with which the basis is tested."""
BASIS_TOLERANCE = 1e-9
"""Largest relative norm of the part of a test product outside the basis."""


@torch.no_grad()
def weight_moments(weights: Interpolation, shape: Sequence[int]) -> Tensor:
    """W^T W as a table (m_1 w, ..., m_d w), with the entry of u and u + delta at u_l w + delta_l.

    Args:
        weights (n, m): every row has weights on w consecutive points along every axis, in order.
        shape: (m_1, ..., m_d).

    Cost: n (w (w + 1) / 2)^d additions; memory m w^d.
    """
    values, first = weights.values, weights.indices[:, 0]
    d, q = len(shape), weights.values.shape[1]
    width = round(q ** (1.0 / d))
    device = values.device
    low, high = torch.triu_indices(width, width, device=device)
    left = right = place = low.new_zeros(1)
    for m in shape:
        left = (left.unsqueeze(1) * width + low).flatten()
        right = (right.unsqueeze(1) * width + high).flatten()
        place = (place.unsqueeze(1) * (m * width) + low * width + (high - low)).flatten()
    # index of the table's entry (u, 0) for the first point u of a stencil
    corner, stride = torch.zeros_like(first), 1
    for m in reversed(shape):
        corner = corner + (first % m) * width * stride
        first, stride = first // m, stride * m * width
    table = values.new_zeros(stride)
    for rows in row_slices(len(values), max(1, CHUNK_ENTRIES // len(place))):
        w = values[rows]
        products = w[:, left] * w[:, right]
        table.index_add_(0, (corner[rows, None] + place).flatten(), products.flatten())
    return table.reshape([m * width for m in shape])


def gram_of_pairs(vectors: Sequence[Tensor], columns: Tensor, moments: Tensor) -> Tensor:
    """V^T W^T W V (r, r) for V the ``columns`` (r, d) of the Kronecker product of ``vectors``.

    Products of smooth columns are smooth. On fine axes they span far fewer dimensions than there
    are points, and the moments are first projected onto these (``_PairProducts``).

    Args:
        vectors: (m_l, c_l) of every axis.
        moments (m_1 w, ..., m_d w): ``weight_moments``.

    Cost: m w^d sum_l k_l and prod_l w k_l sum_l c_l^2 operations for k_l <= m_l dimensions (about
    2 c_l on fine axes), half of that for symmetric and antisymmetric columns, and r^2 look-ups.
    """
    signs = [parities(v) for v in vectors]
    products = [
        _PairProducts(v, size // len(v), sign)
        for v, size, sign in zip(vectors, moments.shape, signs, strict=True)
    ]
    table = moments
    for axis in products:  # contracts the first axis, and appends its projection as the last one
        rest = table.shape[1:]
        table = axis.project(table.reshape(*axis.shape, -1)).mT.reshape(*rest, -1)
    for axis in products:
        rest = table.shape[1:]
        table = axis.pair_sums(table.reshape(len(table), -1)).reshape(*rest, -1)
    places = _pair_places(vectors, columns, signs)
    return table.flatten().index_select(0, places.flatten()).view_as(places)


class _PairProducts:
    """Products of any two columns (m, c) of an axis, at all pairs of points less than w apart.

    Args:
        v (m, c), width, sign: columns, w, and ``parities`` of the columns.

    Attributes:
        shape: (m, w).

    Cost: c^2 w m k / 4 multiply-adds for symmetric and antisymmetric columns.
    """

    def __init__(self, v: Tensor, width: int, sign: Tensor | None) -> None:
        self.shape, self._signed = (len(v), width), sign is not None
        low, high = _pairs(v, sign)
        counts = _counts(v, sign)
        rows = (len(v) + 1) // 2 if self._signed else len(v)
        self._bases: list[list[Tensor] | None] = []
        self._products: list[Tensor] = []
        start = 0
        for part, count in enumerate(counts):
            some = slice(start, start + count)
            bases = _bases(v, rows, width, sign, odd=part == 1) if count else None
            step = _step(rows * width)
            found = [
                _in_bases(_shifted_products(v[:, i], v[:, j], rows, width), bases)
                for i, j in zip(low[some].split(step), high[some].split(step), strict=True)
            ]
            self._bases.append(bases)
            self._products.append(torch.cat(found, 1) if found else v.new_zeros(rows * width, 0))
            start += count

    def project(self, table: Tensor) -> Tensor:
        """Project moments (m, w, p) onto the basis of products: (k, p)."""
        parts = _even_and_odd(table) if self._signed else [table]
        return torch.cat([_in_bases(t, b) for t, b in zip(parts, self._bases, strict=True)])

    def pair_sums(self, projected: Tensor) -> Tensor:
        """Sums (p, c (c + 1) / 2) over moments for all pairs of columns, in order of ``_pairs``.

        Args:
            projected (k, p): from ``project``.
        """
        parts = projected.split([len(p) for p in self._products])
        found = projected.new_empty(projected.shape[1], sum(p.shape[1] for p in self._products))
        start = 0
        for own, products in zip(parts, self._products, strict=True):
            end = start + products.shape[1]
            torch.mm(own.mT, products, out=found[:, start:end])
            start = end
        return found


def _bases(
    v: Tensor, rows: int, width: int, sign: Tensor | None, *, odd: bool
) -> list[Tensor] | None:
    """Orthonormal bases (rows, k) of all products of two columns, one for every shift < ``width``.

    None if their dimension is nearly the number of rows. They span products of random combinations
    of columns; their number grows until further random products lie in the span up to rounding.

    Args:
        v (m, c): columns.
        rows: m, or half of that for symmetric and antisymmetric columns.
        sign: ``parities`` of the columns.
        odd: products of a symmetric with an antisymmetric column; otherwise of two of one kind.
    """
    c = v.shape[1]
    generator = torch.Generator().manual_seed(0)
    count = (c if sign is not None else 2 * c) + EXTRA_DIMENSIONS
    while count <= MAX_DIMENSION_SHARE * rows:
        draws = torch.randn(2, c, count + NUM_TRIALS, generator=generator, dtype=v.dtype).to(v)
        if sign is not None:  # combine symmetric and antisymmetric columns separately
            kinds = torch.arange(count + NUM_TRIALS, device=v.device) % 2 * 2 - 1
            draws[0] *= sign.unsqueeze(1) == kinds
            draws[1] *= sign.unsqueeze(1) == (-kinds if odd else kinds)
        products = _shifted_products(v @ draws[0], v @ draws[1], rows, width)
        found, left = [], 0.0
        for shift in range(width):
            basis, _ = torch.linalg.qr(products[:, shift, :count])
            trials = products[:, shift, count:]
            rest = torch.addmm(trials, basis, basis.mT @ trials, alpha=-1.0)
            left = max(left, float(rest.norm() / trials.norm().clamp_min(1e-300)))
            found.append(basis)
        if left <= BASIS_TOLERANCE:
            return found
        count += count // 2
    return None


def _in_bases(table: Tensor, bases: list[Tensor] | None) -> Tensor:
    """Project a table (rows, w, p) onto a basis for every shift, and concatenate."""
    if bases is None:
        return table.flatten(0, 1)
    return torch.cat([basis.mT @ table[:, shift] for shift, basis in enumerate(bases)])


def pair_gradient(vectors: Sequence[Tensor], columns: Tensor, matrix: Tensor) -> Tensor:
    """Gradient (m_1, ..., m_d) of tr(M V^T K V) by the lags of a stationary K, M (r, r) symmetric.

    It is the sum over (u, v) at each lag |u - v| of (V M V^T)_uv. Args as ``gram_of_pairs``.

    Cost: sum_l c_l^2 / 2 transforms of 2 m_l, and m times as many multiply-adds.
    """
    sizes = [v.shape[1] * (v.shape[1] + 1) // 2 for v in vectors]
    table = matrix.new_zeros(math.prod(sizes))
    signs = [parities(v) for v in vectors]
    table.index_add_(0, _pair_places(vectors, columns, signs).flatten(), matrix.flatten())
    table = table.reshape(sizes)
    for v, sign in zip(vectors, signs, strict=True):
        rest = table.reshape(len(table), -1)
        spectra = torch.fft.rfft(v.mT, n=2 * len(v))
        low, high = _pairs(v, sign)
        found = v.new_zeros(len(v), rest.shape[1])
        step = _step(2 * len(v))
        for some in (slice(first, first + step) for first in range(0, len(low), step)):
            lags = _by_distance(spectra[low[some]].conj() * spectra[high[some]], len(v))
            found.addmm_(lags.mT, rest[some])
        table = found.mT.reshape(*table.shape[1:], len(v))
    return table


def rayleigh_quotients(vectors: Sequence[Tensor], lags: Tensor) -> Tensor:
    """Diagonal (c_1, ..., c_d) of V^T K V, for the whole Kronecker product V and K by its lags.

    Cost: sum_l c_l transforms of 2 m_l, and m sum_l c_l multiply-adds.
    """
    table = lags
    for v in vectors:
        spectra = torch.fft.rfft(v.mT, n=2 * len(v))
        own = _by_distance(spectra.abs().square() + 0j, len(v))
        table = (own @ table.reshape(len(v), -1)).mT.reshape(*table.shape[1:], v.shape[1])
    return table


def _even_and_odd(table: Tensor) -> list[Tensor]:
    """Sum and difference of a table (m, w, p) and its mirror image, on half of the points.

    If every column is symmetric or antisymmetric along the axis, their products are even or odd,
    and only the sum or only the difference contributes.
    """
    m = len(table)
    half = (m + 1) // 2
    even, odd = (table.new_zeros(half, *table.shape[1:]) for _ in range(2))
    for delta in range(min(table.shape[1], m)):
        own, middle = table[: m - delta, delta], (m - delta) // 2
        first, mirrored = own[:middle], own[len(own) - middle :].flip(0)
        torch.add(first, mirrored, out=even[:middle, delta])
        torch.sub(first, mirrored, out=odd[:middle, delta])
        if len(own) % 2:  # antisymmetric functions are zero there
            even[middle, delta] = own[middle]
    return [even, odd]


def _counts(v: Tensor, sign: Tensor | None) -> list[int]:
    """Numbers of even and odd ``_pairs``; of all pairs if columns have no parities."""
    c = v.shape[1]
    every = c * (c + 1) // 2
    if sign is None:
        return [every]
    negated = int((sign < 0).sum())
    mixed = negated * (c - negated)
    return [every - mixed, mixed]


def _shifted_products(a: Tensor, b: Tensor, rows: int, width: int) -> Tensor:
    """a_u b_(u + delta) + a_(u + delta) b_u (a_u b_u for delta = 0) for the first u: (rows, w, p).

    Args:
        a, b (m, p): columns.
    """
    found = a.new_zeros(rows, width, a.shape[1])
    torch.mul(a[:rows], b[:rows], out=found[:, 0])
    for delta in range(1, min(width, len(a))):
        count = min(rows, len(a) - delta)
        here, there = slice(count), slice(delta, delta + count)
        torch.mul(a[here], b[there], out=found[:count, delta]).addcmul_(a[there], b[here])
    return found


def _by_distance(spectra: Tensor, points: int) -> Tensor:
    """Correlations (r, points) from transforms of length 2 points, adding both signs of lags."""
    lags = torch.fft.irfft(spectra, n=2 * points)
    both = lags[:, :points].clone()
    both[:, 1:] += lags[:, points + 1 :].flip(1)
    return both


def pair_entries(sizes: Sequence[int]) -> int:
    """Number of entries of a table of pairs of c_l columns per axis."""
    return math.prod(c * (c + 1) // 2 for c in sizes)


def _pairs(v: Tensor, sign: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both column indices of all pairs of columns of v (m, c); even pairs come first."""
    low, high = torch.triu_indices(v.shape[1], v.shape[1], device=v.device)
    if sign is None:
        return low, high
    order = (sign[low] * sign[high]).argsort(descending=True, stable=True)
    return low[order], high[order]


def _pair_places(
    vectors: Sequence[Tensor], columns: Tensor, signs: Sequence[Tensor | None]
) -> Tensor:
    """Index (r, r) of every pair of columns in a table of pairs of all axes; int32."""
    place = columns.new_zeros((), dtype=torch.int32)
    stride = pair_entries([v.shape[1] for v in vectors])
    for v, column, sign in zip(vectors, columns.unbind(1), signs, strict=True):
        low, high = _pairs(v, sign)
        stride //= len(low)
        number = place.new_empty(v.shape[1], v.shape[1])
        number[low, high] = stride * torch.arange(len(low), dtype=place.dtype, device=v.device)
        number[high, low] = number[low, high]
        found = number.index_select(0, column).index_select(1, column)
        place = found if place.ndim == 0 else place.add_(found)
    return place


def _step(rows: int) -> int:
    return max(1, CHUNK_ENTRIES // max(rows, 1))
