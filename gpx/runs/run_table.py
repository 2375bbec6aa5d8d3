"""One table of several runs: options that differ, mean +- standard deviation of every metric."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from gpx.errors import DataError
from gpx.installation import resuming
from gpx.options.build import first_line
from gpx.options.tree import leaves

METRICS = ("test.rmse", "test.mnlp", "test.accuracy", "test.rmse_original", "train.seconds")
BASELINES = ("baseline.linear.rmse", "baseline.5-nn.rmse")
NAMED = (("data", "data.name"), ("model", "model.name"))
"""Title of a column, and the key of metrics.json."""
NOT_SETTINGS = ("seed", "data.split", "facts", "resume")
FOUND = {"num_data": "num_train", "num_inputs": "num_inputs", "ard_num_dims": "num_inputs"}
"""Options, by the end of their name, that hold a fact of the split unless another is given."""


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
        return [f"not finished: {run} (finish it: {resuming(run)})" for run in self.unfinished]


class SweepTable(Callback):
    """Prints the table of a sweep at its end, and writes it into the sweep's folder."""

    folders: ClassVar[list[Path]] = []
    """Of sweeps that have not ended."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Called by Hydra."""
        self.folders.append(Path(config.hydra.sweep.dir))

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Called by Hydra, unless a run of the sweep failed."""
        self.show()

    @classmethod
    def show(cls) -> None:
        """Print and write the table of the sweep that has ended; without one, do nothing."""
        if not cls.folders:
            return
        folder = cls.folders.pop()
        found = run_table([folder])
        if found.rows or found.unfinished:
            # printed first: the folder may be full or no longer writable
            print(f"\n{found}", *found.reminders, sep="\n")
            (folder / "table.md").write_text(f"{found}\n", encoding="utf-8")
            print(f"table: {folder / 'table.md'}")


def _settings_of(run: Path) -> dict[str, Any]:
    try:
        config = OmegaConf.load(run / "config.yaml")
    except (YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{run / 'config.yaml'} cannot be read: {first_line(error)}") from None
    if not isinstance(config, DictConfig):
        raise DataError(f"{run / 'config.yaml'} holds no options of a run")
    flat = dict(leaves(OmegaConf.to_container(config, resolve=True), lists=False))
    return {name: value for name, value in flat.items() if not _is_found(name, flat)}


def _is_found(name: str, flat: Mapping[str, Any]) -> bool:
    """Whether an option holds what a split, a machine or a fit has found, and is no setting."""
    last, value = name.rpartition(".")[2], flat[name]
    # a budget that was not given is that of the machine at the time
    if name.startswith(NOT_SETTINGS) or last == "memory_budget":
        return True
    if last in FOUND:
        return bool(value == flat.get(f"facts.{FOUND[last]}"))
    if not flat.get("facts.kernel_choice"):
        return False
    # of a kernel that was chosen and fitted every run has its own, and its own noise
    fitted = isinstance(value, float | list) and last != "noise_floor"
    return name.startswith("kernel.") or (name.startswith("likelihood.") and fitted)


def _metrics_of(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{run / 'metrics.json'} cannot be read: {first_line(error)}") from None
    if not isinstance(found, dict) or not all(key in found for _, key in NAMED):
        raise DataError(f"{run / 'metrics.json'} does not name the data set and the model of a run")
    return found


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _label(settings: dict[str, Any], varying: list[str]) -> tuple[str, ...]:
    return tuple(str(settings.get(name, "-")).removeprefix("gpx.") for name in varying)


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.4f}"
    if not all(math.isfinite(value) for value in values):
        return f"{math.fsum(values):.4f}"  # NaN or infinite
    return f"{statistics.mean(values):.4f} +- {statistics.stdev(values):.4f}"


def run_table(folders: Sequence[Path]) -> RunTable:
    """The table of all runs in these folders and below.

    Runs that differ only in seed and split share a row, with the number of runs, and mean +-
    standard deviation of every metric. Baselines on the same splits are further columns.

    Raises:
        DataError: config.yaml or metrics.json of a finished run cannot be read.
    """
    runs = sorted({p.parent for folder in folders for p in folder.rglob("config.yaml")})
    finished = [run for run in runs if (run / "metrics.json").exists()]
    unfinished = [run for run in runs if run not in finished]
    settings = {run: _settings_of(run) for run in finished}
    metrics = {run: _metrics_of(run) for run in finished}
    names = {run: tuple(str(metrics[run][key]) for _, key in NAMED) for run in finished}

    every = sorted({name for s in settings.values() for name in s})
    varying = [n for n in every if len({str(s.get(n, "-")) for s in settings.values()}) > 1]
    # columns of data set and model replace the options that follow from them
    owners = {"approx", "objective", "optimizer", "init", "mean"}
    chosen = {n.split(".")[0] for n in varying if n.endswith("_target_")}
    implied = (owners & chosen) | {"data"}

    def follows(option: str) -> bool:
        pairs = {(names[run], str(settings[run].get(option, "-"))) for run in finished}
        return option.split(".")[0] in implied and len(pairs) == len(set(names.values()))

    varying = [n for n in varying if not follows(n)]

    groups: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for run in finished:
        groups[names[run] + _label(settings[run], varying)].append(run)
    measured = {
        # NaN and infinite ones are null in the file
        run: {m: math.nan if v is None else v for m, v in found.items() if _is_number(v)}
        for run, found in metrics.items()
    }
    present = [m for m in METRICS + BASELINES if any(m in measured[run] for run in finished)]
    header = [title for title, _ in NAMED] + varying + ["runs", *present]
    rows = []
    for key in sorted(groups):
        members = groups[key]
        cells = [_spread([measured[r][m] for r in members if m in measured[r]]) for m in present]
        rows.append([*key, str(len(members)), *cells])
    return RunTable(header, rows, unfinished)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of texts, with aligned columns."""
    header, *rows = [[cell.replace("|", r"\|") for cell in line] for line in [header, *rows]]
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
