"""Figures of a trained model: lengthscales, sampled functions, and maps over two inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpx.constraints import natural_parameters, positive_parameters
from gpx.data import Dataset
from gpx.errors import ConfigError, NotAvailable
from gpx.inference.sampled_hyperparameters import HyperparameterMixture
from gpx.likelihoods import target_marginals
from gpx.methods.base.model import Model
from gpx.runs.predictor import Predictor
from gpx.sampling.seeds import stream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

MAP_POINTS = 60
"""Points along each side of a map over two inputs."""

MAX_LENGTHSCALES = 8
"""Most sets of lengthscales that are drawn: a model of many targets has one for each."""

NUM_PATHS, NUM_GRID_POINTS = 5, 200
"""Number of functions sampled from a posterior over one input, and of points to draw them at."""


def draw_model(
    data: Dataset, predictor: Predictor, model: Model, say: Callable[[str], None]
) -> dict[str, Figure]:
    """Figures by name: lengthscales, or all hyperparameters where they are sampled; sampled
    functions (one input), maps (two inputs).

    Args:
        data: the split the model was trained on.
        predictor: the trained model.
        model: with its hyperparameters and inducing points.
        say: takes a line for each figure that cannot be drawn.
    """
    from gpx.runs.figures import predictions as figures

    drawn = {}
    if isinstance(predictor.posterior, HyperparameterMixture):
        drawn["hyperparameters"] = _samples(data, predictor.posterior)
        model_values = {}  # the model holds the mean of the samples
    else:
        model_values = natural_parameters(model)
    lengthscales = {
        name.replace(".", "_"): values
        for name, values in model_values.items()
        if name.endswith("lengthscale") and values.shape == (data.num_inputs,) != (1,)
    }
    for title in [*lengthscales][:MAX_LENGTHSCALES]:
        drawn[title] = figures.lengthscale_bars(data.input_names, _array(lengthscales[title]))
    if len(lengthscales) > MAX_LENGTHSCALES:
        say(
            f"note: figures of the first {MAX_LENGTHSCALES} of {len(lengthscales)} sets of "
            "lengthscales; the checkpoint has all"
        )
    if data.num_outputs > 1 or data.num_inputs > 2:
        return drawn
    inducing = getattr(model, "inducing_points", getattr(model, "inducing", None))
    marks = None
    if isinstance(inducing, Tensor) and inducing.shape[1:] == (data.num_inputs,):
        marks = _array(data.scaler.original_inputs(inducing.detach().double().cpu()))
    if data.num_inputs == 1 and data.task == "regression":
        try:
            drawn["sampled_functions"] = _functions(data, predictor, marks)
        except NotAvailable as error:
            say(f"note: no figure of sampled functions: {error}")
    elif data.num_inputs == 2 and data.task in ("regression", "binary"):
        drawn["map"] = _map(data, predictor, marks)
    return drawn


def _samples(data: Dataset, posterior: HyperparameterMixture) -> Figure:
    """Positive hyperparameters, as others have no logarithm; those of one entry first."""
    from gpx.runs.figures import predictions as figures

    found, columns = posterior.own_hyperparameters(), dict[str, Array]()
    for path, *_ in positive_parameters(posterior):
        name = path.removeprefix("template.")
        flat = _array(found[name].reshape(len(found[name]), -1))
        each = [f"{k + 1}" for k in range(flat.shape[1])]
        if name.endswith("lengthscale") and flat.shape[1] == data.num_inputs:
            each = list(data.input_names)
        label = name.removeprefix("kernel.").removeprefix("likelihood.")
        labels = [label] if len(each) == 1 else [f"{label}, {one}" for one in each]
        columns.update(zip(labels, flat.T, strict=True))
    ordered = sorted(columns, key=lambda label: "," in label)
    return figures.intervals_of_samples(ordered, np.stack([columns[k] for k in ordered], axis=1))


def _functions(data: Dataset, predictor: Predictor, marks: Array | None) -> Figure:
    from gpx.runs.figures import predictions as figures

    grid = _line(data.train_x[:, 0], NUM_GRID_POINTS)[:, None]
    x = predictor.placed(grid)
    draws = stream(0, "figure", x.device)
    with torch.no_grad():
        try:
            latents = predictor.posterior.sample_paths(NUM_PATHS, generator=draws)(x)
        except ConfigError:  # a kernel without random features
            latents = predictor.posterior.sample(x, NUM_PATHS, generator=draws)
        paths, _ = predictor.likelihood.outputs(latents, torch.zeros_like(latents))
    return figures.sampled_functions(
        (_inputs(data, data.train_x)[:, 0], _targets(data, data.train_y)),
        _inputs(data, grid)[:, 0],
        predictor.original_draws(paths.double().cpu()).numpy(),
        (data.input_names[0], data.target_name),
        None if marks is None else marks[:, 0],
    )


def _map(data: Dataset, predictor: Predictor, marks: Array | None) -> Figure:
    from gpx.runs.figures import predictions as figures

    axes = [_line(data.train_x[:, k], MAP_POINTS) for k in range(2)]
    cells = torch.cartesian_prod(*axes)
    original = _inputs(data, cells).reshape(MAP_POINTS, MAP_POINTS, 2)
    edges = original[:, 0, 0], original[0, :, 1]
    names = data.input_names[0], data.input_names[1]
    points = _inputs(data, data.train_x)
    predictive = predictor.distribution(predictor.placed(cells))
    if data.task == "binary":
        probability = _array(predictive.probs).reshape(MAP_POINTS, MAP_POINTS)  # type: ignore[attr-defined]
        return figures.decision_map(
            edges, probability, points, _array(data.train_y) > 0.5, names, marks, _labels(data)
        )
    marginals = target_marginals(predictive)
    at_tests = target_marginals(predictor.distribution(predictor.placed(data.test_x))).mean
    return figures.field_map(
        edges,
        _targets(data, marginals.mean).reshape(MAP_POINTS, MAP_POINTS),
        _array(data.scaler.original_std(marginals.stddev.double().cpu())).reshape(
            MAP_POINTS, MAP_POINTS
        ),
        _inputs(data, data.test_x),
        np.abs(_targets(data, at_tests) - _targets(data, data.test_y)),
        names,
        data.target_name,
        marks,
    )


def _labels(data: Dataset) -> tuple[str, str]:
    """Of two classes, as a legend has them."""
    no, yes = data.labels or (0, 1)
    return f"{data.target_name} = {no}", f"{data.target_name} = {yes}"


def _line(column: Tensor, points: int) -> Tensor:
    """Equally spaced points over the range of an input, extended by 5 % on both sides."""
    low, high = float(column.min()), float(column.max())
    margin = 0.05 * (high - low)
    return torch.linspace(low - margin, high + margin, points, dtype=torch.float64)


def _inputs(data: Dataset, x: Tensor) -> Array:
    return _array(data.scaler.original_inputs(x.double().cpu()))


def _targets(data: Dataset, y: Tensor) -> Array:
    return _array(data.scaler.original_mean(y.double().cpu())).reshape(-1)


def _array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().double().cpu().numpy()
    return found
