"""Calibration of a finished run on its test rows, before and after recalibration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpx.calibration.base import in_words
from gpx.data import Dataset
from gpx.diagnostics.calibration import auroc
from gpx.errors import DataError
from gpx.likelihoods import target_marginals
from gpx.likelihoods.base import Task, is_classification
from gpx.likelihoods.row_noise import RowNoise
from gpx.metrics import class_log_probabilities, entropy, evaluate, trivial_law
from gpx.runs.figures.calibration import calibration_figures
from gpx.runs.folder import RunFolder
from gpx.runs.predictor import Predictor
from gpx.runs.results import MAX_OUTPUTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASS_MEASURES = {
    "accuracy": "accuracy",
    "confidence": "mean probability of the predicted class",
    "mnlp": "negative log probability (MNLP)",
    "brier": "Brier score, summed over classes",
    "ece": "calibration error (ECE), by the mean of each bin",
    "ece_midpoint": "calibration error (ECE), by the midpoint of each bin",
    "mce": "largest calibration error (MCE)",
    "entropy": "mean entropy, nats",
}
NUMBER_MEASURES = {
    "rmse_original": "RMSE",
    "mnlp_original": "negative log density (MNLP)",
    "coverage_95": "coverage of 95 % intervals",
    "coverage_error": "mean error of the coverage of intervals",
    "crps_original": "CRPS",
    "sharpness_original": "sharpness (mean standard deviation)",
    "interval_score_95_original": "interval score, 95 %",
}
"""Measures of ``gpx.metrics.evaluate`` that are shown; those of numbers in the data's own units."""
SIGNIFICANT_ERRORS = 2.0
"""A deviation of more than this many standard errors counts as miscalibration."""


