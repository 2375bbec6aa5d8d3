"""What a re-weighted basis keeps of its data, and the cheapest path from there to its weights."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.data_sized import InDoublePrecision
from gpx.methods.reweighted.interpolation import InterpolatedForm
from gpx.methods.reweighted.orthogonal import OrthogonalForm, ReflectedForm
from gpx.methods.reweighted.weights import (
    CompressedForm,
    CompressedStatistics,
    CovarianceForm,
    ReweightedForm,
)

Structure = Literal["diagonal", "orthogonal", "householder"]

WORTH_COMPRESSING = 0.6
"""Share of m below which a rank makes the compressed form the cheaper one."""


def reweighted_form(
    statistics: SufficientStatistics,
    structure: Structure,
    frame: Tensor | None = None,
    *,
    dense_prior: bool = False,
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
        dense_prior: whether the prior is a covariance of all weights, which the basis gives.

    Cost: one eigendecomposition of Phi^T Phi.
    """
    if structure == "householder":
        return ReflectedForm(CompressedStatistics(statistics, frame))
    compressed = CompressedStatistics(statistics)
    if dense_prior:
        return InterpolatedForm(compressed)
    if structure == "orthogonal":
        return OrthogonalForm(compressed)
    m = len(statistics.projected)
    if compressed.rank <= WORTH_COMPRESSING * m:
        return CompressedForm(compressed)
    return CovarianceForm(statistics)


class ReweightedState(InDoublePrecision):
    """Buffers that ``Reweighted`` and its posterior share, and the path they take to the weights.

    Attributes:
        gram (m, m), projected (m,): sums over the data.
        totals (2 or more,): |r|^2, n, and further numbers of the module.
        samples (T, k + 1): (log g, log noise variance); of a basis with a dense prior, its entries
            in the place of log g.
        frame (m, rank): for ``householder``, the eigenvectors that its prior turns.
        latent_sums (T, m + 1): of a probit model, Phi^T r and |r|^2 of the latent targets that
            belong to each sample; (0, 0) for others, whose targets are those of the statistics.
    """

    data_sized: ClassVar[tuple[str, ...]] = (
        "gram",
        "projected",
        "samples",
        "frame",
        "latent_sums",
    )
    in_double = ("totals",)
    derived: ClassVar[tuple[str, ...]] = ("_form",)
    basis: Basis
    structure: Structure
    gram: Tensor
    projected: Tensor
    samples: Tensor
    frame: Tensor
    latent_sums: Tensor
    totals: Tensor

    def register_state(self, num_totals: int, device: torch.device | None = None) -> None:
        """The buffers, of no data yet."""
        for name, shape in (("samples", (0, 0)), ("gram", (0, 0)), ("projected", (0,))):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64, device=device))
        self.register_buffer("frame", self.gram.clone())
        self.register_buffer("latent_sums", self.gram.clone())
        self.register_buffer("totals", self.projected.new_zeros(num_totals))
        self._form: ReweightedForm | None = None

    @property
    def statistics(self) -> SufficientStatistics:
        """What is kept of the data."""
        squared, count = self.totals[:2].unbind()
        return SufficientStatistics(self.gram, self.projected, squared, int(count))

    @statistics.setter
    def statistics(self, new: SufficientStatistics) -> None:
        self.gram, self.projected = new.gram, new.projected
        count = new.squared.new_tensor(float(new.num_data))
        first = torch.stack([new.squared, count])
        self.totals = torch.cat([first, self.totals[2:].to(first)])
        self._form = None

    @property
    def form(self) -> ReweightedForm:
        """The path from these statistics to evidence and posterior."""
        if self._form is None:
            self._form = reweighted_form(
                self.statistics, self.structure, self.frame, dense_prior=self.basis.dense_prior
            )
        return self._form

    def retarget(self, projected: Tensor, squared: Tensor) -> None:
        """Other targets r of the same rows: Phi^T r (m,) and |r|^2 ()."""
        form = self.form.with_targets(projected, squared)
        self.projected = projected
        self.totals = torch.cat([squared[None], self.totals[1:]])
        self._form = form

    def form_of(self, number: int) -> ReweightedForm:
        """The path at the targets of sample ``number``."""
        if not len(self.latent_sums):
            return self.form
        sums = self.latent_sums[number]
        return self.form.with_targets(sums[:-1], sums[-1])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.structure != "householder":  # none, and older runs did not store it
            state_dict.setdefault(prefix + "frame", self.frame[:0])
        state_dict.setdefault(prefix + "latent_sums", self.latent_sums[:0])  # nor this
        super()._load_from_state_dict(state_dict, prefix, *rest)
