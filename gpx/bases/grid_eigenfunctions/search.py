"""Initial hyperparameters for p eigenfunctions: lengthscales by search, outputscale and noise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.bases.base import Spent, never
from gpx.bases.grid_eigenfunctions.data_pass import feature_sums
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.bases.sufficient_statistics import FittedWeights, SufficientStatistics
from gpx.constants import LOG_TWO_PI
from gpx.errors import NotPositiveDefinite

NOISE_GRID = 400
"""Number of ratios of noise to outputscale that ``best_scales`` compares."""

MAX_OUTPUTSCALE = 1e4
"""Largest outputscale in ``best_scales``, in mean squares of the residuals."""

ROWS_PER_FUNCTION = 8
"""Rows per eigenfunction on which the search computes evidences; fewer rows would favour functions
that are smoother than those best for all data."""

MIN_ROWS = 1000
"""Smallest number of these rows."""

MAX_LENGTHSCALE = 1e3
"""Longest lengthscale tried, relative to the range of the column's nodes."""

MIN_LENGTHSCALE = 1e-3
"""Shortest lengthscale tried, in the same unit, where all values of a column are nodes."""

MIN_MOVE_GAIN = 1e-4
"""A move that gains less than this, in nats per row, is rejected."""

MAX_EVALUATIONS = 300
"""No further sweep begins after this many evaluations of the evidence."""

MIN_SWEEP_GAIN = 1e-3
"""The search ends after a sweep that gains less than this, in nats per row."""


class SearchResult(NamedTuple):
    """Result of ``search_lengthscales``.

    Attributes:
        gain: increase of the evidence, in nats per row used.
        evaluations: number of evidences computed.
        rows: number of rows used.
    """

    gain: float
    evaluations: int
    rows: int


@torch.no_grad()
def search_lengthscales(
    basis: GridEigenfunctions,
    x: Tensor,
    residual: Tensor,
    ratio: float,
    sweeps: int,
    *,
    generator: torch.Generator,
    spent: Spent = never,
) -> SearchResult:
    """Double and halve lengthscales while the evidence of the p leading functions rises.

    With the lengthscales of an exact process, p functions are often too few: some of them vary
    along inputs that explain little of the targets. Gradients do not help, because the evidence
    jumps where the set of the p leading functions changes. The search therefore chooses the
    functions anew at every move. A sweep moves all lengthscales together, then each by itself; a
    successful move is repeated with twice its exponent. The first sweep also tries to raise every
    shorter lengthscale to the range of its nodes at once: if an input has a few values far apart,
    doubling its lengthscale has no effect until it is near their distance. Every evidence is at the
    best outputscale, and the ratio of noise to outputscale is adapted in powers of two.

    Args:
        basis: its grid is placed; its kernel's learned lengthscales are changed.
        x (n, d), residual (n,): inputs and y - m(x); max(1000, 8 p) random rows are used.
        ratio: initial noise variance over outputscale.
        sweeps: largest number of sweeps; none begins after ``MAX_EVALUATIONS``.
        generator: draws the rows.
        spent: asked before every evaluation whether to stop at the best so far.

    Cost: 5 p^3 + O(d m p) multiply-adds per evidence, about 3 d of them in a sweep, whatever n;
    nothing if no lengthscale is learned.
    Source: ours; the evidence is that of Evans thesis, algorithm 4.2.
    """
    parts = basis.factors.learned_lengthscales
    if not parts or sweeps < 1:
        return SearchResult(0.0, 0, 0)
    most = max(MIN_ROWS, ROWS_PER_FUNCTION * basis.num_basis)
    rows = torch.randperm(len(x), generator=generator, device=x.device)[:most]
    least, longest = _limits(basis, x)
    start = torch.cat([part.lengthscale.detach().reshape(-1) for part, _ in parts]).double()
    search = _Search(basis, x[rows].double(), residual[rows].double(), least, longest, spent)
    first = search.begin(start, ratio)
    before = first
    for count in range(sweeps):
        search.sweep(jump=count == 0)
        little = search.value - before < MIN_SWEEP_GAIN * len(rows)
        if little or search.ended or search.evaluations >= MAX_EVALUATIONS:
            break
        before = search.value
    search.assign(search.best)
    gain = (search.value - first) / len(rows)
    return SearchResult(gain if math.isfinite(gain) else 0.0, search.evaluations, len(rows))


