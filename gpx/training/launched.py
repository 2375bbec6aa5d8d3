"""The processes that ``torchrun`` starts: they form a group for the length of a run."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gpx.errors import BackendUnavailable, ConfigError, class_name
from gpx.linalg.processes import ALONE, Processes, sharing, work_shared
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective

EXCHANGE_TIMEOUT = timedelta(days=7)
"""How long a process waits for the others, which may be predicting and drawing figures."""


@contextmanager
def launched_processes() -> Iterator[Processes]:
    """Inside, the processes that ``torchrun`` started share the work; a single one does it all.

    Each process uses the GPU of its ``LOCAL_RANK`` if there are GPUs. At the end they wait for one
    another.

    Raises:
        BackendUnavailable: more processes on a machine than it has GPUs.
    """
    if not _is_launched() or int(os.environ["WORLD_SIZE"]) < 2:
        yield ALONE
        return
    backend = "gloo"
    if torch.cuda.is_available():
        place, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if place >= devices:
            raise BackendUnavailable(
                f"process {place + 1} of this machine has no GPU of its own: there are {devices}; "
                f"start torchrun with --nproc_per_node={devices}"
            )
        torch.cuda.set_device(place)
        backend = "cpu:gloo,cuda:nccl"
    # Imported before the group exists: its default arguments would keep a reference to the group,
    # whose threads would then live on and may abort the interpreter at exit.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group(backend, timeout=EXCHANGE_TIMEOUT)
    try:
        processes = Processes(dist.get_rank(), dist.get_world_size())
        with warnings.catch_warnings(), work_shared(processes):
            if processes.number:  # the first process shows the same warnings
                warnings.simplefilter("ignore")
            yield processes
            processes.all_max(0.0)
    finally:
        dist.destroy_process_group()


def common_path(path: Path) -> Path:
    """The path of the first process: names of folders contain the time, which differs."""
    if sharing().count == 1:
        return path
    found = [str(path)]
    dist.broadcast_object_list(found, device=torch.device("cpu"))
    return Path(found[0])


def launched_number() -> int:
    """Number (rank) of this process under ``torchrun``, also outside ``launched_processes``."""
    return int(os.environ["RANK"]) if _is_launched() else 0


def _is_launched() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()


def require_shared(objective: Objective, model: Model, x: Tensor, batch_size: int) -> None:
    """Raise ConfigError if several processes were started and cannot share the work.

    Args:
        objective, model: to be trained on x (n, d).
        batch_size: rows of a mini-batch.
    """
    count = sharing().count
    if count == 1:
        return
    shared = objective.shared_for(model, x)
    if shared is None:
        raise ConfigError(
            f"{count} processes were started, but {class_name(objective)} runs in one process "
            "only: start one process, or use approx=svgp, approx=sgpr, approx=cglb or approx=exact "
            "approx.solver=iterative"
        )
    rows = x.shape[0]
    if shared == "batch":
        rows = min(rows, batch_size)
    if rows < count:
        name = "a batch" if shared == "batch" else "the training data"
        raise ConfigError(
            f"{count} processes were started, but {name} has only {rows} rows: start at most "
            f"{rows} processes"
        )
