"""The command line of ``gpx compare``: one table of several runs."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from gpx.commands.mistakes import answered
from gpx.commands.named_values import read_options
from gpx.errors import ConfigError
from gpx.installation import command
from gpx.runs.run_table import run_table

USAGE = """\
Compare runs in one table. Those that differ only in seed and split share a row: the number of runs,
mean +- standard deviation of every metric, and baselines on the same splits. Columns are the
options that differ. A sweep (train -m) prints this table of its own runs when it ends.

    {command} runs=multirun/...
    {command} runs=outputs/kin40k-svgp,outputs/kin40k-vecchia output=table.csv

OPTIONS
  runs=FOLDER     run folders, or folders of them at any depth (several: a,b)
  output=FILE     also write the table here, as CSV
"""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``gpx compare``."""
    answered("compare", USAGE, _compare, arguments)


def _compare(arguments: list[str]) -> None:
    """Print the table of the runs, and write it."""
    known = ("runs", "output")
    options = read_options(arguments, known, required=("runs",), script=command("compare"))
    whole = Path(options["runs"])  # a folder's name may hold a comma
    listed = options["runs"]
    if listed[:1] + listed[-1:] == "[]":  # as lists of train are written
        listed = listed[1:-1]
    folders = [whole] if whole.is_dir() else [Path(n.strip()) for n in listed.split(",")]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"runs={folder} is no folder")
    found = run_table(folders)
    for line in found.reminders:
        print(line, file=sys.stderr)
    if not found.rows:
        raise ConfigError(f"runs={options['runs']}: there is no finished run in it")
    print(found)
    if "output" in options:
        with Path(options["output"]).open("w", newline="") as file:
            csv.writer(file).writerows([found.header, *found.rows])
