"""Memory and speed of training on rows in files, for growing numbers of rows.

    python scripts/bench_stream.py                       # 10^6 and 10^7 rows, a few minutes
    python scripts/bench_stream.py --rows 1e6 1e7 1e8    # 4 GB of files under the temporary folder
    python scripts/bench_stream.py --device cuda

For each number of rows the script writes files of 8 inputs and a target (float32), trains
``approx=svgp`` on them in a new process, and deletes them. The table has the peak memory of that
process, rows per second of the training steps and of reading the files in order (wall-clock time),
and processor seconds of the whole run, which also reads all rows for statistics, posterior and
evidence.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from tables import show

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


def trained(data: Path, run: Path, options: list[str]) -> tuple[dict[str, float], float]:
    """metrics.json and processor seconds of one run in its own process."""
    command = [
        *(sys.executable, str(ROOT / "train.py"), "approx=svgp", "data=stream"),
        *(f"data.path={data}", f"hydra.run.dir={run}", "trainer.figures=false"),
        *("trainer.tensorboard=false", *options),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"training on {data} failed: {done.stdout}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads((run / "metrics.json").read_text()), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=float, default=[1e6, 1e7])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where files are written; default: the temporary folder")
    parser.add_argument(
        "options",
        nargs="*",
        default=["approx.num_inducing=64", "trainer.max_steps=1000"],
        help="of train.py",
    )
    given = parser.parse_args()
    table = []
    for rows in map(int, given.rows):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            data = Path(folder) / "data"
            write_parts(data, rows)
            options = [f"trainer.device={given.device}", f"trainer.num_threads={given.threads}"]
            found, seconds = trained(data, Path(folder) / "run", [*options, *given.options])
        table.append(
            {
                "rows": rows,
                "file MiB": round(found["data.file_mib"]),
                "peak MiB": round(found["memory.peak_mib"]),
                "trained rows/s": round(found["train.rows_per_second"]),
                "file rows/s": round(found["data.file_rows_per_second"]),
                "RMSE": found["test.rmse"],
                "processor s": round(seconds),
            }
        )
    show(table)


if __name__ == "__main__":
    main()
