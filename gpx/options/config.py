"""Options of the trainer, typed: a misspelled or ill-typed one fails on composition."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from gpx.errors import ConfigError
from gpx.installation import config_folder
from gpx.linalg import budget_in_bytes
from gpx.options.types import check_option_names, check_option_types

CONFIGS = config_folder()
"""With ``train.yaml`` and the config groups."""
LEAST_BUDGET = 2**20
"""Bytes; less would cut every product into single rows."""
MOST_THREADS = 1024
"""Threads that may be asked for; where the system refuses to start so many, the process dies."""


@dataclass
class TrainerConfig:
    """How a run is executed. Nothing here changes the mathematics but dtype, steps and batch size.

    Attributes:
        device: ``auto`` (CUDA when there is one), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: ``float32`` or ``float64``; what it costs in accuracy is said per objective.
        max_steps: optimiser steps, or evaluations of the objective under L-BFGS-B.
        batch_size: data rows per step of a mini-batch objective; ignored by full-batch ones.
        budget: seconds that training may take; null: any. ``approx=auto`` chooses a method by it,
            and training ends at the first step after it.
        num_threads: CPU threads; null leaves torch's own choice.
        memory_budget: bytes, or text such as ``4GiB``, that products with kernel matrices and what
            is kept between them may hold; null: a quarter of what the device has, rounded
            down to a power of two. What it came to is in the run's config.
        keep_freed_memory: CPU: reuse the pages of freed arrays (faster steps, see ``allocator``).
        deterministic: only kernels that give the same bits every time (CUDA: slower).
        matmul: float32 products on a GPU: ``ieee``; ``tf32x3`` (three products of halves in the
            Triton kernels, as exact as float32); ``tf32`` (eleven bits, only in products with a
            stored kernel matrix inside solves whose residual is judged in float64); null: tf32x3
            where there are Triton kernels, else ieee. torch's own TF32 is off in any case.
        cuda_graphs: CUDA: record a step whose shapes do not change (svgp, sampled qsgp, MALA,
            blocks of conjugate gradients) and replay it as one launch; where that does not work,
            steps run as they are and the log says why.
        log_every: steps between entries in TensorBoard and on the console.
        eval_every: steps between test metrics; 0 for the end only, null for ten times a run.
        checkpoint_seconds: seconds between checkpoints; one is also written when a run is stopped.
        tensorboard: write TensorBoard events.
        loggers: where else a run is reported: ``mlflow``, ``wandb``, or both.
        figures: draw figures (PNG in the run folder, and into TensorBoard).
        baselines: fit a linear model, nearest neighbours and boosted trees, and report them beside
            the model.
        certify: bound, at test points, what the approximation costs (sgpr, cglb, svgp, exact).
        quiet: nothing on the console but warnings and errors.
    """

    device: str = "auto"
    dtype: str = "float64"
    max_steps: int = 1000
    batch_size: int = 1024
    budget: float | None = None
    num_threads: int | None = None
    memory_budget: int | str | None = None
    keep_freed_memory: bool = True
    deterministic: bool = True
    matmul: str | None = None
    cuda_graphs: bool = True
    log_every: int = 10
    eval_every: int | None = None
    checkpoint_seconds: float = 60.0
    tensorboard: bool = True
    loggers: list[str] = field(default_factory=list)
    figures: bool = True
    baselines: bool = True
    certify: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        """Check ranges; raises ConfigError."""
        if self.dtype not in ("float32", "float64"):
            raise ConfigError(f"trainer.dtype={self.dtype}: expected float32 or float64")
        if self.matmul not in (None, "ieee", "tf32x3", "tf32"):
            raise ConfigError(
                f"trainer.matmul={self.matmul}: expected ieee, tf32x3, tf32, or null to choose"
            )
        for name in ("max_steps", "batch_size", "log_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"trainer.{name}={getattr(self, name)}: expected at least 1")
        if self.eval_every is not None and self.eval_every < 0:
            raise ConfigError(f"trainer.eval_every={self.eval_every}: expected 0 or more, or null")
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise ConfigError(f"trainer.budget={self.budget:g}: expected seconds above 0, or null")
        if self.num_threads is not None and not 1 <= self.num_threads <= MOST_THREADS:
            raise ConfigError(
                f"trainer.num_threads={self.num_threads}: expected 1 to {MOST_THREADS}, or null; "
                "more threads than the machine has cores only slow it down"
            )
        if budget_in_bytes(self.memory_budget) < LEAST_BUDGET:
            raise ConfigError(
                f"trainer.memory_budget={self.memory_budget} is in bytes: expected at least 1MiB, "
                "for example 4GiB"
            )
        if not self.checkpoint_seconds >= 0:
            raise ConfigError(
                f"trainer.checkpoint_seconds={self.checkpoint_seconds}: expected 0 or more"
            )


ConfigStore.instance().store(group="trainer", name="schema", node=TrainerConfig)


def trainer_options(node: Any) -> TrainerConfig:
    """The options of ``trainer``, composed or read back from a run folder.

    Raises:
        ConfigError: an option that does not exist, of another type or out of range.
    """
    if not isinstance(node, DictConfig):
        raise ConfigError(f"trainer={node}: expected its options by name")
    check_option_names(node, "trainer", TrainerConfig)
    check_option_types(node, "trainer", TrainerConfig)
    return TrainerConfig(**{str(name): value for name, value in node.items()})
