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

    @classmethod
    @torch.no_grad()
    def of(cls, lags: Tensor, rank: int, tolerance: float) -> WavePart | None:
        """At most ``rank`` waves of a kernel's lags (m,), fewer if the trace error allows.

        None if the circulant is not positive semi-definite, because the kernel has not decayed
        along the axis; a few pivots then suffice.
        """
        m = len(lags)
        period = fast_length(2 * m - 1)
        # lags beyond the grid are arbitrary; the last lag keeps convex kernels positive
        gap = lags[-1:].expand(period - 2 * m + 1)
        strengths = torch.fft.rfft(torch.cat([lags, gap, lags[1:].flip(0)])).real
        largest = strengths.max()
        if bool(strengths.min() < -ROUNDING_MULTIPLE * torch.finfo(lags.dtype).eps * largest):
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
        seen = torch.view_as_real(seen).movedim(-1, 1) * self.roots
        seen[:, 1].neg_()
        return seen.flatten(1).mT

    def expand(self, low: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        cosines, sines = (low * self.roots.repeat(2).unsqueeze(1)).mT.chunk(2, 1)
        half = torch.zeros(
            low.shape[1], self.period // 2 + 1, dtype=torch.complex128, device=low.device
        )
        scale = torch.where(self.single, 1.0, 0.5) * self.period
        half[:, self.waves] = torch.complex(cosines * scale, -sines * scale)
        return torch.fft.irfft(half, n=self.period)[:, : self.points].mT

    def at(self, weights: Interpolation, x: Tensor, outside: Outside) -> Tensor:
        """As in ``LowRankPart``."""
        waves = self._waves_at(weights.indices)
        return torch.einsum("rtq,tq->rt", waves, weights.values)

    def picked(self, low: Tensor, places: Tensor) -> Tensor:
        """As in ``LowRankPart``."""
        return torch.einsum("rtq,rt->tq", self._waves_at(places), low)

    def gram(self, moments: Tensor) -> Tensor:
        """C W^T W C^T (2 f, 2 f) from ``weight_moments``.

        Cost: a transform of every diagonal of W^T W, and f^2 look-ups.
        """
        diagonals = moments.reshape(self.points, -1).mT.contiguous()
        seen = torch.fft.fft(diagonals, n=self.period)  # (w, a)
        k = self.waves
        angle = -2.0 * math.pi / self.period * k.to(moments)
        found = []
        for sign in (1, -1):  # sums of exp(-i (t_k u + sign t_l v)) over W^T W
            place = (k.unsqueeze(1) + sign * k) % self.period
            total = seen[0][place]
            for shift in range(1, len(seen)):
                turn = torch.polar(torch.ones_like(angle), angle * shift)
                other = turn if sign > 0 else turn.conj()
                total.addcmul_(seen[shift][place], other + turn.unsqueeze(1))
            found.append(total)
        plus, minus = found
        f = len(k)
        gram = moments.new_empty(2 * f, 2 * f)
        gram[:f, :f] = 0.5 * (plus.real + minus.real)
        gram[f:, f:] = 0.5 * (minus.real - plus.real)
        gram[:f, f:] = 0.5 * (minus.imag - plus.imag)
        gram[f:, :f] = gram[:f, f:].mT
        roots = torch.cat([self.roots, torch.where(self.single, 0.0, self.roots)])
        return gram.mul_(roots).mul_(roots.unsqueeze(1))

    def carried_gradient(self, complement: Tensor) -> Tensor:
        """Gradient of log |Q| by K's lags (m,), C as a function of them.

        Args:
            complement (2 f,): diagonal of C W^T Q^{-1} W C^T.
        """
        cosines, sines = complement.chunk(2)
        safe = self.strengths.clamp_min(torch.finfo(complement.dtype).tiny)
        return self._by_lag((cosines + sines) / safe)

    def gradient_outside(self, left: Tensor, right: Tensor) -> Tensor:
        """Gradient of mean left^T K right - right^T C^T C right by K's lags (m,).

        C is a function of the lags.

        Args:
            left, right (m, c): W^T A^{-1} w and W^T Q^{-1} w for probes w.
        """
        seen, through = torch.fft.rfft(torch.cat([left, right], 1).mT, n=self.period).chunk(2)
        half = (seen * through.conj()).sum(0)
        half[self.waves] -= through[:, self.waves].abs().square().sum(0)
        return self._fold(half / left.shape[1])

    def _by_lag(self, by_strength: Tensor) -> Tensor:
        """Gradient by K's lags (m,) from that by the strengths (f,)."""
        half = torch.zeros(self.period // 2 + 1, dtype=torch.complex128, device=by_strength.device)
        half[self.waves] = (by_strength / self.share).to(half.dtype)
        return self._fold(half)

    def _fold(self, half: Tensor) -> Tensor:
        """Gradient by K's lags (m,) from the transform of that by the circulant's generator."""
        by_lag = torch.fft.irfft(half, n=self.period)
        m = self.points
        found = by_lag[:m].clone()
        found[1:] += by_lag[self.period - m + 1 :].flip(0)
        found[-1] += by_lag[m : self.period - m + 1].sum()
        return found

    def _waves_at(self, places: Tensor) -> Tensor:
        """C (2 f, t, q) at grid points (t, q)."""
        turn = (2.0 * math.pi / self.period) * torch.arange(
            self.period, dtype=self.roots.dtype, device=self.roots.device
        )
        where = (self.waves.view(-1, 1, 1) * places) % self.period
        roots = self.roots.view(-1, 1, 1)
        return torch.cat([turn.cos()[where] * roots, turn.sin()[where] * roots])
