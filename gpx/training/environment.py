"""Record of what a run ran on: versions, device, commit, command."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "torch",
    "linear_operator",
    "numpy",
    "scipy",
    "hydra-core",
    "omegaconf",
    "pykeops",
    "triton",
)


def environment_record(
    device: torch.device, seed: int, checksums: Mapping[str, str]
) -> dict[str, Any]:
    """Everything needed to judge whether another run is comparable.

    Args:
        device: the run's device.
        seed: of the run.
        checksums: SHA-256 of the data files read.
    """
    import gpx

    versions: dict[str, str | None] = {"python": platform.python_version(), "gpx": gpx.__version__}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "versions": versions,
        "platform": platform.platform(),
        "device": str(device),
        "device_name": _device_name(device),
        "num_threads": torch.get_num_threads(),
        "git_commit": source_commit(),
        "seed": seed,
        "data_checksums": dict(checksums),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def source_commit(folder: Path = Path(__file__).parent) -> str | None:
    """Commit of the source tree gpx runs from, with ``-dirty`` where code or options differ.

    New files count. What runs leave behind (tables and pictures of experiments, documents) does
    not: an experiment that writes its first row would otherwise mark every later one.

    Args:
        folder: any folder of the repository.

    Returns:
        Forty hexadecimal digits, perhaps with ``-dirty``; None outside a git repository.
    """
    try:
        commit = _git(folder, "rev-parse", "--verify", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", *CODE)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


CODE = (
    ":/gpx",
    ":/configs",
    ":/scripts",
    ":/experiments/*.py",
    ":(top,glob)*.py",
    ":/constraints.txt",
)
"""What a run depends on, as git names it: the star in experiments crosses folders."""


def _git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder, without blanks at the ends."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    return done.stdout.strip()


def peak_memory_mib(device: torch.device) -> float:
    """Peak memory of the process so far in MiB: of the GPU on CUDA, resident memory otherwise."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
