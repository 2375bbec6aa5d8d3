"""Defaults, which average over hyperparameters, beside the most probable ones of the same kernels.

``few_rows`` and ``computer_experiments`` import this file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

from record import tally

import gpx

METHODS: dict[str, list[str]] = {
    "averaged": [],
    "most probable": ["approx=exact", "kernel=auto"],
}


def measured(seen: tuple[Any, Any], new: tuple[Any, Any], method: str) -> dict[str, Any]:
    """Errors on the rows ``new`` after training on ``seen``, both (x, y)."""
    began = time.process_time()
    options = (*METHODS[method], "trainer.num_threads=1")
    metrics = gpx.fit(*seen, *options, test=new, quiet=True, keep=False).metrics
    return {
        "hyperparameters": method,
        "rmse": metrics["test.rmse"],
        "mnlp": metrics["test.mnlp"],
        "coverage": metrics["test.coverage_95"],
        "rhat": metrics.get("train.rhat_hyperparameters"),
        "seconds": time.process_time() - began,
        "kernel": metrics["model.kernel_choice"].partition(", chosen")[0],
    }


def paired(
    cells: list[dict[str, Any]], case: Mapping[str, Any], runs: int
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """A row of means for each of ``METHODS``, and their cells; none if some of the runs lack.

    Args:
        case: values that the cells of one case share.
        runs: number of cells of each method.
    """
    own = [c for c in cells if all(c[key] == value for key, value in case.items())]
    groups = [[c for c in own if c["hyperparameters"] == method] for method in METHODS]
    if any(len(each) < runs for each in groups):
        return [], []
    rows = []
    for method, each in zip(METHODS, groups, strict=True):
        row = {**case, "hyperparameters": method}
        for key in ("rmse", "mnlp", "coverage", "seconds"):
            row[key] = statistics.fmean(c[key] for c in each)
        rows.append(row | {"commit": tally(each)})
    return rows, groups
