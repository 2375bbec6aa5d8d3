"""Rows that lie in files: memory and speed of training as their number grows.

    python experiments/swsgp/stream.py              # 10^6 and 10^7 rows: minutes of one core
    python experiments/swsgp/stream.py --rows 1e8   # one more row: 3.6 GB of files for its time
    python experiments/swsgp/stream.py --rows 1e8 --passes 1   # batches of all rows: ten minutes

The measurements are those of scripts/bench_stream.py. Writes stream.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from bench_stream import INPUTS, trained, write_parts
from record import COMMIT, earlier, write

HERE = Path(__file__).resolve().parent
OPTIONS = [
    "trainer.device=cpu",
    "trainer.num_threads=1",
    "approx.num_inducing=64",
    "trainer.batch_size=1024",
    "optimizer.settled=null",
]
BATCH, STEPS = 1024, 1000
LEAST = 1_000_000
"""Rows that the others are compared with."""


def measured(rows: int, steps: int, place: str | None) -> dict[str, Any]:
    """One run as a row of the table; its files are removed."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        data = Path(folder) / "data"
        write_parts(data, rows)
        found, seconds = trained(
            data, Path(folder) / "run", [*OPTIONS, f"trainer.max_steps={steps}"]
        )
    own, files = found["train.rows_per_second"], found["data.file_rows_per_second"]
    return {
        "rows": rows,
        "rows in batches": found["train.rows_seen"],
        "file MiB": found["data.file_mib"],
        "peak MiB": found["memory.peak_mib"],
        "trained rows/s": own,
        "file rows/s": files,
        "trained / file": own / files,
        "rmse": found["test.rmse"],
        "processor seconds": seconds,
        "commit": COMMIT,
    }


def report(rows: list[dict[str, Any]]) -> None:
    """stream.json and RESULTS.md."""
    base = [row for row in rows if row["rows"] == LEAST]
    checks: dict[str, bool | None] = {}
    for size, power in ((10_000_000, 7), (100_000_000, 8)):
        own = [row for row in rows if row["rows"] == size]
        both = bool(own and base)
        checks[f"10^{power} rows: peak memory within 10 % of that at 10^6"] = (
            _most(own, "peak MiB") <= 1.1 * _most(base, "peak MiB") if both else None
        )
        checks[f"10^{power} rows: at least 0.8 times the trained rows a second at 10^6"] = (
            _most(own, "trained rows/s") >= 0.8 * _most(base, "trained rows/s") if both else None
        )
    notes = [
        f"Files of {INPUTS} inputs and a target in float32; approx=svgp with 64 inducing points,",
        f"{STEPS:,} steps of {BATCH:,} rows, or as many as batches of all rows take, in a process",
        "of one thread. Peak memory is that of the process.",
        "Trained rows per second are those of the steps, file rows per second those of reading the",
        "files once in order, both in wall-clock time on a shared",
        "machine. Processor seconds are of the whole run, which reads all rows for its statistics,",
        "its posterior and its evidence in addition to its batches.",
    ]
    title = "Rows in files: memory and throughput"
    write(HERE, "stream", title, notes, sorted(rows, key=_order), checks)


def _most(rows: list[dict[str, Any]], key: str) -> float:
    return max(float(row[key]) for row in rows)


def _order(row: dict[str, Any]) -> tuple[int, int]:
    return row["rows"], row["rows in batches"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", type=float, default=[1e6, 1e7])
    parser.add_argument("--passes", type=float, help=f"over all rows; default: {STEPS:,} steps")
    parser.add_argument("--folder", help="where files are written; default: the temporary folder")
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    options = parser.parse_args()
    rows = earlier(HERE / "stream.json")
    for size in map(int, options.rows):
        steps = STEPS if options.passes is None else math.ceil(options.passes * size / BATCH)
        own = (size, steps * BATCH)
        kept = [row for row in rows if _order(row) != own]
        if options.again or len(kept) == len(rows):
            rows = [*kept, measured(size, steps, options.folder)]
            report(rows)


if __name__ == "__main__":
    main()
