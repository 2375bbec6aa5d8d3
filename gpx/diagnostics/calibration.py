"""Calibration of predictive distributions (PIT, coverage curve), and AUROC of scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpx.errors import DataError
from gpx.likelihoods import target_marginals
from gpx.likelihoods.quantiles import cdf, cdf_before, is_count

NUM_LEVELS = 19
"""Levels of the coverage curve: 0.05, 0.1, ..., 0.95."""


def pit(predictive: Distribution, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Probability integral transform P(Y <= y) of every target; uniform for a correct model.

    Values concentrate around 1/2 for distributions that are too wide, and near 0 and 1 for too
    narrow ones. For counts the value is drawn uniformly between P(Y < y) and P(Y <= y), so that it
    is uniform too.

    Args:
        predictive: distribution of y, batch shape (n,), or of p outputs from
            ``Likelihood.predictive``.
        y (n,) or (n, p): targets.
        generator: for the draws of counts, on the CPU; None: seed 0.

    Returns:
        values in [0, 1] of the shape of y, float64.

    Raises:
        NotImplementedError: the distribution has no cumulative distribution function.

    Sources: Dawid 1984; Czado, Gneiting and Held 2009 (counts).
    """
    law = target_marginals(predictive)
    found = cdf(law, y).double()
    if is_count(law):
        before = cdf_before(law, y).double()
        draws = generator or torch.Generator().manual_seed(0)
        share = torch.rand(y.shape, generator=draws, dtype=torch.float64).to(found.device)
        found = before + share * (found - before)
    return found.clamp(0.0, 1.0)


class CoverageCurve(NamedTuple):
    """Coverage of central predictive intervals at several levels.

    Attributes:
        levels (L,): probabilities of the intervals.
        coverage (L,) or (L, p): share of the targets inside, per output.
    """

    levels: Tensor
    coverage: Tensor

    def error(self) -> Tensor:
        """Mean distance of the curve from the diagonal, () or (p,).

        A correct model with n targets gives about 0.33 / sqrt(n).
        """
        levels = self.levels.view(-1, *(1 for _ in self.coverage.shape[1:]))
        return (self.coverage - levels).abs().mean(0)


def coverage_curve(
    predictive: Distribution, y: Tensor, levels: Tensor | None = None
) -> CoverageCurve:
    """Coverage of the central intervals of every level, by ``pit``: |2 pit - 1| <= level.

    Args:
        predictive, y: as in ``pit``; at least one target.
        levels (L,): in (0, 1); None: 0.05, 0.1, ..., 0.95.

    Raises:
        NotImplementedError: the distribution has no cumulative distribution function.
    """
    if levels is None:
        levels = torch.arange(1, NUM_LEVELS + 1, dtype=torch.float64) / (NUM_LEVELS + 1)
    levels = levels.to(y.device, torch.float64)
    smallest_level = (2.0 * pit(predictive, y) - 1.0).abs()
    inside = [(smallest_level <= level).double().mean(0) for level in levels]
    return CoverageCurve(levels, torch.stack(inside))


def auroc(inside: Tensor, outside: Tensor) -> Tensor:
    """Area under the ROC curve for detecting out-of-distribution inputs by a score, ().

    The probability that the score of an outside input, such as the entropy or variance of its
    prediction, is larger than that of an inside input; ties count half. An uninformative score has
    1/2.

    Args:
        inside (n,), outside (m,): scores, at least one each.

    Raises:
        DataError: one of them is empty or contains NaN.

    Cost: O((n + m) log n). Source: Mann and Whitney 1947.
    """
    if not inside.numel() or not outside.numel():
        raise DataError(
            f"{inside.numel()} scores of inputs inside and {outside.numel()} of inputs outside the "
            "distribution cannot be compared; give at least one of each"
        )
    if bool(inside.isnan().any()) or bool(outside.isnan().any()):
        raise DataError("a score is not a number, so that scores cannot be ordered; leave it out")
    ordered, asked = inside.double().sort().values, outside.double()
    smaller = torch.searchsorted(ordered, asked)
    smaller_or_equal = torch.searchsorted(ordered, asked, right=True)
    return 0.5 * (smaller + smaller_or_equal).double().mean() / len(ordered)
