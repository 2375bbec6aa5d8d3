"""How calibrated a finished run's predictions of its test rows are, as it predicts and before."""

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
from gpx.likelihoods.base import Task, of_classes
from gpx.metrics import class_log_probabilities, entropy, evaluate, trivial_law
from gpx.runs.figures.calibration import calibration_figures
from gpx.runs.folder import RunFolder
from gpx.runs.predictor import Predictor
from gpx.runs.results import OUTPUTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_CLASSES = {
    "accuracy": "accuracy",
    "confidence": "mean probability of the predicted class",
    "mnlp": "negative log probability (MNLP)",
    "brier": "Brier score, summed over classes",
    "ece": "calibration error (ECE), mean of a bin",
    "ece_midpoint": "calibration error (ECE), midpoint of a bin",
    "mce": "largest calibration error (MCE)",
    "entropy": "mean entropy, nats",
}
OF_NUMBERS = {
    "rmse_original": "RMSE",
    "mnlp_original": "negative log density (MNLP)",
    "coverage_95": "coverage of 95 % intervals",
    "coverage_error": "mean distance of the coverage curve",
    "crps_original": "CRPS",
    "sharpness_original": "sharpness: mean deviation",
    "interval_score_95_original": "interval score, 95 %",
}
"""What is shown of ``gpx.metrics.evaluate``; numbers in the data's own units."""
ERRORS = 2.0
"""Standard errors within which a difference may be chance."""


@dataclass(frozen=True)
class CalibrationReport:
    """Measures of the predictions of test rows.

    Attributes:
        task: of the test targets.
        rows: that are tested; where rows lack some of several targets, the harmonic mean of the
            numbers that have each, which the error of a mean over targets goes by.
        measures: of the run as it predicts.
        before: without recalibration; None where the run has none.
        settings: what the recalibration fitted; empty where there is none.
        elsewhere: what was asked about inputs of another kind; empty where nothing was.
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
        """What a person reads: a table, and how sure the model is, in a sentence."""
        words = OF_CLASSES if of_classes(self.task) else OF_NUMBERS
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
                f"{rows:,} inputs from elsewhere: {self.elsewhere_word()} tells them from test "
                f"inputs with an AUROC of {score:.3f} (0.5: not at all); mean {there:.4g} there, "
                f"{here:.4g} here"
            )
        return lines

    def elsewhere_word(self) -> str:
        """What inputs from elsewhere are told by."""
        classes = of_classes(self.task)
        return "the entropy of the classes" if classes else "the predictive deviation"

    def sentence(self) -> str:
        """Over-confident, under-confident, or neither as far as so many test rows can tell."""
        if of_classes(self.task):
            claimed, right = self.measures["confidence"], self.measures["accuracy"]
            spread = ERRORS * math.sqrt(max(right * (1.0 - right), 1e-12) / self.rows)
            said = f"it claims to be right in {claimed:.3f} of all cases and is in {right:.3f}"
            gap = claimed - right
        elif "coverage_95" in self.measures:
            covered = self.measures["coverage_95"]
            spread = ERRORS * math.sqrt(0.95 * 0.05 / self.rows)
            said = f"95 % intervals hold {100.0 * covered:.1f} % of the test points"
            gap = 0.95 - covered
        else:
            return "the predictive law has no distribution function, so that coverage is not known"
        if abs(gap) <= spread:
            return f"calibrated, as far as {self.rows:,} test points tell: {said}"
        return f"{'over' if gap > 0 else 'under'}-confident: {said}"

    def values(self) -> dict[str, Any]:
        """Everything as plain values, for calibration.json."""
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
        """calibration.json and the figures in the run folder."""
        for name, figure in self.figures.items():
            folder.write_figure(name, figure)
        folder.write_json(folder.path / "calibration.json", self.values())


def calibration_report(
    predictor: Predictor, data: Dataset, elsewhere: Tensor | None = None
) -> CalibrationReport:
    """Measures, and figures, of the predictions of the test rows.

    Args:
        predictor: a finished run's.
        data: the split that it was trained on.
        elsewhere (m, d): standardised inputs of another kind, to be told from the test inputs by
            the entropy of classes, or by the predictive deviation of numbers; None: none.

    Raises:
        DataError: there are no test rows.
    """
    if not data.num_test:
        raise DataError(
            f"data {data.name} has no test rows (test_fraction=0), so that nothing says how "
            "calibrated predictions are"
        )
    x = predictor.placed(data.test_x)
    modelled = predictor.modelled(x, data.test_noise)
    raw = predictor.in_targets(modelled)
    recalibration = predictor.calibration
    law, before = raw, None
    if recalibration is not None:
        law, before = predictor.in_targets(recalibration(modelled)), _measures(data, raw)
    told: dict[str, float] = {}
    if elsewhere is not None:
        here = _uncertainty(data.task, law)
        there = _uncertainty(data.task, predictor.distribution(predictor.placed(elsewhere)))
        told = {
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
        elsewhere=told,
        figures=calibration_figures(data, law, OUTPUTS, raw if recalibration is not None else None),
    )


def _rows(data: Dataset) -> int:
    """As ``CalibrationReport`` has it."""
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
    if of_classes(data.task):
        log_probabilities, _ = class_log_probabilities(data.task, law, y)
        found["confidence"] = float(log_probabilities.double().exp().max(1).values.mean())
    return found


def _uncertainty(task: Task, law: Distribution) -> Tensor:
    """Entropy of classes, or deviation of numbers (of several outputs the mean); (n,)."""
    if of_classes(task):
        probs: Tensor = law.probs.double()  # type: ignore[attr-defined]
        if probs.ndim == 1:
            probs = torch.stack([1.0 - probs, probs], 1)
        return entropy(probs)
    deviation = target_marginals(law).stddev.double()
    return deviation.reshape(len(deviation), -1).mean(1)


def _device(law: Any) -> torch.device:
    probs: Tensor | None = getattr(law, "probs", None)
    return (law.mean if probs is None else probs).device