def _limits(basis: GridEigenfunctions, x: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest value allowed for every learned lengthscale, flattened."""
    span = basis.nodes.amax(1) - basis.nodes.amin(1)
    span = torch.where(span > 0.0, span, 1.0)
    shortest = torch.maximum(basis.resolved_lengthscales(x), MIN_LENGTHSCALE * span)
    least, longest = [], []
    for part, columns in basis.factors.learned_lengthscales:
        if not part.lengthscale_in_unit_of_x:
            like = torch.ones_like(part.lengthscale.detach().reshape(-1), dtype=torch.float64)
            least.append(MIN_LENGTHSCALE * like)
            longest.append(MAX_LENGTHSCALE * like)
        elif part.lengthscale.ndim:
            least.append(shortest[columns])
            longest.append(MAX_LENGTHSCALE * span[columns])
        else:
            least.append(shortest[columns].min()[None])
            longest.append(MAX_LENGTHSCALE * span[columns].max()[None])
    return torch.cat(least), torch.cat(longest)


class _Search:
    """State of the search: the best lengthscales, their evidence and ratio of noise."""

    def __init__(
        self,
        basis: GridEigenfunctions,
        x: Tensor,
        residual: Tensor,
        least: Tensor,
        longest: Tensor,
        spent: Spent,
    ) -> None:
        self.basis, self.x, self.residual = basis, x, residual
        self.least, self.longest = least, longest
        self.evaluations, self.spent, self.ended = 0, spent, False

    def begin(self, start: Tensor, ratio: float) -> float:
        """Set the start; returns its evidence."""
        self.best, self.ratio = start, ratio
        self.value, self.ratio = self._evaluate(start)
        return self.value

    def sweep(self, *, jump: bool = False) -> None:
        """Try all lengthscales together, then each; with ``jump`` also each at its range."""
        everything = torch.ones_like(self.best, dtype=torch.bool)
        self._move(everything)
        if len(self.best) > 1:
            for entry in range(len(self.best)):
                single = torch.zeros_like(everything)
                single[entry] = True
                if jump:
                    self._jump(single)
                self._move(single)

    def assign(self, values: Tensor) -> None:
        """Set the kernel's learned lengthscales."""
        done = 0
        for part, _ in self.basis.factors.learned_lengthscales:
            like = part.lengthscale
            part.lengthscale = values[done : done + like.numel()].reshape(like.shape).to(like)
            done += like.numel()

    def _jump(self, which: Tensor) -> None:
        """Try to raise a lengthscale at once, by a power of two, to the range of its nodes."""
        exponent = torch.log2(self.longest / MAX_LENGTHSCALE / self.best).ceil()
        if bool((exponent[which] > 1.0).all()):  # a factor of two is tried by ``_move``
            self._try(torch.where(which, self.best * 2.0**exponent, self.best))

    def _try(self, trial: Tensor) -> bool:
        """Accept the trial if it gains enough; returns whether it did."""
        self.ended = self.ended or self.spent()
        if self.ended:
            return False
        value, ratio = self._evaluate(trial)
        if not value > self.value + MIN_MOVE_GAIN * len(self.x):
            return False
        self.best, self.value, self.ratio = trial, value, ratio
        return True

    def _move(self, which: Tensor) -> None:
        """Double these lengthscales while that gains, else halve them."""
        for sign in (1, -1):
            exponent, moved = 1, False
            while True:
                trial = torch.where(which, self.best * 2.0 ** (sign * exponent), self.best)
                inside = (trial <= self.longest) if sign > 0 else (trial >= self.least)
                if not bool(inside[which].all()):
                    break
                if not self._try(trial):
                    break
                moved, exponent = True, 2 * exponent
            if moved:
                return

    def _evaluate(self, lengthscales: Tensor) -> tuple[float, float]:
        """Evidence at these lengthscales, and the best ratio for them."""
        self.evaluations += 1
        self.assign(lengthscales)
        sums = feature_sums(self.basis, self.basis.leading_modes(), self.x, self.residual)
        ratio = self.ratio
        value = evidence_at_ratio(sums, ratio)
        for factor in (2.0, 0.5):
            while (other := evidence_at_ratio(sums, factor * ratio)) > value:
                value, ratio = other, factor * ratio
        return value, ratio


@torch.no_grad()
def evidence_at_ratio(sums: SufficientStatistics, ratio: float) -> float:
    """Evidence in nats at noise / outputscale = ratio and the outputscale that is best for it.

    log N(r; 0, s (F^T F + ratio I)) is largest at s = r^T (F^T F + ratio I)^{-1} r / n.

    Args:
        sums: of rows without weights.
        ratio: positive.

    Cost: p^3 / 3 multiply-adds.
    """
    n, wide = sums.num_data, sums.squared.new_tensor(ratio)
    try:
        found = FittedWeights(sums, torch.ones_like(sums.projected), wide)
    except NotPositiveDefinite:  # singular to rounding at so little noise
        return -math.inf
    outputscale = float(found.fit) / n
    if not outputscale > 0.0:
        return -math.inf
    constant = n * (LOG_TWO_PI + math.log(outputscale) + 1.0)
    return -0.5 * (constant + float(found.log_determinant))


ROUNDING = 1e-14
"""Squared residuals below this share of the squared targets are rounding in ``best_scales``."""


def best_scales(
    sums: SufficientStatistics, outputscale: Tensor | None = None, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputscale and noise variance that maximise the evidence of fixed eigenfunctions.

    The best outputscale at a ratio noise / outputscale has a closed form, so that the evidence is a
    function of the ratio alone, cheap with the eigenvalues of F F^T. It is computed at 400 ratios
    from 1e-10 to 1e6: in steps of 10 %, enough for a start.

    Args:
        sums: of rows without weights.
        outputscale (): a fixed one, for which only the noise variance is found.
        noise (): a fixed one, for which only the outputscale is found.

    Returns:
        outputscale (), noise ().

    Cost: one p x p eigendecomposition.
    Source: after Evans thesis, section 4.3; the profile is ours.
    """
    n = sums.num_data
    if outputscale is not None and noise is not None:
        return outputscale, noise
    values, vectors = torch.linalg.eigh(sums.gram)
    values = values.clamp(min=0.0)
    power = (vectors.mT @ sums.projected).square()
    ratios = torch.logspace(-10.0, 6.0, NOISE_GRID, dtype=values.dtype, device=values.device)
    ratio = ratios.unsqueeze(1)
    quadratic = (sums.squared - (power / (values + ratio)).sum(1)) / ratios
    # the ratio n log(ratio) + sum log(1 + lambda / ratio) is log det of F^T F + ratio I
    logs = n * ratios.log() + (values / ratio).log1p().sum(1)
    if outputscale is not None:
        scales = outputscale.to(ratios).expand_as(ratios)
        loss = quadratic / scales + logs
    elif noise is not None:
        scales = noise.to(ratios) / ratios
        loss = quadratic / scales + n * scales.log() + logs
    else:
        scales = (quadratic / n).clamp(min=torch.finfo(values.dtype).tiny)
        loss = n * scales.log() + logs
        # exclude ratios at which vanishing features would ask for an ever larger outputscale
        bad = scales > MAX_OUTPUTSCALE * sums.squared / n
        # and those at which what the functions leave unexplained is rounding, which may be negative
        rounding = quadratic * ratios <= ROUNDING * sums.squared
        loss[bad | (rounding & ~rounding.all())] = torch.inf
    best = torch.argmin(loss)
    return scales[best], scales[best] * ratios[best]
