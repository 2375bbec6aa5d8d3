"""Memory and speed of training on rows that lie in files, as their number grows.

    python scripts/bench_stream.py                       # 10^6 and 10^7 rows, a few minutes
    python scripts/bench_stream.py --rows 1e6 1e7 1e8    # 4 GB of files under the temporary folder
    python scripts/bench_stream.py --device cuda

For each number of rows it writes files of 8 inputs and a target (float32), trains ``approx=svgp``
on them in a process of its own, and removes them. The table has the peak memory of that process,
rows per second of the training steps (wall time) beside those of reading the file in order, and the
processor seconds of the whole run, which reads all rows for its statistics, its posterior and its
evidence besides its batches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
INPUTS = 8
PART_ROWS = 1_000_000


def write_parts(folder: Path, rows: int) -> None:
    """Pairs x_000.npy, y_000.npy of at most ``PART_ROWS`` rows: a smooth function with noise."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(INPUTS, 3)).astype(np.float32)
    for part, start in enumerate(range(0, rows, PART_ROWS)):
        size = min(PART_ROWS, rows - start)
        x = rng.normal(size=(size, INPUTS)).astype(np.float32)
        noise = 0.3 * rng.normal(size=size).astype(np.float32)
        np.save(folder / f"x_{part:03d}.npy", x)
        np.save(folder / f"y_{part:03d}.npy", np.sin(x @ directions).sum(1) + noise)


def trained(data: Path, run: Path, options: list[str]) -> tuple[dict[str, float], float, float]:
    """Contents of metrics.json, peak memory in MiB and processor seconds of one run."""
    log = run.with_suffix(".log")
    with log.open("wb") as lines:
        process = subprocess.Popen(
            [
                *(sys.executable, str(ROOT / "train.py"), "approx=svgp", "data=stream"),
                *(f"data.path={data}", f"hydra.run.dir={run}", "trainer.figures=false"),
                *("trainer.tensorboard=false", *options),
            ],
            stdout=lines,
            stderr=lines,
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"training on {data} failed: {log.read_text()}")
    seconds = usage.ru_utime + usage.ru_stime
    return json.loads((run / "metrics.json").read_text()), usage.ru_maxrss / 1024, seconds


def main() -> None:
    """Print a Markdown table, a line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=float, default=[1e6, 1e7])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", help="where files are written; default: the temporary folder")
    parser.add_argument(
        "options",
        nargs="*",
        default=["approx.num_inducing=64", "trainer.max_steps=1000"],
        help="of train.py",
    )
    given = parser.parse_args()
    print("| rows | file MiB | peak MiB | trained rows/s | file rows/s | RMSE | processor s |")
    print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for rows in map(int, given.rows):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            data = Path(folder) / "data"
            write_parts(data, rows)
            found, peak, seconds = trained(
                data, Path(folder) / "run", [f"trainer.device={given.device}", *given.options]
            )
            print(
                f"| {rows:,} | {found['data.file_mib']:,.0f} | {peak:,.0f} "
                f"| {found['train.rows_per_second']:,.0f} "
                f"| {found['data.file_rows_per_second']:,.0f} "
                f"| {found['test.rmse']:.4f} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
