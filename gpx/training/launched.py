"""The processes of ``torchrun``: joined where there are several, left at the end of a run."""

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

PATIENCE = timedelta(days=7)
"""How long a process waits for the others: the first one may be predicting and drawing."""


@contextmanager
def launched_processes() -> Iterator[Processes]:
    """Inside, the processes that ``torchrun`` started share the work; one process is alone.

    Each takes the GPU of its number on its machine (``LOCAL_RANK``) where there are GPUs. At the
    end they wait for one another.

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
    # imported first, since its default arguments keep the group they find; a group that is kept
    # outlives its end with its threads, and one of them may abort the interpreter on its way out
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        processes = Processes(dist.get_rank(), dist.get_world_size())
        with warnings.catch_warnings(), work_shared(processes):
            if processes.number:  # the first one says the same
                warnings.simplefilter("ignore")
            yield processes
            processes.all_max(0.0)
    finally:
        dist.destroy_process_group()


def common_path(path: Path) -> Path:
    """The first process's path: folders are named by the time, which is not the same everywhere."""
    if sharing().count == 1:
        return path
    found = [str(path)]
    dist.broadcast_object_list(found, device=torch.device("cpu"))
    return Path(found[0])


def launched_number() -> int:
    """Number of this process among those of ``torchrun``, also where it does not share work yet."""
    return int(os.environ["RANK"]) if _is_launched() else 0


def _is_launched() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()


def require_shared(objective: Objective, model: Model, x: Tensor, batch_size: int) -> None:
    """Raise ConfigError where several processes were started and could not share the work.

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
            f"{count} processes were started, and {class_name(objective)} does its work in one: "
            "start one process, or take approx=svgp, approx=sgpr, approx=cglb or approx=exact "
            "approx.solver=iterative"
        )
    rows = x.shape[0]
    if shared == "batch":
        rows = min(rows, batch_size)
    if rows < count:
        name = "a batch" if shared == "batch" else "the training data"
        raise ConfigError(
            f"{count} processes were started, and {name} of {rows} rows has none for each of them: "
            f"start at most {rows}"
        )
