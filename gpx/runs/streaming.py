"""Runs whose training rows stay in files (``data=stream``): checks, options and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from omegaconf import DictConfig
from torch import Tensor

from gpx.data import Dataset, Stream
from gpx.data.stream.rows import StreamedRows
from gpx.errors import ConfigError, class_name
from gpx.inducing.base import default_num_inducing
from gpx.methods.base.optimizer import Optimizer
from gpx.models import Model
from gpx.objectives import Objective
from gpx.options.build import target_of
from gpx.options.config import TrainerConfig
from gpx.training.trainer import FitResult

ALTERNATIVES = (
    "use approx=svgp, approx=swsgp or approx=qsgp optimizer=qsgp, or load the data into memory "
    "(data=npz)"
)


def settle_streamed(
    config: DictConfig,
    options: TrainerConfig,
    data: Dataset,
    model: Model,
    objective: Objective,
    say: Callable[[str], None],
) -> TrainerConfig:
    """Check model and objective, and adapt the options of the trainer, in ``config`` too.

    Args:
        config: of the run.
        options: of the trainer.
        data: whose rows are in files.
        model, objective: to be trained.
        say: takes lines for the user.

    Raises:
        ConfigError: model or objective need all rows at once, or there are more inducing points
            than rows in the sample that they are chosen from.
    """
    _require_model(type(model))
    if not objective.streams:
        raise ConfigError(
            f"data=stream reads its rows in batches, and {class_name(objective)} needs all "
            f"training rows at once; {ALTERNATIVES}"
        )
    points = 0
    if "num_inducing" in config.approx:
        asked = config.approx.num_inducing
        points = min(
            default_num_inducing(data.num_train) if asked is None else asked, data.num_train
        )
    if points > data.in_memory.num_train:
        raise ConfigError(
            f"approx.num_inducing={points} is above the {data.in_memory.num_train} rows of the "
            f"sample that they are chosen from; raise data.sample_rows to {2 * points}"
        )
    if options.eval_every is None:
        config.trainer.eval_every = 0
        say(
            "trainer.eval_every=0: test metrics only at the end, as a posterior may read all rows "
            "of the stream"
        )
        return replace(options, eval_every=0)
    return options


def check_streamed(config: DictConfig, options: TrainerConfig) -> None:
    """Refuse parts that cannot work with ``data=stream``, before its files are read.

    Args:
        config: of the run; nothing is checked for data in memory.
        options: of the trainer.

    Raises:
        ConfigError: model, optimiser or another option needs all rows at once.
    """
    source = target_of(config.data, "data")
    if not (isinstance(source, type) and issubclass(source, Stream)):
        return
    model = target_of(config.approx, "approx")
    if isinstance(model, type) and issubclass(model, Model):
        _require_model(model)
    optimizer = target_of(config.optimizer, "optimizer")
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        require_streams(optimizer)
    if options.certify:
        raise ConfigError(
            "trainer.certify=true needs all training rows in memory, and data=stream reads them "
            "from files; set trainer.certify=false"
        )
    if config.get("calibrate") is not None:
        raise ConfigError(
            "calibrate= needs all training rows in memory, and data=stream reads them from files; "
            "leave it out"
        )


def _require_model(kind: type[Model]) -> None:
    if not kind.streams:
        raise ConfigError(
            f"data=stream reads its rows in batches, and {kind.__name__} {kind.why_no_streams}; "
            f"{ALTERNATIVES}"
        )


def require_streams(kind: type[Optimizer]) -> None:
    """Raise ConfigError if an optimiser needs all training rows at once."""
    if not kind.streams:
        raise ConfigError(
            f"data=stream reads its rows in batches, and optimizer={kind.__name__}() needs all "
            f"training rows at once; {ALTERNATIVES}"
        )


def streaming_facts(data: Dataset, x: Tensor, batch_size: int, fit: FitResult) -> dict[str, Any]:
    """Numbers of rows and speed of training and reading, for metrics.json.

    Args:
        data: whose rows are in files.
        x (n, d): the training inputs.
        batch_size: rows of a step.
        fit: result of training.
    """
    rows = fit.steps * min(batch_size, data.num_train)
    record = cast(StreamedRows, x).cache.record
    seconds = max(fit.seconds - fit.seconds_of_start, 1e-9)
    return {f"data.{name}": value for name, value in data.facts.items()} | {
        "train.rows_per_second": rows / seconds,
        "train.rows_seen": rows,
        # of this session, including the posterior and the final evidence
        "data.batch_rows_read": record.rows,
        "data.batch_read_seconds": record.seconds,
    }
