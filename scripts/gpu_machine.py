"""Helpers of all stages of ``gpu_hour.py``: timing on a device, runs, and output of rows."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import io
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from timing import spent
from torch import Tensor

from gpx.errors import GPXError
from gpx.kernels import RBF
from gpx.operators import KernelMatrix
from gpx.options.composition import composed
from gpx.runs import RunFolder, run
from gpx.runs.environment import source_commit

ROOT = Path(__file__).resolve().parents[1]
COMMIT = os.environ.get("GPX_COMMIT") or source_commit(ROOT)
"""The variable names the commit of a copy without .git."""
DTYPES = {"float64": torch.float64, "float32": torch.float32}
SILENT_RUN = ("trainer.tensorboard=false", "trainer.figures=false", "trainer.eval_every=0")
LENGTHSCALE, NOISE = 2.0, 0.1
SMALL_DATA = ("data=robot_arm", "data.num_points=400", "init.num_points=100")


@functools.cache
def card() -> str | None:
    """Name of the GPU; None without one."""
    with contextlib.suppress(RuntimeError):  # a driver that fails
        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    return None


def write_row(name: str, **row: Any) -> None:
    """Print a row as JSON; ``results`` of ``gpu_hour.py`` shows its keys."""
    # libraries may have left a line without its end; one write, as threads write side by side
    text = json.dumps({"name": name, "commit": COMMIT, "card": card(), **row})
    sys.stdout.write(f"\n{text}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def catch_errors(name: str) -> Iterator[None]:
    """Run a part of a stage; an error becomes a row, and the stage continues."""
    try:
        yield
    except Exception as error:  # of any kind: the next part may still work
        write_row(name, **failure(error))
    finally:
        # fails after an error that leaves the device unusable for this process, but not for others
        with contextlib.suppress(RuntimeError):
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def failure(error: Exception) -> dict[str, Any]:
    """The part of a row that says what went wrong, and where in gpx."""
    places = traceback.extract_tb(error.__traceback__)
    own = [p for p in places if ROOT / "gpx" in Path(p.filename).parents]
    shown = [*own[-3:], *[places[-1]] * (places[-1] not in own)]
    where = ", ".join(f"{Path(place.filename).name}:{place.lineno}" for place in shown)
    said = " ".join(str(error).split())[:400]
    return {"passed": False, "note": f"{type(error).__name__}: {said} ({where})"}


def in_process(function: Callable[[Any], Any], task: Any) -> Any:
    """The result of a function in its own process, which may end in a fault of compiled code."""
    spawned = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        # KeOps must not share files with other processes while it compiles
        mock.patch.dict(os.environ, KEOPS_CACHE_FOLDER=folder),
        concurrent.futures.ProcessPoolExecutor(1, mp_context=spawned) as pool,
    ):
        return pool.submit(function, task).result()


class Machine:
    """A device, a time limit, and whether sizes are tiny (``--quick``)."""

    def __init__(self, device: str, quick: bool, seconds: float) -> None:
        self.device, self.quick = torch.device(device), quick
        self.until = time.monotonic() + seconds
        self.is_gpu = self.device.type == "cuda"

    def size(self, full: int, tiny: int) -> int:
        """``full``, or ``tiny`` with ``--quick``."""
        return tiny if self.quick else full

    def left(self) -> float:
        """Seconds until the stage is stopped."""
        return self.until - time.monotonic()

    def wait(self) -> None:
        """Wait until the device has finished all work."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], repeats: int = 5) -> float:
        """Median seconds of ``work``, after one run that is not timed."""
        work()
        self.wait()
        turns = 1 if self.quick else repeats
        return statistics.median(spent(work, str(self.device)).wall for _ in range(turns))

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
        """Standard normal numbers, the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.device, dtype)


def run_metrics(options: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """Train and return the metrics."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return run(composed(options), RunFolder(Path(folder) / "run"))


def run_train_py(
    machine: Machine, name: str, options: Sequence[str], limit: float
) -> tuple[dict[str, Any], float] | None:
    """Run ``train.py`` in its own process; returns metrics and seconds.

    If it takes more than ``limit`` seconds or fails, a row says how far it came; returns None.
    """
    words = [sys.executable, "train.py", *options, f"trainer.device={machine.device}"]
    with tempfile.TemporaryDirectory() as folder:
        words += [*SILENT_RUN, "trainer.baselines=false", f"hydra.run.dir={folder}/run"]
        started = time.perf_counter()
        process = subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = process.communicate(timeout=max(5.0, limit))
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            last = [line for line in said.splitlines() if line.startswith("step")][-1:]
            note = f"stopped after {limit:.0f} s: {' '.join(last)}"
            write_row(name, passed=None, seconds_at_least=limit, note=note)
            return None
        seconds = time.perf_counter() - started
        if process.returncode:
            write_row(name, passed=False, note=(said.strip().splitlines() or ["?"])[-1][:300])
            return None
        return json.loads((Path(folder) / "run" / "metrics.json").read_text()), seconds


def backends(machine: Machine) -> list[str]:
    """Names of the backends that are available on this machine."""
    x, found = machine.normal(4, 2), []
    for name in ("dense", "chunked", "keops", "triton"):
        with contextlib.suppress(GPXError):
            KernelMatrix.of(RBF(2).to(machine.device), x, backend=name)  # type: ignore[arg-type]
            found.append(name)
    return found
