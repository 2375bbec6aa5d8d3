"""Where training on a few eigenfunctions starts: lengthscales, outputscale and noise for them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.data_pass import feature_sums
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.bases.sufficient_statistics import LOG_TWO_PI, SufficientStatistics
from gpx.errors import NotPositiveDefinite
from gpx.linalg import cholesky

NOISE_GRID = 400
"""Ratios of noise to outputscale looked up by ``best_scales``."""

LARGEST_SCALE = 1e4
"""Largest outputscale that ``best_scales`` takes, in mean squares of the residuals."""

ROWS_PER_FUNCTION = 8
"""Rows that the search looks at, per eigenfunction: fewer ask for a smoother function than all."""

LEAST_ROWS = 1000
"""Rows that it looks at where there are few eigenfunctions."""

LONGEST = 1e3
"""Longest lengthscale tried, in ranges of the column's nodes."""

SHORTEST = 1e-3
"""Shortest lengthscale tried, in the same unit, where all values of a column are nodes."""

NEGLIGIBLE_MOVE = 1e-4
"""Nats per point below which a move is not worth taking."""

MOST_EVALUATIONS = 300
"""Sets of eigenfunctions compared after which no further sweep begins."""

NEGLIGIBLE_SWEEP = 1e-3
"""Nats per point below which a sweep was the last."""


