"""Thompson sampling for Bayesian optimisation, in batches of any size.

Each point of a batch maximises its own function drawn from the posterior::

    from gpx.thompson import thompson_batch

    fitted = gpx.fit(x, y, "approx=exact", "data.test_fraction=0", quiet=True, keep=False)
    x_next = thompson_batch(fitted, bounds=[(0.0, 1.0), (-5.0, 5.0)], num=100)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpx.errors import ConfigError, ShapeError
from gpx.inference.gaussian_posterior import GaussianPosterior
from gpx.likelihoods import Likelihood
from gpx.runs.fit import Fitted
from gpx.runs.predictor import Predictor
from gpx.sampling.maxima import maxima
from gpx.sampling.paths import evaluate_each
from gpx.sampling.seeds import stream
from gpx.tensor_checks import check_at_least


def thompson_batch(
    trained: Fitted | Predictor,
    bounds: Sequence[tuple[float, float]],
    num: int = 1,
    *,
    maximise: bool = True,
    candidates: int = 1024,
    starts: int = 4,
    steps: int = 60,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Inputs (num, d) to try next, each the maximum of a function drawn from the posterior.

    Functions are drawn by pathwise conditioning and can be evaluated at any input, so that nothing
    grows with the square of ``num`` except a matrix product at the candidates.

    Args:
        trained: result of ``gpx.fit`` or ``gpx.load``, for one real target.
        bounds: (lowest, highest) of every input, in its own unit.
        num: number of inputs.
        maximise: False: minimise the functions.
        candidates, starts, steps: see ``gpx.sampling.maxima``. If the posterior holds the training
            inputs, those with the best targets are candidates, too (as many again).
        seed: of functions and candidates; the same seed gives the same inputs.

    Raises:
        ShapeError: bounds do not match the inputs.
        ConfigError: numbers out of range, the target is not a single real number, the table has
            columns of texts or dates, or the kernel has no random Fourier features.
        NotAvailable: functions without derivatives, unless ``steps`` is 0.

    Cost: as ``Posterior.sample_paths`` for num functions, and ``gpx.sampling.maxima``.

    Source: Wilson et al., "Efficiently sampling functions from Gaussian process posteriors", 2020.
    """
    check_at_least(1, num=num, candidates=candidates, starts=starts)
    check_at_least(0, steps=steps)
    model = trained.model if isinstance(trained, Fitted) else trained
    if model.likelihood.task != "regression" or model.target_names:
        raise ConfigError(f"Thompson sampling needs one real target, and {_targets(model)}")
    if model.coding is not None and not model.coding.plain:
        raise ConfigError(
            "Thompson sampling needs inputs that are numbers, and the table of this model has "
            "texts, dates or missing values"
        )
    ends = torch.tensor(np.array(bounds, dtype=float))
    if ends.shape != (len(model.input_names), 2):
        raise ShapeError(
            f"bounds must be {len(model.input_names)} pairs (lowest, highest), one for every "
            f"input, got an array of shape {tuple(ends.shape)}"
        )
    if not bool((ends[:, 0] < ends[:, 1]).all()):
        raise ShapeError(
            f"bounds need a lower end below the upper one for every input, got {ends.tolist()}"
        )
    lower, upper = (model.placed(model.scaler.transform_inputs(end[None]))[0] for end in ends.mT)
    functions = model.posterior.sample_paths(
        num, generator=stream(seed, "sampled functions", lower.device)
    )
    if model.likelihood.num_latents > 1:
        functions = _target_functions(functions, model.likelihood)
    posterior, known = model.posterior, None
    if isinstance(posterior, GaussianPosterior):
        sign = 1.0 if maximise else -1.0
        with torch.no_grad():
            targets = posterior.residual + posterior.mean(posterior.inputs)
        known = posterior.inputs[(sign * targets).topk(min(candidates, len(targets))).indices]
    found = maxima(
        functions if maximise else _Negative(functions),
        lower,
        upper,
        candidates=candidates,
        also=known,
        starts=starts,
        steps=steps,
        seed=seed,
    )
    x = model.scaler.original_inputs(found.x.cpu())
    # undo rounding, so that points on a bound stay there
    return torch.minimum(torch.maximum(x, ends[:, 0]), ends[:, 1]).numpy()


def _target_functions(
    latents: Callable[[Tensor], Tensor], likelihood: Likelihood
) -> Callable[[Tensor], Tensor]:
    """The mean (num, n) of the target, given functions with several latents (num, n, p)."""

    def functions(x: Tensor) -> Tensor:
        f = latents(x)
        return likelihood.outputs(f, torch.zeros_like(f))[0]

    return functions


class _Negative:
    """Functions with the opposite sign."""

    def __init__(self, functions: Callable[[Tensor], Tensor]) -> None:
        self.functions = functions

    def __call__(self, x: Tensor) -> Tensor:
        return -self.functions(x)

    def each(self, x: Tensor) -> Tensor:
        return -evaluate_each(self.functions, x)


def _targets(model: Predictor) -> str:
    if model.target_names:
        return f"this model has {len(model.target_names)}"
    return f"{model.target_name} is a class or a count"
