"""Grades a certificate and puts into words how far predictions can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpx.diagnostics.certificate import Certificate

Grade = Literal["certified", "plausible", "uncertified"]

MAX_MEAN_ERROR = 0.25
"""Largest certified error of a good mean, in predictive standard deviations of y."""

MAX_VARIANCE_ERROR = 0.25
"""Largest certified relative error of a good predictive variance of y."""

SUSPICIOUS_NOISE_SHARE = 0.5
"""If the noise has more than this share of the targets' variance, a sparse model gets a remark."""


@dataclass(frozen=True)
class Verdict:
    """How far predictions at the chosen points agree with exact inference.

    Attributes:
        grade: "certified": all points are good; "plausible": at least half are good and none is
            certainly off; "uncertified": otherwise, and if there are no points.
        mean_error: largest certified error of a mean, in the targets' unit.
        mean_share: the same in predictive standard deviations of y.
        variance_error: largest certified relative error of a predictive variance of y.
        good: number of good points.
        off: number of points at which the mean is certainly off by more than ``MAX_MEAN_ERROR``,
            also in the largest standard deviation that is possible.
        points: number of points.
    """

    grade: Grade
    mean_error: float
    mean_share: float
    variance_error: float
    good: int
    off: int
    points: int


def judge(certificate: Certificate) -> Verdict:
    """Grade a certificate over its points."""
    found = certificate
    predicted = found.predicted.variance + found.noise
    low = found.moments.variance_lower + found.noise
    high = found.moments.variance_upper + found.noise
    share = found.mean_error / low.sqrt()
    ratio = (predicted / low - 1.0).abs().maximum((predicted / high - 1.0).abs())
    good = (share <= MAX_MEAN_ERROR) & (ratio <= MAX_VARIANCE_ERROR)
    # certain only where it holds for the largest deviation, as a good point must for the smallest
    off = found.certain_mean_error / high.sqrt() > MAX_MEAN_ERROR
    count, total = int(good.sum()), good.numel()
    grade: Grade = "uncertified"
    if total and not found.collapse:
        if count == total:
            grade = "certified"
        elif 2 * count >= total and not bool(off.any()):
            grade = "plausible"
    return Verdict(
        grade,
        float(found.mean_error.max()) if total else 0.0,
        float(share.max()) if total else 0.0,
        float(ratio.max()) if total else 0.0,
        count,
        int(off.sum()),
        total,
    )


def in_words(
    verdict: Verdict,
    certificate: Certificate,
    *,
    scale: float = 1.0,
    unit: str = "",
    products: bool = True,
    best: bool = True,
) -> str:
    """The verdict as one paragraph, with advice.

    Args:
        verdict, certificate: the grade and its certificate.
        scale: factor from standardised targets to the original unit.
        unit: name of the target.
        products: whether products with the kernel matrix were used.
        best: whether the model predicts with the best posterior of its inducing points.
    """
    name = f" of {unit}" if unit else ""
    numbers = (
        f"the means{name} to {scale * verdict.mean_error:.3g} "
        f"({100.0 * verdict.mean_share:.2g} % of a predictive standard deviation) and the "
        f"predictive variances to {100.0 * verdict.variance_error:.2g} %"
    )
    if certificate.collapse:
        return (
            f"Do not use this model: it explains the data as noise ({certificate.collapse}). Small "
            "divergences mean nothing then. Use more inducing points and train again from the "
            "initial hyperparameters."
        )
    if verdict.grade == "certified":
        sentence = f"Certified: at all {verdict.points} points trust {numbers}."
        return sentence + _noise_remark(certificate)
    more = _advice(certificate, products, best) + _noise_remark(certificate)
    percent = f"{100.0 * MAX_MEAN_ERROR:.0f} %"
    if verdict.off:
        return (
            f"Not good enough: at {verdict.off} of {verdict.points} points the mean is certainly "
            f"off by more than {percent} of a predictive standard deviation. All "
            f"that is certain: {numbers}. {more}"
        )
    if verdict.grade == "plausible":
        return (
            f"Plausible: {verdict.good} of {verdict.points} points are certain to "
            f"{percent} of a predictive standard deviation and of the variance, "
            f"none is certainly off. Over all points trust {numbers}. {more}"
        )
    return (
        f"Not certified: the predictions may be right, but this cannot be shown: only "
        f"{verdict.good} of {verdict.points} points are certain to {percent}; "
        f"over all points, {numbers}. {more}"
    )


def _advice(certificate: Certificate, products: bool, best: bool) -> str:
    m, n = certificate.num_inducing, certificate.num_data
    if not products:
        return "Ask for products=true, which uses the whole kernel matrix and is far sharper."
    if certificate.report is not None and not certificate.report.converged:
        return "Conjugate gradients did not converge: give them more steps, or inducing points."
    if not best:
        return (
            "The model predicts with q(u) as it was trained, not with the best one of its inducing "
            "points: train the evidence lower bound, with refit=True."
        )
    if 0 < m < n:
        return f"Add inducing points: num_inducing={min(2 * m, n)} instead of {m}."
    return "The noise variance is too small for float64 to say more."


def _noise_remark(certificate: Certificate) -> str:
    """A remark on large noise, since certificates do not judge the hyperparameters."""
    m, share = certificate.num_inducing, certificate.noise_share
    if not 0 < m < certificate.num_data or share <= SUSPICIOUS_NOISE_SHARE:
        return ""
    return (
        f" But {100.0 * share:.0f} % of the targets' variance counts as noise, which also happens "
        f"with too few inducing points: compare the evidence after training with {2 * m}."
    )