class Found(NamedTuple):
    """What a search came to.

    Attributes:
        gain: of the evidence, nats per point looked at.
        evaluations: sets of eigenfunctions compared.
        rows: looked at.
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
) -> Found:
    """Double and halve lengthscales as long as the evidence of the p leading functions rises.

    The hyperparameters of an exact process spread over more functions than there are: an input that
    matters little still claims its share of the p. No gradient shows the way, since the evidence
    jumps where the choice changes. So every move chooses the functions anew: first all lengthscales
    together, then each by itself; a move that helps is repeated with twice its exponent. The first
    sweep also tries every shorter lengthscale at the range of its nodes: an input of a few values
    far apart multiplies the functions by their number without explaining more, and doubling its
    lengthscale changes nothing until it comes near their distance. The outputscale is the best one
    throughout, the noise follows every move in powers of two.

    Args:
        basis: its grid is placed; its kernel's learned lengthscales are moved.
        x (n, d), residual (n,): inputs and y - m(x); the search looks at 8 p of them, drawn.
        ratio: noise variance over outputscale to begin with.
        sweeps: over the inputs, at most; none begins after 300 sets of functions.
        generator: draws the rows.

    Cost: 5 p^3 + O(d m p) multiply-adds per set of functions, about 3 d of them in a sweep,
    whatever n. Nothing of it where no lengthscale is learned.
    Source: ours; the evidence is that of Evans thesis, algorithm 4.2.
    """
    parts = basis.factors.learned_lengthscales
    if not parts or sweeps < 1:
        return Found(0.0, 0, 0)
    most = max(LEAST_ROWS, ROWS_PER_FUNCTION * basis.num_basis)
    rows = torch.randperm(len(x), generator=generator, device=x.device)[:most]
    least, longest = _limits(basis, x)
    start = torch.cat([part.lengthscale.detach().reshape(-1) for part, _ in parts]).double()
    search = _Search(basis, x[rows].double(), residual[rows].double(), least, longest)
    first = search.begin(start, ratio)
    before = first
    for count in range(sweeps):
        search.sweep(jump=count == 0)
        little = search.value - before < NEGLIGIBLE_SWEEP * len(rows)
        if little or search.evaluations >= MOST_EVALUATIONS:
            break
        before = search.value
    search.assign(search.best)
    gain = (search.value - first) / len(rows)
    return Found(gain if math.isfinite(gain) else 0.0, search.evaluations, len(rows))


def _limits(basis: GridEigenfunctions, x: Tensor) -> tuple[Tensor, Tensor]:
    """Shortest and longest of every learned lengthscale, flat."""
    span = basis.nodes.amax(1) - basis.nodes.amin(1)
    span = torch.where(span > 0.0, span, 1.0)
    shortest = torch.maximum(basis.resolved_lengthscales(x), SHORTEST * span)
    least, longest = [], []
    for part, columns in basis.factors.learned_lengthscales:
        if part.lengthscale.ndim:
            least.append(shortest[columns])
            longest.append(LONGEST * span[columns])
        else:
            least.append(shortest[columns].min()[None])
            longest.append(LONGEST * span[columns].max()[None])
    return torch.cat(least), torch.cat(longest)


class _Search:
    """Where the search stands: the best lengthscales, their evidence and ratio of noise."""

    def __init__(
        self, basis: GridEigenfunctions, x: Tensor, residual: Tensor, least: Tensor, longest: Tensor
    ) -> None:
        self.basis, self.x, self.residual = basis, x, residual
        self.least, self.longest = least, longest
        self.evaluations = 0

    def begin(self, start: Tensor, ratio: float) -> float:
        """Evaluate the start: its evidence."""
        self.best, self.ratio = start, ratio
        self.value, self.ratio = self._evaluate(start)
        return self.value

    def sweep(self, *, jump: bool = False) -> None:
        """Try all lengthscales together, then every one, also at its range with ``jump``."""
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
        """Give the kernel these lengthscales."""
        done = 0
        for part, _ in self.basis.factors.learned_lengthscales:
            like = part.lengthscale
            part.lengthscale = values[done : done + like.numel()].reshape(like.shape).to(like)
            done += like.numel()

    def _jump(self, which: Tensor) -> None:
        exponent = torch.log2(self.longest / LONGEST / self.best).ceil()
        if bool((exponent[which] > 1.0).all()):  # nearer ones are for ``_move``
            self._take(torch.where(which, self.best * 2.0**exponent, self.best))

    def _take(self, trial: Tensor) -> bool:
        """Go there if the evidence is worth it; whether it was."""
        value, ratio = self._evaluate(trial)
        if not value > self.value + NEGLIGIBLE_MOVE * len(self.x):
            return False
        self.best, self.value, self.ratio = trial, value, ratio
        return True

    def _move(self, which: Tensor) -> None:
        for sign in (1, -1):
            exponent, moved = 1, False
            while True:
                trial = torch.where(which, self.best * 2.0 ** (sign * exponent), self.best)
                inside = (trial <= self.longest) if sign > 0 else (trial >= self.least)
                if not bool(inside[which].all()):
                    break
                if not self._take(trial):
                    break
                moved, exponent = True, 2 * exponent
            if moved:
                return

    def _evaluate(self, lengthscales: Tensor) -> tuple[float, float]:
        """Evidence at these lengthscales, and the ratio that is best for them."""
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
    n, p = sums.num_data, len(sums.projected)
    inner = sums.gram.clone()
    inner.diagonal().add_(ratio)
    try:
        factor, _ = cholesky(inner, name="Phi^T Phi + noise", ladder=(0.0,))
    except NotPositiveDefinite:  # so little noise that rounding decides: no place to stay
        return -math.inf
    half = torch.linalg.solve_triangular(factor, sums.projected.unsqueeze(1), upper=False)
    outputscale = float(sums.squared - half.square().sum()) / ratio / n
    if not outputscale > 0.0:
        return -math.inf
    logdet = (n - p) * math.log(ratio) + 2.0 * float(factor.diagonal().log().sum())
    return -0.5 * (n * (LOG_TWO_PI + math.log(outputscale) + 1.0) + logdet)


def best_scales(sums: SufficientStatistics) -> tuple[Tensor, Tensor]:
    """Outputscale and noise variance that maximise the evidence of fixed eigenfunctions.

    With the eigenvalues of F F^T the evidence is a function of the ratio noise / outputscale alone,
    because the best outputscale at a ratio is known: it is looked up on a grid of 400 ratios from
    1e-10 to 1e6 (a step of 10 %: enough for a start).

    Args:
        sums: of rows without weights.

    Returns:
        outputscale (), noise ().

    Cost: one p x p eigendecomposition.
    Source: after Evans thesis, section 4.3; the profile is ours.
    """
    n = sums.num_data
    values, vectors = torch.linalg.eigh(sums.gram)
    values = values.clamp(min=0.0)
    power = (vectors.mT @ sums.projected).square()
    ratios = torch.logspace(-10.0, 6.0, NOISE_GRID, dtype=values.dtype, device=values.device)
    ratio = ratios.unsqueeze(1)
    quadratic = (sums.squared - (power / (values + ratio)).sum(1)) / ratios
    # the ratio n log(ratio) + sum log(1 + lambda / ratio) is log det of F^T F + ratio I
    logs = n * ratios.log() + (values / ratio).log1p().sum(1)
    outputscale = (quadratic / n).clamp(min=torch.finfo(values.dtype).tiny)
    loss = n * outputscale.log() + logs
    # features that vanish at the data ask for any scale at all
    loss[outputscale > LARGEST_SCALE * sums.squared / n] = torch.inf
    best = torch.argmin(loss)
    return outputscale[best], outputscale[best] * ratios[best]
