"""A certificate as a Markdown page and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpx.diagnostics.certificate import Certificate
from gpx.diagnostics.event_probability import decide, exceedance_probability
from gpx.diagnostics.moment_bounds import (
    CredibleIntervals,
    credible_intervals,
    variance_ratio_interval,
)
from gpx.diagnostics.verdict import Verdict, in_words, judge
from gpx.inference.kl_bounds import total_variation_bound

MAX_TABLE_ROWS = 25
"""Rows of the table on the page; the JSON file has all."""
ANSWERS = {1: "yes", 0: "open", -1: "no"}


@dataclass(frozen=True)
class Report:
    """A certificate with the names and units needed to report it.

    Args:
        certificate: in standardised units.
        model: name of the model.
        points (t, d): chosen inputs in original units.
        input_names, target_name: of the columns.
        shift, scale: from standardised targets to the original unit.
        products: whether products with the kernel matrix were used.
        best: whether the model predicts with the best posterior of its inducing points.
        level: of the central intervals of y.
        threshold: in the original unit; adds the probability that y is at least this.
        least: adds whether that probability is at least this.
        seconds: time taken by the certificate.
        reword: applied to the verdict's sentence, e.g. to replace argument names by option names.
    """

    certificate: Certificate
    model: str
    points: Tensor
    input_names: tuple[str, ...]
    target_name: str
    shift: float = 0.0
    scale: float = 1.0
    products: bool = True
    best: bool = True
    level: float = 0.95
    threshold: float | None = None
    least: float | None = None
    seconds: float = 0.0
    reword: Callable[[str], str] = str

    @property
    def verdict(self) -> Verdict:
        """Agreement of the predictions with exact inference."""
        return judge(self.certificate)

    @property
    def intervals(self) -> CredibleIntervals:
        """Certified outer and inner intervals of y, in the original unit."""
        found = credible_intervals(
            self.certificate.moments, self.certificate.noise, level=self.level
        )
        return CredibleIntervals(*(self.shift + self.scale * end for end in found))

    def probabilities(self) -> dict[str, Tensor] | None:
        """Predicted P(y >= threshold), and certified bounds on the exact one."""
        if self.threshold is None:
            return None
        found, level = self.certificate, (self.threshold - self.shift) / self.scale
        mean, variance = found.predicted.mean.double(), found.predicted.variance.double()
        noise, standardised = mean.new_tensor([found.noise, level])
        predicted = exceedance_probability(mean, variance, noise, standardised)
        lower, upper = found.probability_bounds(level)
        return {"probability": predicted, "probability_lower": lower, "probability_upper": upper}

    def decisions(self) -> list[str] | None:
        """Whether P(y >= threshold) >= ``least`` at each point: "yes", "no" or "open"."""
        ends = self.probabilities()
        if ends is None or self.least is None:
            return None
        found = decide(ends["probability_lower"], ends["probability_upper"], self.least)
        return [ANSWERS[answer] for answer in found.tolist()]

    def columns(self) -> dict[str, list[float | None]]:
        """One column per quantity with an entry per point, in original units."""
        found, scale = self.certificate, self.scale
        spread = (found.predicted.variance.double() + found.noise).sqrt()
        columns: dict[str, Tensor] = {
            name: self.points[:, i] for i, name in enumerate(self.input_names)
        }
        columns |= {
            "mean": self.shift + scale * found.predicted.mean.double(),
            "mean_lower": self.shift + scale * found.moments.mean_lower,
            "mean_upper": self.shift + scale * found.moments.mean_upper,
            "std": scale * spread,
            "std_lower": scale * (found.moments.variance_lower + found.noise).sqrt(),
            "std_upper": scale * (found.moments.variance_upper + found.noise).sqrt(),
        }
        columns |= self.intervals._asdict()
        columns |= self.probabilities() or {}
        # JSON has neither NaN nor infinity
        return {
            name: [v if v == v and abs(v) != float("inf") else None for v in values.tolist()]
            for name, values in columns.items()
        }

    def values(self) -> dict[str, Any]:
        """The certificate without its points, as plain values for metrics.json."""
        found, verdict = self.certificate, self.verdict
        low, high = variance_ratio_interval(torch.tensor(found.kl, dtype=torch.float64))
        names = {**found.lower_bounds, **found.upper_bounds}
        return {
            "verdict": verdict.grade,
            "collapse": found.collapse,
            "evidence_lower": found.lower,
            "evidence_upper": found.upper,
            **{name.replace(" ", "_"): value for name, value in names.items()},
            "kl_upper": found.kl,
            "total_variation": total_variation_bound(found.kl),
            "variance_ratio_lower": float(low),
            "variance_ratio_upper": _finite(float(high)),
            "effective_dimension_lower": found.dimension_lower,
            "effective_dimension_upper": found.dimension_upper,
            "evidence_rounding": found.rounding,
            "noise_variance": found.noise,
            "noise_share": _finite(found.noise_share),
            "trace_error": found.trace_error,
            "jitter": found.jitter,
            "num_inducing": found.num_inducing,
            "cg_iterations": None if found.report is None else found.report.iterations,
            "cg_converged": None if found.report is None else found.report.converged,
            "mean_error_original": _finite(self.scale * verdict.mean_error),
            "mean_error_in_std": _finite(verdict.mean_share),
            "variance_error": _finite(verdict.variance_error),
            "points": verdict.points,
            "points_good": verdict.good,
            "points_off": verdict.off,
            "products": self.products,
            "seconds": self.seconds,
        }

    def sentence(self) -> str:
        """The verdict in words."""
        sentence = in_words(
            self.verdict,
            self.certificate,
            scale=self.scale,
            unit=self.target_name,
            products=self.products,
            best=self.best,
        )
        return self.reword(sentence)

    def markdown(self, figure: str | None = None) -> str:
        """The page as Markdown.

        Args:
            figure: path of the picture, relative to the page.
        """
        found, values = self.certificate, self.values()
        lines = [f"# How far can this model be trusted? ({self.model})", "", self.sentence(), ""]
        if figure:
            lines += [f"![bounds on the evidence, certified intervals]({figure})", ""]
        lines += ["## Evidence", "", *_evidence_lines(found), ""]
        lines += _divergence_lines(found, values, self.best)
        lines += ["## Size of the problem", "", *_size_lines(found, values), ""]
        lines += [f"## Points ({values['points']})", "", *self._table(), ""]
        lines += [
            "`mean` and `std` (noise included) are the model's. The "
            f"exact {100 * self.level:g} % interval of {self.target_name} lies inside the "
            "inflated interval and contains the deflated one (-: nothing is certain to lie in it).",
            "",
            "All of this is about inference at the model's hyperparameters. It says nothing of how "
            "good these are: compare held-out errors, and the evidence of other models.",
        ]
        return "\n".join(lines) + "\n"

    def _table(self) -> list[str]:
        columns = self.columns()
        total = len(next(iter(columns.values()), []))
        names = [*self.input_names[:3], "mean", "off by at most", "std", "exact std in"]
        names += ["inflated interval", "deflated interval"]
        if self.threshold is not None:
            names += [f"P({self.target_name} >= {self.threshold:g})", "exact P in"]
        answers = self.decisions()
        if answers is not None:
            names.append(f"exact P >= {self.least:g}?")
        errors = (self.scale * self.certificate.mean_error).tolist()
        rows = []
        for i in range(min(total, MAX_TABLE_ROWS)):
            row = {name: column[i] for name, column in columns.items()}
            cells = [_number(row[name]) for name in self.input_names[:3]]
            cells += [_number(row["mean"]), _number(errors[i], 2)]
            cells += [_number(row["std"]), _interval(row, "std")]
            cells += [_interval(row, "inflated"), _interval(row, "deflated")]
            if self.threshold is not None:
                cells += [_number(row["probability"]), _interval(row, "probability")]
            if answers is not None:
                cells.append(answers[i])
            rows.append(cells)
        lines = [_row(names), _row(["---"] * len(names)), *map(_row, rows)]
        if total > MAX_TABLE_ROWS:
            lines += ["", f"{total - MAX_TABLE_ROWS} more points are in the JSON file."]
        return lines


def _evidence_lines(found: Certificate) -> list[str]:
    """Bounds on the evidence, in ascending order."""
    if found.lower_bounds == found.upper_bounds:
        return [f"- log marginal likelihood, exact: {found.lower:.6g} nats (standardised targets)"]
    named = [(v, k, "lower") for k, v in found.lower_bounds.items()]
    named += [(v, k, "upper") for k, v in found.upper_bounds.items()]
    lines = [
        f"- {name}: {value:.6g} nats" for value, name, kind in sorted(named) if kind == "lower"
    ]
    lines.append(
        f"- **log marginal likelihood: between {found.lower:.6g} and {found.upper:.6g}** "
        "(standardised targets)"
    )
    lines += [
        f"- {name}: {value:.6g} nats" for value, name, kind in sorted(named) if kind == "upper"
    ]
    return lines


def _divergence_lines(found: Certificate, values: Mapping[str, Any], best: bool) -> list[str]:
    if found.num_inducing == 0:
        return []
    kl = found.kl
    lines = [
        "## Inducing points",
        "",
        f"KL(best posterior of these inducing points || exact posterior) is at most {kl:.3g} nats"
        + (f" (with jitter {found.jitter:.0e} on the inducing points)" if found.jitter else "")
        + ".",
    ]
    if not best:
        lines.append("The model predicts with another one, of which this says nothing.")
    elif kl <= 2.0:
        lines.append(
            f"The probability of any event is right to {values['total_variation']:.2g}; exact "
            f"variances of f are between {1 / values['variance_ratio_upper']:.4g} and "
            f"{1 / values['variance_ratio_lower']:.4g} times the sparse ones, everywhere."
        )
    else:
        lines.append("Above 2 nats this says little; the bounds below come from the kernel matrix.")
    return [*lines, ""]


def _size_lines(found: Certificate, values: Mapping[str, Any]) -> list[str]:
    inducing = f", {found.num_inducing} inducing points" if found.num_inducing else ""
    low, high = found.dimension_lower, found.dimension_upper
    dimension = f"{low:.1f}" if high - low < 0.05 else f"between {low:.1f} and {high:.1f}"
    lines = [
        f"- {found.num_data:,} training points{inducing}",
        f"- effective dimension (how many directions of the data are used): {dimension}",
        f"- noise variance {found.noise:.3g} (standardised targets)",
    ]
    if found.num_inducing:
        lines.append(f"- prior variance the inducing points miss: {found.trace_error:.3g} in all")
    if found.report is not None:
        lines.append(
            f"- conjugate gradients: {found.report.iterations} steps; {found.report.reason}"
        )
    lines.append(f"- this certificate took {values['seconds']:.1f} s")
    return lines


def _interval(row: Mapping[str, float | None], name: str) -> str:
    low, up = row[f"{name}_lower"], row[f"{name}_upper"]
    return "-" if low is None and up is None else f"[{_number(low)}, {_number(up)}]"


def _number(value: float | None, digits: int = 5) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
