"""A low-rank part of a Toeplitz matrix by its strongest waves, which needs no array.

A stationary kernel's matrix on m equidistant points is a block of a circulant of a >= 2 m - 1
points, whose eigenvectors are waves: K_uv = sum_k s_k cos(2 pi k (u - v) / a). If no eigenvalue is
negative, a subset of the waves gives C^T C <= K. Products with C are Fourier transforms, and
C W^T W C^T is read off the transforms of the diagonals of W^T W, without work of m rank^2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.linalg.fft_products import fast_length
from gpx.linalg.interpolation import Outside
from gpx.linalg.running_sum import running_sum
from gpx.methods.ski.low_rank import LowRankPart
from gpx.operators import Interpolation

TRACE_SHARE = 0.1
"""Waves are added until the trace error is this share of the tolerance, since they are cheap."""
LOOKED_UP = 1 << 20
"""Entries of transforms that are looked up in one go."""
ROUNDING_MULTIPLE = 64.0
"""Negative eigenvalues up to this many roundings of the largest one count as rounding."""


class WavePart(LowRankPart):
    """C = [roots cos(2 pi k u / a); roots sin(2 pi k u / a)] for some k: C^T C <= K.

    Args:
        points: m.
        period: a.
        waves (f,): k, between 0 and a / 2.
        strengths (f,): their eigenvalues in the circulant.
        missing (): see ``LowRankPart``.

    Attributes:
        roots (f,): factors of the 2 f rows of C; rows of vanishing sines are zero.

    Cost: two transforms of length a per column of a product; memory a.
    """

    def __init__(
        self, points: int, period: int, waves: Tensor, strengths: Tensor, missing: Tensor
    ) -> None:
        self.points, self.period, self.waves, self.missing = points, period, waves, missing
        self.strengths = strengths
        self.threshold = strengths.min()
        self.single = (waves == 0) | (2 * waves == period)  # waves without a sine
        self.share = torch.where(self.single, 1.0, 2.0).to(strengths) / period
        self.roots = (self.share * strengths).sqrt()
        signed = torch.stack([self.roots, -self.roots])  # of cosines and sines of a transform
        self._seen, self._sent = signed, (signed / self.share).flatten()

    @classmethod
    @torch.no_grad()
    def of(
        cls, lags: Tensor, rank: int, tolerance: float, strengths: Tensor | None = None
    ) -> WavePart | None:
        """At most ``rank`` waves of a kernel's lags (m,), fewer if the trace error allows.

        None if the circulant is not positive semi-definite, because the kernel has not decayed
        along the axis; a few pivots then suffice.

        Args:
            strengths: ``embedding_eigenvalues`` of the lags, if they are known.
        """
        m = len(lags)
        period = embedding_period(m)
        if strengths is None:
            strengths = embedding_eigenvalues(lags)
        lowest, largest = strengths.aminmax()
        if bool(lowest < -ROUNDING_MULTIPLE * torch.finfo(lags.dtype).eps * largest):
            return None
        strengths = strengths.clamp_min(0.0)
        every = torch.full_like(strengths, 2.0 / period)
        every[0] = every[-1] = 1.0 / period
        shares = every * strengths
        largest_shares, order = shares.topk(min(rank, len(shares)))
        # relative to the sum of all, as k(0) may be smaller by rounding
        left = (shares.sum() - running_sum(largest_shares)).clamp_min(0.0)
        positive = int((largest_shares > 0.0).sum())
        count = min(positive, int((left * m > TRACE_SHARE * tolerance).sum()) + 1)
        waves = order[:count]
        part = cls(m, period, waves, strengths[waves], left[count - 1])
        part.complete = bool(left[count - 1] * m <= tolerance)
        return part

    @property
    def rank(self) -> int:
        """2 f."""
        return 2 * len(self.waves)

    def project(self, values: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        seen = torch.fft.rfft(values.mT, n=self.period)[:, self.waves]
        return (torch.view_as_real(seen).movedim(-1, 1) * self._seen).flatten(1).mT

    def expand(self, low: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        cosines, sines = (low.mT * self._sent).chunk(2, 1)
        half = torch.zeros(
            low.shape[1], self.period // 2 + 1, dtype=torch.complex128, device=low.device
        )
        half[:, self.waves] = torch.complex(cosines, sines)
        return torch.fft.irfft(half, n=self.period)[:, : self.points].mT

    def at(self, weights: Interpolation, x: Tensor, outside: Outside) -> Tensor:
        """As in ``LowRankPart``."""
        waves = self._waves_at(weights.indices)
        return torch.einsum("rtq,tq->rt", waves, weights.values)

    def picked(self, low: Tensor, places: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return torch.einsum("rtq,rt->tq", self._waves_at(places), low)

    def gram(self, moments: Tensor) -> Tensor:
        """C W^T W C^T (2 f, 2 f) from ``weight_moments``."""
        return self.gram_of(transformed_diagonals(moments, self.points, self.period))

    def gram_of(self, seen: Tensor) -> Tensor:
        """``gram`` from the ``transformed_diagonals`` (w, a) of W^T W, which may be kept.

        Cost: w f^2 look-ups.
        """
        k, width = self.waves, len(seen)
        shifts = torch.arange(width, dtype=self.roots.dtype, device=k.device)
        angle = (-2.0 * math.pi / self.period) * shifts.unsqueeze(1) * k
        turn = torch.polar(torch.ones_like(angle), angle)
        found = []
        for sign in (1, -1):  # sums of exp(-i (t_k u + sign t_l v)) over W^T W
            other = turn if sign > 0 else turn.conj()
            parts = []
            for rows in torch.arange(len(k), device=k.device).split(
                max(1, LOOKED_UP // (width * len(k)))
            ):
                place = (k[rows].unsqueeze(1) + sign * k) % self.period
                both = turn[:, rows].unsqueeze(2) + other.unsqueeze(1)
                both[0] = 1.0
                parts.append((both.mul_(seen[:, place])).sum(0))
            found.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        plus, minus = found
        f = len(k)
        gram = self.roots.new_empty(2 * f, 2 * f)
        gram[:f, :f] = 0.5 * (plus.real + minus.real)
        gram[f:, f:] = 0.5 * (minus.real - plus.real)
        gram[:f, f:] = 0.5 * (minus.imag - plus.imag)
        gram[f:, :f] = gram[:f, f:].mT
        roots = torch.cat([self.roots, torch.where(self.single, 0.0, self.roots)])
        return gram.mul_(roots).mul_(roots.unsqueeze(1))

    def carried_spectrum(self, complement: Tensor) -> Tensor:
        """Gradient of log |Q| by K's lags, C as a function of them; to be given to ``fold``.

        Args:
            complement (2 f,): diagonal of C W^T Q^{-1} W C^T.
        """
        cosines, sines = complement.chunk(2)
        safe = self.strengths.clamp_min(torch.finfo(complement.dtype).tiny)
        half = torch.zeros(self.period // 2 + 1, dtype=torch.complex128, device=safe.device)
        half[self.waves] = ((cosines + sines) / (safe * self.share)).to(half.dtype)
        return half

    def spectrum_outside(self, both: Tensor) -> Tensor:
        """Gradient of mean left^T K right - right^T C^T C right by K's lags, for ``fold``.

        C is a function of the lags.

        Args:
            both (m, 2 c): left and right, W^T A^{-1} w and W^T Q^{-1} w for probes w.
        """
        seen, through = torch.fft.rfft(both.mT, n=self.period).chunk(2)
        half = (seen * through.conj()).sum(0)
        half[self.waves] -= through[:, self.waves].abs().square().sum(0)
        return half.div_(len(seen))

    def fold(self, half: Tensor) -> Tensor:
        """Gradient by K's lags (m,) from the transform of that by the circulant's generator."""
        by_lag = torch.fft.irfft(half, n=self.period)
        found = fold_generator(by_lag, self.points)
        found[-1] += by_lag[self.points : self.period - self.points + 1].sum()
        return found

    def _waves_at(self, places: Tensor) -> Tensor:
        """C (2 f, t, q) at grid points (t, q)."""
        turn = (2.0 * math.pi / self.period) * torch.arange(
            self.period, dtype=self.roots.dtype, device=self.roots.device
        )
        where = (self.waves.view(-1, 1, 1) * places) % self.period
        roots = self.roots.view(-1, 1, 1)
        return torch.cat([turn.cos()[where] * roots, turn.sin()[where] * roots])


def embedding_period(points: int) -> int:
    """Period a of the circulant in which the matrix of so many equidistant points is a block."""
    return fast_length(2 * points - 1)


def embedding_eigenvalues(lags: Tensor) -> Tensor:
    """Eigenvalues (a / 2 + 1,) of a circulant that has a kernel's matrix as a block; lags (m,)."""
    m = len(lags)
    # lags beyond the grid are arbitrary; the last lag keeps convex kernels positive
    gap = lags[-1:].expand(embedding_period(m) - 2 * m + 1)
    return torch.fft.rfft(torch.cat([lags, gap, lags[1:].flip(0)])).real


def fold_generator(by_generator: Tensor, points: int) -> Tensor:
    """Gradient by the lags (m,) from that by the generator (a,); lags beyond the grid left out."""
    found = by_generator[:points].clone()
    found[1:] += by_generator[len(by_generator) - points + 1 :].flip(0)
    return found


def transformed_diagonals(moments: Tensor, points: int, period: int) -> Tensor:
    """Transforms (w, a) of the diagonals of W^T W on one axis, from ``weight_moments``."""
    diagonals = moments.reshape(points, -1).mT.contiguous()
    return torch.fft.fft(diagonals, n=period)
