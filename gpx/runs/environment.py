"""Record of the environment of a run: versions, device, commit, command."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from gpx.linalg.matmul import asked_matmul, kernel_precision

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
    """What is needed to judge whether another run is comparable; goes into environment.json.

    Args:
        device: the run's device.
        seed: of the run.
        checksums: SHA-256 of the data files read.
    """
    import gpx

    versions: dict[str, str | None] = {"python": platform.python_version(), "gpx": gpx.__version__}
    return {
        "versions": versions | {package: _version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "device": str(device),
        "device_name": _device_name(device),
        "num_threads": torch.get_num_threads(),
        "matmul": matmul_record(),
        "gpu": gpu_record(device),
        "git_commit": source_commit(),
        "seed": seed,
        "data_checksums": dict(checksums),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


@cache
def _version(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def matmul_record() -> dict[str, Any]:
    """Settings of the precision of float32 matrix products, as torch has them now."""
    return {
        "asked": asked_matmul(),
        "kernels": kernel_precision(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "fp16_reduced_precision_reduction": bool(
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
        "tf32_override": os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    }


def gpu_record(device: torch.device) -> dict[str, Any] | None:
    """Memory, compute capability and driver of a CUDA device; None for another device."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "memory_bytes": int(total),
        "free_bytes": int(free),
        "capability": f"{major}.{minor}",
        "driver": _driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


def _driver_version() -> str | None:
    """Version of the driver as nvidia-smi prints it; None if it cannot be run."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def source_commit(folder: Path = Path(__file__).parent) -> str | None:
    """Commit of the source tree of gpx, with ``-dirty`` if code or configs differ from it.

    New files count as a difference. Results of experiments and documents do not: the first row of
    an experiment would otherwise mark all later ones as dirty.

    Args:
        folder: any folder of the repository.

    Returns:
        forty hexadecimal digits, perhaps with ``-dirty``; None outside a git repository.
    """
    try:  # one command for both, as every run waits for it
        options = ("--porcelain=v2", "--branch", "--no-ahead-behind")
        lines = _git(folder, "status", *options, "--", *CODE).splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    commit = next((x.removeprefix(COMMIT) for x in lines if x.startswith(COMMIT)), "(initial)")
    if commit == "(initial)":  # nothing has been committed yet
        return None
    return f"{commit}-dirty" if any(not line.startswith("#") for line in lines) else commit


COMMIT = "# branch.oid "
"""Line of ``git status`` with the commit."""


CODE = (
    ":/gpx",
    ":/configs",
    ":/scripts",
    ":/experiments/*.py",
    ":(top,glob)*.py",
    ":/constraints.txt",
)
"""Files that a run depends on, as pathspecs of git; the star in experiments crosses folders."""


def _git(folder: Path, *arguments: str) -> str:
    """Output of a git command in a folder, stripped; takes no locks."""
    done = subprocess.run(
        ["git", "--no-optional-locks", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    return done.stdout.strip()


def peak_memory_mib(device: torch.device) -> float:
    """Peak memory of this process in MiB: allocated on the GPU for CUDA, resident otherwise.

    NaN where the system does not tell it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:  # unlike ru_maxrss, VmHWM does not include the process that started this one
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:", 1)[1].split(None, 1)[0]) / 2**10
    except (OSError, IndexError):  # not Linux
        try:
            import resource
        except ImportError:  # Windows
            return math.nan
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)
