"""Which path from statistics to weights: exact for the structure of the prior, and the cheapest."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics
from gpx.methods.reweighted.orthogonal import OrthogonalForm
from gpx.methods.reweighted.reflections import ReflectedForm
from gpx.methods.reweighted.weights import CompressedForm, CovarianceForm, ReweightedForm

Structure = Literal["diagonal", "orthogonal", "householder"]

WORTH_COMPRESSING = 0.6
"""Share of m below which a rank makes the compressed form the cheaper one."""


def reweighted_form(
    statistics: SufficientStatistics, structure: Structure, frame: Tensor | None = None
) -> ReweightedForm:
    """The path for statistics: exact for its structure, the cheapest one there is.

    ``diagonal`` gives every function of the basis its own prior variance: O(m^3) an evaluation,
    O(rank^2 m) where the functions have a rank below 0.6 m on the data (fewer rows than functions).
    ``orthogonal`` gives one to every eigenvector of Phi^T Phi: O(m) an evaluation.
    ``householder`` turns these eigenvectors as well: O(rank^2).

    Args:
        statistics: sums over the data.
        structure: of the prior.
        frame (m, rank): for householder, the eigenvectors that it turns, as they were when the
            prior was learned: another computation of them may differ in signs.

    Cost: one eigendecomposition of Phi^T Phi.
    """
    if structure == "householder":
        return ReflectedForm(CompressedStatistics(statistics, frame))
    compressed = CompressedStatistics(statistics)
    if structure == "orthogonal":
        return OrthogonalForm(compressed)
    m = len(statistics.projected)
    if compressed.rank <= WORTH_COMPRESSING * m:
        return CompressedForm(compressed)
    return CovarianceForm(statistics)
