"""Triton: its kernels under its interpreter, and what they compile to."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gpx.backends import triton_installed

ROOT = Path(__file__).parents[2]
KERNELS = sorted({*Path(__file__).parent.glob("triton/test_*.py")})
INTERPRETED = [path for path in KERNELS if path.stem != "test_availability"]


def interprets():
    """Whether the interpreter takes loops whose bounds are arguments: from Triton 3.7 on.

    In 3.6 they need a NumPy before 2.4. What it compiles for a GPU is not concerned.
    """
    if not triton_installed():
        return False
    return tuple(map(int, metadata.version("triton").split(".")[:2])) >= (3, 7)


@pytest.mark.skipif(not triton_installed(), reason="triton is not installed")
def test_kernels_compile_for_an_h200_without_spills_in_few_instructions():
    script = ROOT / "scripts" / "triton_counts.py"
    code = (
        "import triton_counts as counts; split = ('float32', 'tf32x3');"
        "rows = [counts.product_row(p, *split) for p in ('matern52', 'rational_quadratic')];"
        "rows += [counts.fourier_row('product', 1, made, *split) for made in (False, True)];"
        "rows += [counts.fourier_row('moments', 16, False, *split)];"
        "assert all(counts.checks(rows).values()), rows"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(not interprets(), reason="triton 3.7 or newer is not installed")
@pytest.mark.parametrize("path", INTERPRETED, ids=lambda p: p.stem)
def test_kernels_under_the_interpreter(path):
    """In a process of its own: Triton decides when it is imported, for the whole process."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "triton", str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
