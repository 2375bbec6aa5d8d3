"""One table of several runs: options that differ, mean +- standard deviation of every metric."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from gpx.installation import command

METRICS = ("test.rmse", "test.mnlp", "test.accuracy", "test.rmse_original", "train.seconds")
BASELINES = ("baseline.linear.rmse", "baseline.5-nn.rmse")
NOT_SETTINGS = ("seed", "data.split", "facts", "resume")


class RunTable(NamedTuple):
    """Finished runs, one row for those that differ only in seed and split, and unfinished ones."""

    header: list[str]
    rows: list[list[str]]
    unfinished: list[Path]

    def __str__(self) -> str:
        return markdown(self.header, self.rows)

    @property
    def reminders(self) -> list[str]:
        """A line for each unfinished run."""
        finish = command("train")
        return [
            f"not finished: {run} (finish it: {finish} resume={run})" for run in self.unfinished
        ]


class SweepTable(Callback):
    """Prints the table of a sweep at its end, and writes it into the sweep's folder."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Called by Hydra."""
        folder = Path(config.hydra.sweep.dir)
        found = run_table([folder])
        if found.rows or found.unfinished:
            (folder / "table.md").write_text(f"{found}\n")
            print(f"\n{found}\ntable: {folder / 'table.md'}", *found.reminders, sep="\n")


def _flatten(node: DictConfig, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        name = prefix + str(key)
        if isinstance(value, DictConfig):
            flat |= _flatten(value, name + ".")
        else:
            flat[name] = value if not OmegaConf.is_config(value) else OmegaConf.to_container(value)
    return flat


def _runs_in(folders: Sequence[Path]) -> list[Path]:
    return sorted({p.parent for folder in folders for p in folder.rglob("config.yaml")})


def _settings_of(run: Path) -> dict[str, Any]:
    config = OmegaConf.load(run / "config.yaml")
    assert isinstance(config, DictConfig)
    flat = _flatten(config)
    return {k: v for k, v in flat.items() if not k.startswith(NOT_SETTINGS)}


def _label(settings: dict[str, Any], varying: list[str]) -> tuple[str, ...]:
    return tuple(str(settings.get(name, "-")).removeprefix("gpx.") for name in varying)


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{statistics.mean(values):.4f} +- {statistics.stdev(values):.4f}"


def run_table(folders: Sequence[Path]) -> RunTable:
    """The table of all runs in these folders and below.

    Runs that differ only in seed and split share a row, with the number of runs, and mean +-
    standard deviation of every metric. Baselines on the same splits are further columns.
    """
    runs = _runs_in(folders)
    finished = [run for run in runs if (run / "metrics.json").exists()]
    unfinished = [run for run in runs if run not in finished]
    settings = {run: _settings_of(run) for run in finished}
    metrics = {run: json.loads((run / "metrics.json").read_text()) for run in finished}

    every = sorted({name for s in settings.values() for name in s})
    varying = [n for n in every if len({str(s.get(n, "-")) for s in settings.values()}) > 1]
    # columns of data set and model replace the options that follow from them
    named = [("data", "data.name"), ("model", "model.name")]
    owners = {"data", "approx", "objective", "optimizer", "init", "mean", "trainer"}
    chosen = {n.split(".")[0] for n in varying if n.endswith("_target_")}
    varying = [n for n in varying if n.split(".")[0] not in (owners & chosen) | {"data"}]

    groups: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for run in finished:
        names = tuple(str(metrics[run][key]) for _, key in named)
        groups[names + _label(settings[run], varying)].append(run)
    present = [m for m in METRICS + BASELINES if any(m in metrics[run] for run in finished)]
    header = [title for title, _ in named] + varying + ["runs", *present]
    rows = []
    for key in sorted(groups):
        members = groups[key]
        cells = [_spread([metrics[r][m] for r in members if m in metrics[r]]) for m in present]
        rows.append([*key, str(len(members)), *cells])
    return RunTable(header, rows, unfinished)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of texts, with aligned columns."""
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
