"""Figure of a certificate: bounds on the evidence, and predictions with certified intervals."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from gpx.diagnostics.report import Report

INK, BAND, TRUTH, FAINT = "#1f4e79", "#9dc3e6", "#222222", "#deebf7"
MAX_POINTS = 200
"""Most points drawn."""
MIN_MARGIN_NATS = 0.05
"""Smallest margin around the evidence bounds."""
CUT_OFF = 8.0
"""Standard deviations from the prediction beyond which intervals are cut off."""


def draw(report: Report) -> Figure:
    """Certified intervals at the points; left of them bounds on the evidence, where there are."""
    if len(evidence_bounds(report)) > 1:
        figure = Figure(figsize=(11.0, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.6))
        _evidence(left, report)
    else:
        figure = Figure(figsize=(8.0, 4.2), layout="constrained")
        right = figure.subplots()
    _points(right, report)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def evidence_bounds(report: Report) -> list[tuple[float, str, str]]:
    """Value in nats, name and colour of each bound on the evidence, the lowest first."""
    found = report.certificate
    rows = [(value, name, INK) for name, value in found.lower_bounds.items()]
    if found.lower_bounds != found.upper_bounds:
        rows += [(value, name, TRUTH) for name, value in found.upper_bounds.items()]
    return sorted(rows)


def _evidence(axes, report: Report) -> None:  # type: ignore[no-untyped-def]
    found, rows = report.certificate, evidence_bounds(report)
    axes.axvspan(found.lower, max(found.upper, found.lower + 1e-12), color=BAND, alpha=0.6)
    for height, (value, _, colour) in enumerate(rows):
        axes.plot(value, height, "o", color=colour)
    axes.set_yticks(range(len(rows)), [f"{name}\n{value:.5g}" for value, name, _ in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    low, high = rows[0][0], rows[-1][0]
    margin = max(0.15 * (high - low), MIN_MARGIN_NATS)
    axes.set_xlim(low - margin, high + margin)
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("nats")
    axes.set_title("log marginal likelihood (shaded)", fontsize="medium")


def _points(axes, report: Report) -> None:  # type: ignore[no-untyped-def]
    found = report.certificate
    shown = slice(0, MAX_POINTS)
    spread = (found.predicted.variance.double() + found.noise).sqrt()[shown]
    middle = found.predicted.mean.double()[shown]
    intervals = report.intervals
    one_input = len(report.input_names) == 1
    if one_input:
        order = report.points[shown, 0].argsort()
        place = report.points[shown, 0][order].tolist()
        zero, unit = torch.zeros_like(spread), torch.ones_like(spread)
    else:
        order = torch.arange(len(middle))
        place = order.tolist()
        zero, unit = report.shift + report.scale * middle, report.scale * spread

    def on_axis(values: torch.Tensor) -> list[float]:
        return ((values - zero) / unit)[order].tolist()

    def original(values: torch.Tensor) -> torch.Tensor:
        return report.shift + report.scale * values[shown]

    axes.vlines(
        place,
        on_axis(intervals.inflated_lower[shown]),
        on_axis(intervals.inflated_upper[shown]),
        color=FAINT,
        linewidth=5,
        label=f"contains the exact {100 * report.level:g} % interval",
    )
    axes.vlines(
        place,
        on_axis(intervals.deflated_lower[shown]),
        on_axis(intervals.deflated_upper[shown]),
        color=BAND,
        linewidth=5,
        label="inside it",
    )
    axes.vlines(
        place,
        on_axis(original(found.moments.mean_lower)),
        on_axis(original(found.moments.mean_upper)),
        color=INK,
        linewidth=2,
        label="exact mean is here",
    )
    # marks intervals that are too short to be visible
    middles = 0.5 * (found.moments.mean_lower + found.moments.mean_upper)
    axes.plot(place, on_axis(original(middles)), "_", color=INK, markersize=6)
    axes.plot(
        place,
        on_axis(original(found.predicted.mean.double())),
        ".",
        color=TRUTH,
        markersize=4,
        label="predicted mean",
    )
    if one_input:
        axes.set_xlabel(report.input_names[0])
        axes.set_ylabel(report.target_name)
    else:
        axes.set_xlabel("point")
        axes.set_ylabel(f"{report.target_name}: standard deviations from the mean")
    lower, upper = (
        torch.tensor(on_axis(original(end)))
        for end in (found.moments.mean_lower, found.moments.mean_upper)
    )
    wide = float((upper - lower).median()) if len(lower) else 0.0
    if not one_input and wide > 2.0 * CUT_OFF:  # nothing but stripes: show how wide they are
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_title(f"verdict: {report.verdict.grade}", fontsize="medium")
        return
    # very wide intervals must not hide the predictions
    top = on_axis(original(found.predicted.mean.double()) + CUT_OFF * report.scale * spread)
    base = on_axis(original(found.predicted.mean.double()) - CUT_OFF * report.scale * spread)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, min(base, default=low)), min(high, max(top, default=high)))
    axes.set_title(f"verdict: {report.verdict.grade}", fontsize="medium")
