"""Gather the runs of a sweep into one table: python scripts/gather.py multirun/... [--csv out.csv]

Runs that differ only in seed and split share a row, with the number of runs, and mean +- standard
deviation of every metric. Baselines on the same splits are further columns. Unfinished runs are
listed.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tables import markdown

METRICS = ("test.rmse", "test.mnlp", "test.accuracy", "test.rmse_original", "train.seconds")
BASELINES = ("baseline.linear.rmse", "baseline.5-nn.rmse")
NOT_SETTINGS = ("seed", "data.split", "facts", "resume")


def flatten(node: DictConfig, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, DictConfig):
            flat |= flatten(value, name + ".")
        else:
            flat[name] = value if not OmegaConf.is_config(value) else OmegaConf.to_container(value)
    return flat


def find_runs(folders: list[Path]) -> list[Path]:
    return sorted({p.parent for folder in folders for p in folder.rglob("config.yaml")})


def settings_of(run: Path) -> dict[str, Any]:
    config = OmegaConf.load(run / "config.yaml")
    assert isinstance(config, DictConfig)
    flat = flatten(config)
    return {k: v for k, v in flat.items() if not k.startswith(NOT_SETTINGS)}


def label(settings: dict[str, Any], varying: list[str]) -> tuple[str, ...]:
    return tuple(str(settings.get(name, "-")).removeprefix("gpx.") for name in varying)


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{statistics.mean(values):.4f} +- {statistics.stdev(values):.4f}"


def gather(folders: list[Path]) -> tuple[list[str], list[list[str]], list[Path]]:
    """Header, rows, and the runs without metrics.json."""
    runs = find_runs(folders)
    finished = [run for run in runs if (run / "metrics.json").exists()]
    unfinished = [run for run in runs if run not in finished]
    settings = {run: settings_of(run) for run in finished}
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
        groups[names + label(settings[run], varying)].append(run)
    present = [m for m in METRICS + BASELINES if any(m in metrics[run] for run in finished)]
    header = [title for title, _ in named] + varying + ["runs", *present]
    rows = []
    for key in sorted(groups):
        members = groups[key]
        cells = [spread([metrics[r][m] for r in members if m in metrics[r]]) for m in present]
        rows.append([*key, str(len(members)), *cells])
    return header, rows, unfinished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="sweep or output folders")
    parser.add_argument("--csv", type=Path, help="also write the table here")
    arguments = parser.parse_args()
    missing = [str(f) for f in arguments.folders if not f.is_dir()]
    if missing:
        sys.exit(f"error: {missing[0]} is not a folder")
    header, rows, unfinished = gather(arguments.folders)
    for run in unfinished:
        print(f"not finished: {run} (finish it with: gpx train resume={run})", file=sys.stderr)
    if not rows:
        sys.exit("error: no finished runs found")
    print(markdown(header, rows))
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    main()
