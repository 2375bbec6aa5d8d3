"""A trained model read back from its run folder: predictions in the data's own units."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from gpx.calibration import Recalibration
from gpx.data import Standardiser
from gpx.data.table import numbered_names
from gpx.errors import CheckpointError, ConfigError, DataError, ShapeError
from gpx.likelihoods import Likelihood, target_marginals
from gpx.linalg import available_memory, budget_in_bytes, running_sum
from gpx.models import Posterior
from gpx.training.arrays import column_names, columns_by_name, real_array
from gpx.training.build import build, build_model
from gpx.training.checkpoint import load_checkpoint
from gpx.training.device import DTYPES, resolve_device
from gpx.training.origin import require_same_model, version_note, version_of
from gpx.training.run_folder import RunFolder

COUNT_WINDOW = 256
"""Counts whose probabilities are added up at a time."""
MAX_COUNT = 1e6
"""Beyond this the quantile of a count is the bound of Chebyshev's inequality."""


class Prediction(NamedTuple):
    """Predictive distribution of y per row, in the data's own units.

    Attributes:
        mean (n,), std (n,): of y, observation noise included; (n, p) for p > 1 outputs.
        lower (n,), upper (n,): ends of the central 95 % interval, shaped alike; of several outputs
            each holds its own with that probability.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


class ClassPrediction(NamedTuple):
    """Predictive distribution of the class per row, in the data's own labels.

    Attributes:
        label (n,): of the most probable class.
        probability (n, C): of every class, in the order of ``Predictor.labels``.
    """

    label: NDArray[np.float64]
    probability: NDArray[np.float64]


class Predictor:
    """Posterior, likelihood and data scaling of one run.

    Args:
        posterior: latent process in standardised units.
        likelihood: p(y | f).
        scaler: standardisation of inputs and target.
        input_names: columns in training order.
        target_name: name of the target.
        labels: for classes, the data's own label of each, ascending; otherwise empty.
        target_names: for several outputs, the name of each; otherwise empty.
        calibration: what its predictions go through, fitted on held-out rows.
    """

    def __init__(
        self,
        posterior: Posterior,
        likelihood: Likelihood,
        scaler: Standardiser,
        input_names: tuple[str, ...],
        target_name: str,
        labels: tuple[float, ...] = (),
        target_names: tuple[str, ...] = (),
        calibration: Recalibration | None = None,
    ) -> None:
        self.posterior = posterior
        self.likelihood = likelihood
        self.scaler = scaler
        self.input_names = input_names
        self.target_name = target_name
        self.labels = labels
        self.target_names = target_names
        self.calibration = calibration

    def distribution(self, x: Tensor) -> torch.distributions.Distribution:
        """Predictive distribution of standardised y at standardised inputs (n, d)."""
        with torch.no_grad():
            found = self.posterior.predictive(x, self.likelihood)
            return found if self.calibration is None else self.calibration(found)

    def predict(self, inputs: ArrayLike) -> Prediction:
        """Mean, standard deviation and 95 % interval of y in the data's own units.

        Args:
            inputs (n, d): in the data's own units, columns as in training; (d,) is one row. Columns
                of a data frame are taken by name, whatever their order, and others are ignored,
                where training knew names.

        Raises:
            ShapeError: the number of columns differs from training.
            DTypeError, DataError: not real numbers, not finite, or a column that is missing.
            ConfigError: the target is a class; see ``predict_classes``.
        """
        if self.likelihood.task in ("binary", "multiclass"):
            raise ConfigError(
                f"{self.target_name} is a class, which has no mean: call predict_classes"
            )
        distribution = target_marginals(self.distribution(self._standardised(inputs)))
        lower, upper = central_interval(distribution, 0.95)
        mean = self.scaler.original_mean(distribution.mean.double().cpu())
        std = self.scaler.original_std(distribution.stddev.double().cpu())
        return Prediction(
            _array(mean),
            _array(std),
            _array(self.scaler.original_mean(lower.double().cpu())),
            _array(self.scaler.original_mean(upper.double().cpu())),
        )

    def predict_classes(self, inputs: ArrayLike) -> ClassPrediction:
        """Most probable label and the probability of every class.

        Args:
            inputs (n, d): as for ``predict``.

        Raises:
            ShapeError: the number of columns differs from training.
            DTypeError, DataError: not real numbers, or not finite.
            ConfigError: the target is a number.
        """
        if self.likelihood.task not in ("binary", "multiclass"):
            raise ConfigError(f"{self.target_name} is a number, not a class: call predict")
        distribution: Any = self.distribution(self._standardised(inputs))
        probability = distribution.probs.double().cpu()
        if self.likelihood.task == "binary":  # of the class coded 1, the larger label
            probability = torch.stack([1.0 - probability, probability], dim=1)
        label = torch.tensor(self.labels, dtype=torch.float64)[probability.argmax(1)]
        return ClassPrediction(_array(label), _array(probability))

    def _standardised(self, inputs: ArrayLike) -> Tensor:
        given = column_names(inputs)
        unnamed = self.input_names == numbered_names(len(self.input_names))
        if given is not None and not (unnamed and set(given).isdisjoint(self.input_names)):
            inputs = columns_by_name(inputs, self.input_names, "inputs")
        array = np.atleast_2d(real_array(inputs, "inputs"))
        if array.ndim != 2 or array.shape[1] != len(self.input_names):
            raise ShapeError(
                f"expected inputs with {len(self.input_names)} columns "
                f"({', '.join(self.input_names[:6])}{'...' if len(self.input_names) > 6 else ''}), "
                f"got shape {array.shape}"
            )
        if not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            raise DataError(
                f"inputs, row {row + 1}, column {column + 1} ({self.input_names[column]!r}): found "
                f"{array[row, column]}, expected a finite number"
            )
        x = self.scaler.transform_inputs(torch.from_numpy(array))
        # hyperparameters are in the precision of the data; some caches are in float64 whatever that
        numbers = (*self.posterior.parameters(), *self.posterior.buffers())
        reference = next((t for t in numbers if t.is_floating_point()), None)
        return x if reference is None else x.to(reference.device, reference.dtype)


def central_interval(
    distribution: torch.distributions.Distribution, level: float
) -> tuple[Tensor, Tensor]:
    """Ends of the central interval of probability ``level``: exact quantiles where they exist.

    Counts get the smallest whole numbers that reach both tail probabilities. Distributions without
    an inverse distribution function (mixtures) get theirs by bisection, those without a
    distribution function the normal interval of the same mean and standard deviation.
    """
    tail = (1.0 - level) / 2.0
    if distribution.support.is_discrete:  # type: ignore[union-attr]
        return _count_quantile(distribution, tail), _count_quantile(distribution, 1.0 - tail)
    try:
        ends = [distribution.icdf(torch.full_like(distribution.mean, q)) for q in (tail, 1 - tail)]
        return ends[0], ends[1]
    except NotImplementedError:
        pass
    try:
        return _bisected(distribution, tail), _bisected(distribution, 1.0 - tail)
    except NotImplementedError:
        width = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(1.0 - tail))
        half = float(width) * distribution.stddev
        return distribution.mean - half, distribution.mean + half


def _bisected(distribution: torch.distributions.Distribution, q: float) -> Tensor:
    """y (n,) with P(Y <= y) = q, to rounding in units of the standard deviation.

    Between the bounds of Chebyshev's one-sided inequality. Cost: 60 distribution functions.
    """
    low = distribution.mean - distribution.stddev * ((1.0 - q) / q) ** 0.5
    high = distribution.mean + distribution.stddev * (q / (1.0 - q)) ** 0.5
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = distribution.cdf(middle) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def _count_quantile(distribution: torch.distributions.Distribution, q: float) -> Tensor:
    """Smallest whole number k (n,) with P(y <= k) >= q, by adding up probabilities in windows."""
    found = torch.full_like(distribution.mean, torch.inf)
    below = torch.zeros_like(found, dtype=torch.float64)
    # one-sided Chebyshev: the quantile lies below this
    last = distribution.mean + distribution.stddev * (q / (1.0 - q)) ** 0.5
    limit = min(float(last.max()) + 1.0, MAX_COUNT) if last.numel() else 0.0
    for start in range(0, int(limit) + 1, COUNT_WINDOW):
        counts = torch.arange(start, start + COUNT_WINDOW, device=found.device).to(found)[:, None]
        reached = below + running_sum(distribution.log_prob(counts).double().exp())
        hit = reached >= q
        here = counts[hit.int().argmax(0), 0]
        found = torch.where(torch.isinf(found) & hit.any(0), here, found)
        below = reached[-1]
        if not bool(torch.isinf(found).any()):
            break
    # rounding may leave the sum short of q by its own error; then Chebyshev's bound
    return torch.where(torch.isinf(found), last.ceil(), found)


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.numpy()


def load(run: str | Path, device: str = "cpu", trust: Sequence[str] | str = ()) -> Predictor:
    """The trained model of a run folder, ready to predict without its training data.

    A folder may come from anyone: it is read without executing anything in it, and builds classes
    of gpx only, unless others are trusted::

        gpx.load("outputs/...", trust=("my_package",))

    Args:
        run: folder written by ``train.py``.
        device: where to compute.
        trust: packages of one's own whose classes (a kernel, a likelihood) the run was made of.

    Raises:
        CheckpointError: the folder has no finished run, its files do not fit one another, or it
            names a class that is not to be built.
        ConfigError: an option that this version of gpx does not know, or of another type.
    """
    folder = RunFolder(run)
    return finished_predictor(folder, folder.read_config(trust), device)


def finished_predictor(folder: RunFolder, config: DictConfig, device: str) -> Predictor:
    """What ``load`` gives, with the folder's config as already read."""
    where = resolve_device(device, "device")
    state = load_checkpoint(folder.checkpoint, where)
    if "posterior" not in state:
        raise CheckpointError(
            f"the run in {folder.path} is not finished; "
            f"finish it with: python train.py resume={folder.path}"
        )
    require_same_model(state, config, str(folder.config))
    note = version_note(version_of(state))
    if note:
        warnings.warn(f"{folder.path}: another version of gpx{note}", stacklevel=3)
    try:
        return restore_predictor(config, state, where)
    except ConfigError as error:
        raise ConfigError(f"{folder.config}: {error}{note}") from error


