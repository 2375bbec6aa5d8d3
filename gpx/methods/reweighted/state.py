"""Sums over the data of a re-weighted basis, and the cheapest form to compute with them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gpx.bases.base import Basis
from gpx.bases.inducing_points import InducingPoints
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.methods.base.kept_sums import KeptSums
from gpx.methods.reweighted.interpolation import InterpolatedForm
from gpx.methods.reweighted.orthogonal import OrthogonalForm, ReflectedForm
from gpx.methods.reweighted.weights import (
    CompressedForm,
    CompressedStatistics,
    CovarianceForm,
    ReweightedForm,
)

Structure = Literal["diagonal", "orthogonal", "householder"]

MAX_COMPRESSED_RANK = 0.6
"""Largest rank, relative to m, at which the compressed form is cheaper."""


def reweighted_form(
    statistics: SufficientStatistics,
    structure: Structure,
    frame: Tensor | None = None,
    *,
    dense_prior: bool = False,
) -> ReweightedForm:
    """The cheapest exact form for given statistics and structure.

    ``diagonal``: a prior variance per function, O(m^3) per evaluation, or O(rank^2 m) if the
    features have a rank below 0.6 m (fewer rows than functions). ``orthogonal``: a variance per
    eigenvector of Phi^T Phi, O(m). ``householder``: these eigenvectors rotated, O(rank^2).

    Args:
        statistics: sums over the data.
        structure: of the prior.
        frame (m, rank): for orthogonal and householder, the eigenvectors used when the prior was
            learned (computed again, their signs or their number might differ); empty or None:
            computed.
        dense_prior: whether the basis has a dense prior covariance of all weights.

    Cost: one eigendecomposition of Phi^T Phi.
    """
    if structure != "diagonal":
        known = frame if frame is not None and len(frame) else None
        compressed = CompressedStatistics(statistics, known)
        orthogonal = structure == "orthogonal"
        return OrthogonalForm(compressed) if orthogonal else ReflectedForm(compressed)
    compressed = CompressedStatistics(statistics)
    if dense_prior:
        return InterpolatedForm(compressed)
    m = len(statistics.projected)
    if compressed.rank <= MAX_COMPRESSED_RANK * m:
        return CompressedForm(compressed)
    return CovarianceForm(statistics)


def prior_scale(basis: Basis) -> Tensor:
    """Prior standard deviations (m,) of the weights of a basis; empty where all are one.

    Also empty for a basis whose prior is not diagonal (kernel functions at training points): there
    g is the whole prior.
    """
    empty = torch.zeros(0, dtype=torch.float64)
    if basis.follows_kernel or basis.dense_prior or isinstance(basis, InducingPoints):
        return empty
    scale = basis.log_variances().detach().double().mul(0.5).exp()
    return empty.to(scale) if bool((scale == 1.0).all()) else scale


class ReweightedState(KeptSums):
    """Buffers that ``Reweighted`` and its posterior have in common, and their ``form``.

    Attributes:
        samples (T, k + 1): (log g, log noise variance); for a basis with a dense prior covariance,
            its entries in place of log g.
        frame (m, rank): eigenvectors along which the prior has its variances (``orthogonal``) or
            that it rotates (``householder``).
        scale (m,): prior standard deviations that the basis gives its weights, by which gram and
            projected are multiplied already; empty where they are one.
        latent_sums (T, m + 1): for probit, Phi^T r and |r|^2 of the latent targets of each sample;
            (0, 0) for other models.
    """

    data_sized: ClassVar[tuple[str, ...]] = (
        "gram",
        "projected",
        "samples",
        "scale",
        "frame",
        "latent_sums",
    )
    derived: ClassVar[tuple[str, ...]] = ("_form",)
    basis: Basis
    structure: Structure
    samples: Tensor
    scale: Tensor
    frame: Tensor
    latent_sums: Tensor

    def register_state(self, num_totals: int, device: torch.device | None = None) -> None:
        """Register empty buffers."""
        for name, shape in (("samples", (0, 0)), ("gram", (0, 0)), ("projected", (0,))):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64, device=device))
        self.register_buffer("frame", self.gram.clone())
        self.register_buffer("latent_sums", self.gram.clone())
        self.register_buffer("scale", self.projected.clone())
        self.register_buffer("totals", self.projected.new_zeros(num_totals))
        self._form: ReweightedForm | None = None

    def features(self, x: Tensor) -> Tensor:
        """Basis functions at x (b, d) times ``scale``: (b, m)."""
        features: Tensor = self.basis(x)
        return features * self.scale.to(features) if len(self.scale) else features

    @property
    def form(self) -> ReweightedForm:
        """The form of these statistics, for evidence and posterior."""
        if self._form is None:
            self._form = reweighted_form(
                self.statistics, self.structure, self.frame, dense_prior=self.basis.dense_prior
            )
        return self._form

    def set_targets(self, projected: Tensor, squared: Tensor) -> None:
        """Set other targets r of the same rows, by Phi^T r (m,) and |r|^2 ()."""
        form = self.form.with_targets(projected, squared)
        self.projected = projected
        self.totals = torch.cat([squared[None], self.totals[1:]])
        self._form = form

    def form_of(self, number: int) -> ReweightedForm:
        """The form with the latent targets of sample ``number``."""
        if not len(self.latent_sums):
            return self.form
        sums = self.latent_sums[number]
        return self.form.with_targets(sums[:-1], sums[-1])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.structure != "householder":  # absent in older runs, and computed if needed
            state_dict.setdefault(prefix + "frame", self.frame[:0])
        state_dict.setdefault(prefix + "latent_sums", self.latent_sums[:0])  # as above
        state_dict.setdefault(prefix + "scale", self.scale[:0])  # as above
        super()._load_from_state_dict(state_dict, prefix, *rest)
