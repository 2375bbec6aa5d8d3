"""Options of the trainer, with types, so that mistakes are found on composition."""

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
from gpx.tensor_checks import check_one_of

CONFIGS = config_folder()
"""Folder of ``train.yaml`` and the config groups."""
MIN_MEMORY_BUDGET = 2**20
"""Bytes; with less, every product would be cut into single rows."""
MAX_THREADS = 1024
"""The process may abort if the system cannot start so many threads."""


@dataclass
class TrainerConfig:
    """How a run is executed. Only dtype, steps, batch size and budget change its results.

    Attributes:
        device: ``auto`` (CUDA when there is one), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: ``float32`` or ``float64``; objectives document the accuracy of float32.
        max_steps: optimiser steps, or evaluations of the objective under L-BFGS-B.
        batch_size: data rows per step of a mini-batch objective; ignored by full-batch ones.
        budget: seconds that training may take; null: no limit. ``approx=auto`` chooses a method by
            it, and training ends at the first step after it.
        num_threads: CPU threads; null: torch's default.
        memory_budget: bytes, or text such as ``4GiB``, for products with kernel matrices and
            results kept between them; null: a quarter of the memory of the device, rounded down to
            a power of two. The value used is in the run's config.
        keep_freed_memory: CPU: reuse the pages of freed arrays (faster steps, see
            ``gpx.training.allocator``).
        deterministic: use only operations that give the same bits every time (CUDA: slower).
        matmul: float32 products on a GPU: ``ieee``; ``tf32x3`` (three TF32 products in the Triton
            kernels, as exact as float32); ``tf32`` (eleven bits, only in products with a stored
            kernel matrix inside solves that check their residual in float64); null: tf32x3 with
            Triton kernels, otherwise ieee. torch's own TF32 is always off.
        cuda_graphs: CUDA: record a step of fixed shapes (svgp, swsgp, vnngp, sampled qsgp, MALA,
            blocks of conjugate gradients; deep models, if all their modules are of torch or gpx;
            sgpr, fitc, sor, dtc and ssgp of up to 200,000 rows) and replay it as one launch. If
            that fails, steps run without it and the log says why.
        log_every: steps between entries in TensorBoard and on the console.
        eval_every: steps between test metrics; 0: only at the end, null: ten times during the run.
        checkpoint_seconds: seconds between checkpoints; one is also written when a run is stopped.
        tensorboard: write TensorBoard events.
        loggers: further loggers: ``mlflow``, ``wandb``, or both.
        figures: draw figures (PNG in the run folder, and into TensorBoard).
        baselines: also fit and report a linear model, nearest neighbours and boosted trees.
        certify: bound the error of the approximation at test points (sgpr, cglb, svgp, exact).
        quiet: print only warnings and errors.
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
        check_one_of(("float32", "float64"), **{"trainer.dtype": self.dtype})
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
        if self.num_threads is not None and not 1 <= self.num_threads <= MAX_THREADS:
            raise ConfigError(
                f"trainer.num_threads={self.num_threads}: expected 1 to {MAX_THREADS}, or null; "
                "more threads than cores only make it slower"
            )
        if budget_in_bytes(self.memory_budget) < MIN_MEMORY_BUDGET:
            raise ConfigError(
                f"trainer.memory_budget={self.memory_budget}: expected at least 1MiB, for example "
                "4GiB (numbers are bytes)"
            )
        if not self.checkpoint_seconds >= 0:
            raise ConfigError(
                f"trainer.checkpoint_seconds={self.checkpoint_seconds}: expected 0 or more"
            )


ConfigStore.instance().store(group="trainer", name="schema", node=TrainerConfig)


def trainer_options(node: Any) -> TrainerConfig:
    """The options of the node ``trainer``.

    Raises:
        ConfigError: an option that does not exist, has another type or is out of range.
    """
    if not isinstance(node, DictConfig):
        raise ConfigError(f"trainer={node}: expected its options by name")
    check_option_names(node, "trainer", TrainerConfig)
    check_option_types(node, "trainer", TrainerConfig)
    return TrainerConfig(**{str(name): value for name, value in node.items()})
