"""Run every benchmark and keep what it printed: python scripts/benchmark.py [--only svgp qsgp]

Each bench_*.py measures one room of gpx against its peer and against the machine's own rates in the
same run, and prints a table. This script runs them one after another with the same thread count and
writes the tables, with machine, versions and date, to experiments/benchmarks/RESULTS.md. Needs the
``bench`` extra (GPyTorch). Run it on an idle machine; ratios are steadier than seconds.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "experiments" / "benchmarks" / "RESULTS.md"
PACKAGES = ("torch", "gpytorch", "linear_operator", "numpy", "scipy")


def available() -> dict[str, Path]:
    return {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}


def heading(threads: int) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return (
        "# Benchmarks\n\n"
        "Written by `scripts/benchmark.py`; each table is what one script printed. Ratios\n"
        "above one say how many times faster (or leaner) gpx is than the peer of that row.\n\n"
        f"{date.today().isoformat()}, {platform.machine()}, {platform.system()}, "
        f"{threads} threads, Python {platform.python_version()}, {versions}\n"
    )


def section(name: str, path: Path, threads: int) -> str:
    command = [sys.executable, str(path), "--threads", str(threads)]
    print(f"-- {path.name}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"error: {path.name} failed with status {done.returncode}")
    print(done.stdout, flush=True)
    return f"\n## `scripts/{path.name}`\n\n```\n{done.stdout.strip()}\n```\n"


def main() -> None:
    scripts = available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=scripts, default=list(scripts))
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    text = heading(arguments.threads)
    for name in arguments.only:
        text += section(name, scripts[name], arguments.threads)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
