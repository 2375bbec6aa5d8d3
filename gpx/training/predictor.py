"""A trained model read back from its run folder: predictions in the data's own units."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from omegaconf import DictConfig
from torch import Tensor

from gpx.data import Standardiser
from gpx.errors import CheckpointError, ShapeError
from gpx.likelihoods import Likelihood
from gpx.models import Posterior
from gpx.training.build import build_model
from gpx.training.checkpoint import load_checkpoint
from gpx.training.device import DTYPES, resolve_device
from gpx.training.run_folder import RunFolder


class Prediction(NamedTuple):
    """Predictive distribution of y per row, in the data's own units.

    Attributes:
        mean (n,), std (n,): of y, observation noise included.
        lower (n,), upper (n,): ends of the central 95 % interval.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


class Predictor:
    """Posterior, likelihood and data scaling of one run.

    Args:
        posterior: latent process in standardised units.
        likelihood: p(y | f).
        scaler: standardisation of inputs and target.
        input_names: columns in training order.
        target_name: name of the target.
    """

    def __init__(
        self,
        posterior: Posterior,
        likelihood: Likelihood,
        scaler: Standardiser,
        input_names: tuple[str, ...],
        target_name: str,
    ) -> None:
        self.posterior = posterior
        self.likelihood = likelihood
        self.scaler = scaler
        self.input_names = input_names
        self.target_name = target_name

    def distribution(self, x: Tensor) -> torch.distributions.Distribution:
        """Predictive distribution of standardised y at standardised inputs (n, d)."""
        with torch.no_grad():
            marginals = self.posterior.predict(x)
            return self.likelihood.predictive(marginals.mean, marginals.variance)

    def predict(self, inputs: ArrayLike) -> Prediction:
        """Mean, standard deviation and 95 % interval of y in the data's own units.

        Args:
            inputs (n, d): in the data's own units, columns as in training; (d,) is one row.

        Raises:
            ShapeError: the number of columns differs from training.
        """
        array = np.atleast_2d(np.asarray(inputs, dtype=np.float64))
        if array.ndim != 2 or array.shape[1] != len(self.input_names):
            raise ShapeError(
                f"expected inputs with {len(self.input_names)} columns "
                f"({', '.join(self.input_names[:6])}{'...' if len(self.input_names) > 6 else ''}), "
                f"got shape {array.shape}"
            )
        reference = next(iter(self.posterior.buffers()), None)
        x = self.scaler.transform_inputs(torch.from_numpy(array))
        if reference is not None:
            x = x.to(reference.device, reference.dtype)
        distribution = self.distribution(x)
        mean = _array(self.scaler.original_mean(distribution.mean.double().cpu()))
        std = _array(self.scaler.original_std(distribution.stddev.double().cpu()))
        lower, upper = central_interval(distribution, 0.95)
        return Prediction(
            mean,
            std,
            _array(self.scaler.original_mean(lower.double().cpu())),
            _array(self.scaler.original_mean(upper.double().cpu())),
        )


def central_interval(
    distribution: torch.distributions.Distribution, level: float
) -> tuple[Tensor, Tensor]:
    """Ends of the central interval of probability ``level``: exact quantiles where they exist.

    Distributions without an inverse distribution function (mixtures, counts) get the normal
    interval of the same mean and standard deviation.
    """
    tail = (1.0 - level) / 2.0
    try:
        ends = [distribution.icdf(torch.full_like(distribution.mean, q)) for q in (tail, 1 - tail)]
        return ends[0], ends[1]
    except NotImplementedError:
        width = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(1.0 - tail))
        half = float(width) * distribution.stddev
        return distribution.mean - half, distribution.mean + half


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.numpy()


def load(run: str | Path, device: str = "cpu") -> Predictor:
    """The trained model of a run folder, ready to predict without its training data.

    Args:
        run: folder written by ``train.py``.
        device: where to compute.

    Raises:
        CheckpointError: the folder has no finished run, or its files do not fit one another.
    """
    folder = RunFolder(run)
    config = folder.read_config()
    where = resolve_device(device)
    state = load_checkpoint(folder.checkpoint, where)
    if "posterior" not in state:
        raise CheckpointError(
            f"the run in {folder.path} is not finished; "
            f"finish it with: python train.py resume={folder.path}"
        )
    return restore_predictor(config, state, where)


def restore_predictor(config: DictConfig, state: dict, device: torch.device) -> Predictor:
    """A predictor from a config and the contents of a finished run's checkpoint."""
    dtype = DTYPES[config.trainer.dtype]
    model = build_model(config).to(device, dtype)
    try:
        posterior = model.empty_posterior(state["num_data"]).to(device, dtype)
        posterior.load_state_dict(state["posterior"])
        model.likelihood.load_state_dict(state["likelihood"])
        scaler = Standardiser(len(state["input_names"]))
        scaler.load_state_dict({k: v.cpu() for k, v in state["scaler"].items()})
    except (KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"checkpoint.pt does not fit config.yaml: {error}") from error
    return Predictor(
        posterior, model.likelihood, scaler, tuple(state["input_names"]), state["target_name"]
    )
