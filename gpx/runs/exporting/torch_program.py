"""Export of a trained model by ``torch.export``: predictions that need only torch."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpx.errors import ConfigError, class_name
from gpx.likelihoods import target_marginals
from gpx.likelihoods.base import is_classification
from gpx.runs.prediction import Prediction
from gpx.runs.predictor import Predictor
from gpx.tensor_checks import own_number

TRACED_ROWS = 5
"""Number of rows in tracing; the program takes any number of rows."""
CHECKED_ROWS = 16
"""Number of rows on which the program is compared with the predictor."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest accepted difference of the two, by the dtype of the posterior, relative to the larger of
value and standard deviation."""


class PredictionModule(nn.Module):
    """Inputs (n, d) in the data's own units -> mean and standard deviation of a new observation.

    Args:
        predictor: whose posterior, likelihood, scaling and calibration are used.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.posterior, self.likelihood = predictor.posterior, predictor.likelihood
        self.scaler, self.calibration = predictor.scaler, predictor.calibration
        self.dtype = own_number(self.posterior).dtype

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs x (n, d) -> mean and standard deviation, (n,) or (n, p); all float64."""
        found = self.posterior.predictive(
            self.scaler.transform_inputs(x).to(self.dtype), self.likelihood
        )
        if self.calibration is not None:
            found = self.calibration(found)
        law = target_marginals(found)
        return self.scaler.original_mean(law.mean), self.scaler.original_std(law.stddev)


def torch_program(predictor: Predictor) -> torch.export.ExportedProgram:
    """Trace a trained model, and compare the program with it.

    Args:
        predictor: of ``gpx.load`` or ``gpx.fit``.

    Raises:
        ConfigError: the target is a class or is transformed, the table has columns that are not
            numbers, the posterior cannot be traced, or the program's predictions differ.
    """
    require_numbers(predictor, "torch")
    kind, rows = class_name(predictor.posterior), rows_near_the_data(predictor)
    own = on_the_cpu(predictor)
    known = own.predict(rows.numpy())  # fills caches, before anything is traced
    own.posterior.fix()
    module = PredictionModule(own).eval()
    program = program_of(module, rows, "torch", kind)
    with torch.no_grad():
        found = [each.numpy() for each in program.module()(rows)]
    require_agreement(found, known, module.dtype, "torch", kind)
    return program


def require_numbers(predictor: Predictor, form: str) -> None:
    """Raise ConfigError unless inputs and target of a predictor are plain numbers.

    Args:
        predictor: to be exported.
        form: value of ``format=``, for messages.
    """
    if is_classification(predictor.likelihood.task):
        raise ConfigError(
            f"format={form} gives mean and standard deviation, and {predictor.target_name} is a "
            "class; train on a target that is a number"
        )
    require_plain(predictor, form)


def require_plain(predictor: Predictor, form: str) -> None:
    """Raise ConfigError if columns or target are transformed; arguments as ``require_numbers``."""
    if predictor.target_transform is not None:
        raise ConfigError(f"format={form} cannot hold data.target_transform=: train without it")
    if predictor.coding is not None and not predictor.coding.plain:
        raise ConfigError(
            f"format={form} needs inputs that are numbers, and the table has columns of texts, "
            "dates or missing values; train on columns of numbers"
        )


def program_of(
    module: PredictionModule, rows: Tensor, form: str, kind: str
) -> torch.export.ExportedProgram:
    """The program of a module for any number of rows, traced at some of ``rows`` (r, d).

    Raises:
        ConfigError: the posterior, of class ``kind``, cannot be traced.
    """
    dynamic = {0: torch.export.Dim("n", min=1)}
    try:
        with torch.no_grad(), _unchecked_distributions(), silence():
            program = torch.export.export(
                module, (rows[:TRACED_ROWS],), dynamic_shapes=(dynamic,), strict=False
            )
            # removes in-place writes and changes of the gradient mode, which may fail when loaded
            return program.run_decompositions({})
    except Exception as error:  # torch raises what it likes, from deep inside
        why = "its control flow depends on the inputs"
        if not isinstance(error, _data_dependent_errors()):
            first = (str(error).strip().splitlines() or [""])[0]
            why = f"torch says {type(error).__name__}: {first[:120]}"
        raise ConfigError(
            f"format={form} cannot trace a {kind} ({why}); train with approx=sgpr, svgp, ssgp, "
            "qsgp, ski, vecchia, swsgp, reweighted, deep_rf or exact"
        ) from error


def _data_dependent_errors() -> tuple[type[Exception], ...]:
    """Errors that torch raises for control flow that depends on data; slow to import."""
    from torch._dynamo.exc import UserError
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return UserError, GuardOnDataDependentSymNode


def require_agreement(
    found: Sequence[NDArray[np.float64]],
    known: Prediction,
    dtype: torch.dtype,
    form: str,
    kind: str,
) -> None:
    """Raise ConfigError if mean or standard deviation of a program differ from the model's."""
    for name, mine, theirs in zip(("mean", "std"), found, known, strict=False):
        gap = (np.abs(mine - theirs) / np.maximum(np.abs(theirs), known.std)).max()
        limit = TOLERANCES[dtype]
        if not gap <= limit:
            raise ConfigError(
                f"format={form} was not written: for a {kind} the {name} of the program differs by "
                f"{gap:.1e}, more than {limit:g}, from that of gpx; predict with gpx"
            )


def on_the_cpu(predictor: Predictor) -> Predictor:
    """A copy of the predictor on the CPU, which tracing may change."""
    own = copy.copy(predictor)
    own.posterior = copy.deepcopy(predictor.posterior).cpu().requires_grad_(False)
    own.likelihood = copy.deepcopy(predictor.likelihood).cpu().requires_grad_(False)
    own.calibration = copy.deepcopy(predictor.calibration)
    if own.calibration is not None:
        own.calibration.cpu().requires_grad_(False)
    return own


def rows_near_the_data(predictor: Predictor) -> Tensor:
    """Rows (r, d) within two standard deviations of the mean of the training inputs."""
    draws = torch.Generator().manual_seed(0)
    standard = torch.randn(
        CHECKED_ROWS, len(predictor.input_names), generator=draws, dtype=torch.float64
    )
    return predictor.scaler.original_inputs(standard.clamp(-2.0, 2.0))


@contextmanager
def silence() -> Iterator[None]:
    """Suppress warnings, logs and output of torch during an export."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Inside, distributions do not validate arguments, which cannot be traced."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)
