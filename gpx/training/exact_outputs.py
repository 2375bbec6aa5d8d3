"""Exact Gaussian processes, one for each output, that a model's hyperparameters are fitted with."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gpx.bounds import bounds_of, remember_bounds
from gpx.constraints import is_trained
from gpx.errors import class_name
from gpx.likelihoods import Gaussian, Heteroscedastic
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.base.model import Hyperparameters
from gpx.models import ExactGP, Model
from gpx.training.maximise import Say


def draw_rows(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Numbers of at most ``most`` random rows of x (n, d)."""
    return torch.randperm(x.shape[0], generator=generator, device=x.device)[:most]


def rows_of_outputs(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of the rows that have a target, for each output.

    Args:
        x (n, d), y (n,) or (n, p): NaN where one of p targets is missing.
    """
    if not bool(y.isnan().any()):
        return [(x, own) for own in y.reshape(len(y), -1).unbind(1)]
    known = ~y.isnan()
    return [(x[rows], own[rows]) for own, rows in zip(y.unbind(1), known.unbind(1), strict=True)]


def know_noise_of_outputs(exact: Sequence[ExactGP], y: Tensor, noise: RowNoise | None) -> None:
    """Tell exact GPs, one per output, the noise of the rows in which the output has a target.

    Args:
        y (n,) or (n, p): NaN where one of p targets is missing.
        noise: of the n rows, or of their cells; None: nothing is known.
    """
    if noise is not None:
        columns = y.reshape(len(y), -1).unbind(1)
        for place, (each, own) in enumerate(zip(exact, columns, strict=True)):
            each.know_noise(noise.of_target(place).of(~own.isnan()))


def gaussian_parts(model: Model, say: Say) -> Hyperparameters | None:
    """The parts of a model that an exact GP can be fitted for; None, with a message, if not."""
    parts = model.hyperparameters()
    if parts is None:
        say(f"init: {class_name(model)} does not have one kernel, starting from constants")
    elif not isinstance(parts.likelihood, (Gaussian, Heteroscedastic, NoisyOutputs)):
        say(
            f"init: no exact fit for the {class_name(parts.likelihood)} likelihood, starting from "
            "constants"
        )
        return None
    return parts


def exact_outputs(parts: Hyperparameters) -> list[ExactGP]:
    """An exact GP in float64 for every output, made of copies of the parts.

    They share one kernel and one mean; each has the noise variance of its output.
    """
    kernel, mean = copy.deepcopy(parts.kernel).double(), copy.deepcopy(parts.mean).double()
    likelihood = copy.deepcopy(parts.likelihood).double()
    if isinstance(likelihood, (Heteroscedastic, NoisyOutputs)):
        each = [likelihood.output(place) for place in range(likelihood.num_outputs)]
    else:
        assert isinstance(likelihood, Gaussian)
        each = [likelihood]
    bounds = bounds_of(likelihood, "noise_variance")
    if bounds is not None:
        for own in each:
            remember_bounds(own, {"noise_variance": bounds})
    if not is_trained(likelihood, "noise_variance"):
        for own in each:
            own.requires_grad_(False)
    return [ExactGP(kernel=kernel, mean=mean, likelihood=own) for own in each]


def take_over(exact: Sequence[ExactGP], parts: Hyperparameters) -> None:
    """Copy the hyperparameters of exact GPs, one for every output, into a model's parts."""
    _copy_parameters(exact[0].kernel, parts.kernel)
    _copy_parameters(exact[0].mean, parts.mean)
    if not is_trained(parts.likelihood, "noise_variance"):
        return
    if isinstance(parts.likelihood, NoisyOutputs):
        noise = torch.stack([each.likelihood.noise_variance.detach() for each in exact])
        parts.likelihood.noise_variance = noise.to(parts.likelihood.noise_variance)
    elif isinstance(parts.likelihood, Heteroscedastic):
        parts.likelihood.start_at(float(exact[0].likelihood.noise_variance.detach()))
    else:
        _copy_parameters(exact[0].likelihood, parts.likelihood)


def _copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Copy raw parameters between modules of the same structure, possibly of different dtypes."""
    state = {name: value.detach().clone() for name, value in source.state_dict().items()}
    target.load_state_dict(state)
