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
        negative = lowest < -ROUNDING_MULTIPLE * torch.finfo(lags.dtype).eps * largest
        shares = strengths.clamp_min(0.0).mul_(2.0 / period)
        shares[:: len(shares) - 1] *= 0.5  # waves without a sine
        largest_shares, order = shares.topk(min(rank, len(shares)))
        # relative to the sum of all, as k(0) may be smaller by rounding
        left = (shares.sum() - running_sum(largest_shares)).clamp_min(0.0)
        trace = left * m
        above = torch.stack(
            [trace > TRACE_SHARE * tolerance, trace > tolerance, largest_shares > 0.0]
        ).sum(1)
        refused, wanted, large, positive = torch.cat([negative.reshape(1), above]).tolist()
        if refused:
            return None
        count = min(positive, wanted + 1)
        waves = order[:count]
        part = cls(m, period, waves, strengths[waves].clamp_min(0.0), left[count - 1])
        part.complete = large < count
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
        seen = transformed_diagonals(moments, self.points, self.period)
        return self.gram_of(wave_products(self.waves, seen))

    def gram_of(self, products: Tensor) -> Tensor:
        """``gram`` from ``wave_products`` (2 f, 2 f), which is overwritten."""
        roots = torch.cat([self.roots, torch.where(self.single, 0.0, self.roots)])
        return products.mul_(roots).mul_(roots.unsqueeze(1))

    def carried_gradient(self, complement: Tensor) -> Tensor:
        """Gradient of log |Q| by K's lags (m,), C as a function of them.

        Args:
            complement (2 f,): diagonal of C W^T Q^{-1} W C^T.
        """
        cosines, sines = complement.chunk(2)
        safe = self.strengths.clamp_min(torch.finfo(complement.dtype).tiny)
        half = torch.zeros(self.period // 2 + 1, dtype=torch.complex128, device=safe.device)
        half[self.waves] = ((cosines + sines) / (safe * self.share)).to(half.dtype)
        return self._fold(half)

    def gradient_outside(self, both: Tensor) -> Tensor:
        """Gradient of mean left^T K right - right^T C^T C right by K's lags (m,).

        C is a function of the lags.

        Args:
            both (m, 2 c): left and right, W^T A^{-1} w and W^T Q^{-1} w for probes w.
        """
        return self._fold(self._outside(both).mean(0))

    def gradients_outside(self, both: Tensor) -> Tensor:
        """``gradient_outside`` of each probe, (c, m)."""
        return self._fold(self._outside(both))

    def _outside(self, both: Tensor) -> Tensor:
        """Transforms (c, a / 2 + 1) of ``gradients_outside``, for ``_fold``."""
        seen, through = torch.fft.rfft(both.mT, n=self.period).chunk(2)
        half = seen.mul_(through.conj())
        half[:, self.waves] -= through[:, self.waves].abs().square()
        return half

    def _fold(self, half: Tensor) -> Tensor:
        """Gradient by K's lags (..., m) from the transform of that by the circulant's generator."""
        by_lag = torch.fft.irfft(half, n=self.period)
        found = fold_generator(by_lag, self.points)
        found[..., -1] += by_lag[..., self.points : self.period - self.points + 1].sum(-1)
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
    """Gradient by lags (..., m) from that by the generator (..., a), without those outside."""
    found = by_generator[..., :points].clone()
    found[..., 1:].add_(by_generator[..., by_generator.shape[-1] - points + 1 :].flip(-1))
    return found


def transformed_diagonals(moments: Tensor, points: int, period: int) -> Tensor:
    """Transforms (w, a) of the diagonals of W^T W on one axis, from ``weight_moments``."""
    diagonals = moments.reshape(points, -1).mT.contiguous()
    return torch.fft.fft(diagonals, n=period)


def wave_products(waves: Tensor, seen: Tensor) -> Tensor:
    """Sums of cos(t_k u) cos(t_l v), and with sines, over (W^T W)_uv: (2 f, 2 f); t_k = 2 pi k / a.

    Args:
        waves (f,): k.
        seen (w, a): ``transformed_diagonals`` of W^T W.

    Cost: w f^2 look-ups.
    """
    (width, period), k = seen.shape, waves
    shifts = torch.arange(width, dtype=seen.real.dtype, device=k.device)
    angle = (-2.0 * math.pi / period) * shifts.unsqueeze(1) * k
    turn = torch.polar(torch.ones_like(angle), angle)  # (w, f)
    signed = torch.stack([k, -k]).unsqueeze(1)
    other = torch.stack([turn, turn.conj()]).unsqueeze(2)  # (2, w, 1, f)
    rows = max(1, LOOKED_UP // (2 * width * len(k)))
    parts = []
    for k_l, turn_l in zip(k.split(rows), turn.split(rows, 1), strict=True):
        # sums of exp(-i (t_k u + t_l v)) and exp(-i (t_k u - t_l v)) over W^T W
        both = turn_l.unsqueeze(-1) + other
        both[:, 0] = 1.0
        picked = seen[:, (k_l.unsqueeze(1) + signed) % period]
        parts.append(torch.view_as_real(both.mul_(picked.transpose(0, 1)).sum(1)))
    plus, minus = parts[0] if len(parts) == 1 else torch.cat(parts, 1)  # (f, f, 2)
    cosines, (sines, mixed) = (plus + minus)[..., 0], (minus - plus).unbind(-1)
    found = torch.cat([torch.cat([cosines, mixed], 1), torch.cat([mixed.mT, sines], 1)])
    return found.mul_(0.5)