def within_memory(config: DictConfig, device: torch.device) -> DictConfig:
    """A copy whose memory budgets fit this device, which may be smaller than that of the run."""
    free = available_memory(device)

    def fitting(node: Any) -> Any:
        if isinstance(node, dict):
            return {
                name: budget_in_bytes(None, free)
                if name == "memory_budget" and isinstance(value, int) and value > (free or value)
                else fitting(value)
                for name, value in node.items()
            }
        return [fitting(value) for value in node] if isinstance(node, list) else node

    made = OmegaConf.create(fitting(OmegaConf.to_container(config, resolve=False)))
    assert isinstance(made, DictConfig)
    return made


def restore_predictor(config: DictConfig, state: dict, device: torch.device) -> Predictor:
    """A predictor from a config and the contents of a finished run's checkpoint."""
    trainer = config.get("trainer")
    dtype = trainer.get("dtype") if isinstance(trainer, DictConfig) else None
    if dtype not in DTYPES:
        raise ConfigError(f"trainer.dtype={dtype}: expected {' or '.join(DTYPES)}")
    dtype = DTYPES[dtype]
    model = build_model(within_memory(config, device)).to(device, dtype)
    try:
        posterior = model.new_posterior().to(device, dtype)
        posterior.load_state_dict(state["posterior"])
        model.likelihood.load_state_dict(state["likelihood"])
        calibration: Recalibration | None = build(config, "calibration")
        if calibration is not None:
            calibration.to(device).load_state_dict(state["calibration"])
        target_names = tuple(state.get("target_names", ()))
        scaler = Standardiser(len(state["input_names"]), len(target_names) or 1)
        scaler.load_state_dict({k: v.cpu() for k, v in state["scaler"].items()})
        return Predictor(
            posterior,
            model.likelihood,
            scaler,
            tuple(state["input_names"]),
            state["target_name"],
            tuple(state.get("labels", ())),
            target_names,
            calibration,
        )
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"checkpoint.pt does not fit config.yaml: {error}") from error