@dataclass(frozen=True)
class CalibrationReport:
    """Measures of the predictions of test rows.

    Attributes:
        task: of the test targets.
        rows: number of test rows. If some of several targets are missing, the harmonic mean of
            the number of rows with each target, which gives the standard error of a mean over
            targets.
        measures: of the predictions of the run, recalibrated if it is.
        before: measures without recalibration; None if the run has none.
        settings: fitted parameters of the recalibration; empty if there is none.
        elsewhere: comparison with inputs of another kind; empty if none were given.
        figures: by name.
    """

    task: Task
    rows: int
    measures: dict[str, float]
    before: dict[str, float] | None
    settings: dict[str, Any]
    elsewhere: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The report as text: a table of measures and a verdict."""
        words = CLASS_MEASURES if is_classification(self.task) else NUMBER_MEASURES
        columns = [self.measures] if self.before is None else [self.before, self.measures]
        width = max(map(len, words.values())) + 2
        head = f"calibration on {self.rows:,} test points"
        if self.before is not None:
            head = head.ljust(width) + "before".rjust(12) + "after".rjust(12)
        lines = [head]
        for name, text in words.items():
            if name in self.measures:
                cells = (f"{column.get(name, math.nan):12.4g}" for column in columns)
                lines.append(f"  {text}".ljust(width) + "".join(cells))
        if self.settings:
            lines.append(f"recalibrated on held-out rows: {in_words(self.settings)}")
        lines.append(self.sentence())
        if self.elsewhere:
            rows, score = int(self.elsewhere["rows"]), self.elsewhere["auroc"]
            there, here = self.elsewhere["mean_elsewhere"], self.elsewhere["mean"]
            lines.append(
                f"{rows:,} inputs from elsewhere: {self.uncertainty_name()} separates them from "
                f"the test inputs with an AUROC of {score:.3f} (0.5: not at all); its mean is "
                f"{there:.4g} for them and {here:.4g} for test inputs"
            )
        return lines

    def uncertainty_name(self) -> str:
        """The measure of uncertainty that inputs from elsewhere are compared by."""
        classes = is_classification(self.task)
        return "the entropy of the classes" if classes else "the predictive standard deviation"

    def sentence(self) -> str:
        """Verdict: over-confident, under-confident, or no significant miscalibration."""
        if is_classification(self.task):
            claimed, right = self.measures["confidence"], self.measures["accuracy"]
            spread = SIGNIFICANT_ERRORS * self.measures["confidence_error"]
            found = f"the mean confidence is {claimed:.3f} and the accuracy {right:.3f}"
            gap = claimed - right
        elif "coverage_95" in self.measures:
            covered = self.measures["coverage_95"]
            spread = SIGNIFICANT_ERRORS * math.sqrt(0.95 * 0.05 / self.rows)
            found = f"95 % intervals contain {100.0 * covered:.1f} % of the test points"
            gap = 0.95 - covered
        else:
            return "coverage is not known: the predictive distribution has no distribution function"
        if abs(gap) <= spread:
            return f"calibrated, as far as {self.rows:,} test points can tell: {found}"
        return f"{'over' if gap > 0 else 'under'}-confident: {found}"

    def values(self) -> dict[str, Any]:
        """All results as plain values, for calibration.json."""
        return {
            "task": self.task,
            "rows": self.rows,
            "measures": self.measures,
            "before": self.before,
            "settings": self.settings,
            "elsewhere": self.elsewhere,
            "sentence": self.sentence(),
        }

    def write(self, folder: RunFolder) -> None:
        """Write calibration.json and the figures into the run folder."""
        for name, figure in self.figures.items():
            folder.write_figure(name, figure)
        folder.write_json(folder.path / "calibration.json", self.values())


def calibration_report(
    predictor: Predictor,
    data: Dataset,
    elsewhere: Tensor | None = None,
    elsewhere_noise: RowNoise | None = None,
) -> CalibrationReport:
    """Measures and figures of the predictions of the test rows.

    Args:
        predictor: of a finished run.
        data: the split that it was trained on.
        elsewhere (m, d): standardised inputs of another kind, whose predictive uncertainty is
            compared with that of the test inputs: entropy of classes, or standard deviation.
        elsewhere_noise: known noise of these rows, standardised.

    Raises:
        DataError: there are no test rows.
    """
    if not data.num_test:
        raise DataError(
            f"data {data.name} has no test rows (test_fraction=0), which calibration is measured on"
        )
    x = predictor.placed(data.test_x)
    modelled = predictor.modelled(x, data.test_noise)
    raw = predictor.in_targets(modelled)
    recalibration = predictor.calibration
    law, before = raw, None
    if recalibration is not None:
        law, before = predictor.in_targets(recalibration(modelled)), _measures(data, raw)
    compared: dict[str, float] = {}
    if elsewhere is not None:
        here = _uncertainty(data.task, law)
        others = predictor.distribution(predictor.placed(elsewhere), elsewhere_noise)
        there = _uncertainty(data.task, others)
        compared = {
            "rows": float(len(elsewhere)),
            "auroc": float(auroc(here, there)),
            "mean": float(here.mean()),
            "mean_elsewhere": float(there.mean()),
        }
    return CalibrationReport(
        task=data.task,
        rows=_rows(data),
        measures=_measures(data, law),
        before=before,
        settings={} if recalibration is None else dict(recalibration.facts()),
        elsewhere=compared,
        figures=calibration_figures(
            data, law, MAX_OUTPUTS, raw if recalibration is not None else None
        ),
    )


def _rows(data: Dataset) -> int:
    """``CalibrationReport.rows``."""
    known = ~data.test_y.isnan()
    if bool(known.all()):
        return data.num_test
    counts = known.sum(0).double()
    return round(float(1.0 / (1.0 / counts[counts > 0.0]).mean()))


def _measures(data: Dataset, law: Distribution) -> dict[str, float]:
    y = data.test_y.to(_device(law))
    train_y = data.in_memory.train_y.to(y.device).double()
    found = evaluate(
        data.task, law, y, data.scaler, data.target_names, trivial=trivial_law(train_y)
    )
    if is_classification(data.task):
        log_probabilities, _ = class_log_probabilities(data.task, law, y)
        confidence = log_probabilities.double().exp().max(1).values
        found["confidence"] = float(confidence.mean())
        # the standard error of the accuracy if every confidence is right; that of the accuracy
        # itself would be zero where there are no errors
        share = (confidence * (1.0 - confidence)).clamp_min(0.0).mean() / len(confidence)
        found["confidence_error"] = float(share.sqrt())
    return found


def _uncertainty(task: Task, law: Distribution) -> Tensor:
    """Entropy (n,) of classes, or standard deviation (n,), averaged over outputs."""
    if is_classification(task):
        probs: Tensor = law.probs.double()  # type: ignore[attr-defined]
        if probs.ndim == 1:
            probs = torch.stack([1.0 - probs, probs], 1)
        return entropy(probs)
    deviation = target_marginals(law).stddev.double()
    return deviation.reshape(len(deviation), -1).mean(1)


def _device(law: Any) -> torch.device:
    probs: Tensor | None = getattr(law, "probs", None)
    return (law.mean if probs is None else probs).device
