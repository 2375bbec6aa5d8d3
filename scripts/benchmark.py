"""Run all benchmarks and save their tables: python scripts/benchmark.py [--only svgp qsgp]

Each bench_*.py compares a part of gpx with a peer and with the machine's own rates in the same run,
and prints a table. This script runs them one after another with the same number of threads and
writes the tables, each with machine, versions, commit and date, to
experiments/benchmarks/RESULTS.md. Tables of scripts that are not run are kept. It needs the
``bench`` extra (GPyTorch). Run it on an idle machine; ratios vary less than times.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path

from gpx.runs.environment import source_commit

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "experiments" / "benchmarks" / "RESULTS.md"
PACKAGES = ("torch", "gpytorch", "linear_operator", "numpy", "scipy")


def available() -> dict[str, Path]:
    return {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}


HEADING = """# Benchmarks

Written by `scripts/benchmark.py`; each table is the output of one script. Ratios
above one: gpx is that many times faster, or uses that much less memory, than the peer of that row.
"""


def setting(threads: int) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return (
        f"{date.today().isoformat()}, {platform.machine()}, {platform.system()}, "
        f"{threads} threads, Python {platform.python_version()}, {versions}, "
        f"commit {source_commit() or 'not recorded'}"
    )


def kept(text: str) -> dict[str, str]:
    """Sections of an earlier RESULTS.md by script name."""
    parts = text.split("\n## `scripts/bench_")[1:]
    return {part.split(".py`", 1)[0]: "\n## `scripts/bench_" + part for part in parts}


def section(name: str, path: Path, threads: int) -> str:
    command = [sys.executable, str(path), "--threads", str(threads)]
    print(f"-- {path.name}", file=sys.stderr, flush=True)
    # Fourier transforms of MKL take as many threads as this says, whatever torch is told
    known = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=known)
    if done.returncode:
        sys.exit(f"error: {path.name} failed with status {done.returncode}")
    print(done.stdout, flush=True)
    return f"\n## `scripts/{path.name}`\n\n{setting(threads)}\n\n```\n{done.stdout.strip()}\n```\n"


def main() -> None:
    scripts = available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=scripts, default=list(scripts))
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    sections = kept(OUTPUT.read_text()) if OUTPUT.exists() else {}
    for name in arguments.only:
        sections[name] = section(name, scripts[name], arguments.threads)
        ordered = [sections[key] for key in sorted(sections)]
        OUTPUT.write_text(HEADING + "".join(ordered))


if __name__ == "__main__":
    main()
