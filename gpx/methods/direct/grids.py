"""Values that a discrete variable may take, and their prior probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError

Prior = Literal["gaussian", "uniform"]


class Grid:
    """Values of a discrete variable in ascending order, with a prior probability for each.

    Args:
        values (k,): ascending and finite.
        log_weights (k,): of the prior, up to a constant.
        name: of the variable, for messages.

    Attributes:
        values (k,), log_prior (k,): float64, without values of prior probability zero, which the
            posterior never takes; the prior sums to one.

    Raises:
        ConfigError: values that are not finite or not ascending, or a prior without mass, of
            another length, or with a negative or infinite entry.
    """

    def __init__(self, values: Tensor, log_weights: Tensor, name: str) -> None:
        if values.ndim != 1 or not len(values) or not bool(values.isfinite().all()):
            raise ConfigError(f"values of the {name}: expected finite numbers, got {_some(values)}")
        if not bool((values.diff() > 0.0).all()):
            raise ConfigError(
                f"values of the {name} must ascend without repeats, got {_some(values)}; sort them"
            )
        if log_weights.shape != values.shape:
            raise ConfigError(
                f"the prior of the {name} has {log_weights.numel()} probabilities for "
                f"{len(values)} values; give one for each"
            )
        if bool((log_weights == math.inf).any() | log_weights.isnan().any()):
            raise ConfigError(
                f"the prior of the {name} has a probability that is negative or not finite; give "
                "numbers from 0 on"
            )
        if not bool((log_weights > -math.inf).any()):
            raise ConfigError(
                f"the prior of the {name} has no mass: every probability is 0; make one positive"
            )
        possible = log_weights > -math.inf
        self.values = values[possible]
        self.log_prior = log_weights[possible].log_softmax(0)

    def __len__(self) -> int:
        return len(self.values)


class WeightGrid(Grid):
    """The values that every weight may take, in units of its prior standard deviation.

    Args:
        num_values: k, evenly spaced from -half_width to half_width; odd, so that zero is one.
        half_width: in prior standard deviations.
        prior: ``gaussian`` (the standard normal density at the values, normalised) or ``uniform``.
        values: of one's own, ascending, in the place of evenly spaced ones.
        probabilities: of one's own, one for each value, in the place of ``prior``; they are
            normalised.
        sparse: refuse values without zero, for which there is no sparsity.

    Attributes:
        zero: the place of zero among the values; None where it is not one of them.

    Raises:
        ConfigError: as ``Grid``, an option out of range, or no zero although ``sparse``.

    Source: Evans thesis, section 7.2 (15 values to three deviations: its benchmarks).
    """

    def __init__(
        self,
        num_values: int = 15,
        half_width: float = 3.0,
        prior: Prior = "gaussian",
        values: Sequence[float] | None = None,
        probabilities: Sequence[float] | None = None,
        sparse: bool = True,
    ) -> None:
        if num_values < 1 or not 0.0 < half_width < math.inf:
            raise ConfigError(
                f"num_values={num_values} must be at least 1 and half_width={half_width} above 0 "
                "and finite"
            )
        if prior not in get_args(Prior):
            raise ConfigError(f"prior={prior}: expected one of {', '.join(get_args(Prior))}")
        if values is None:
            middle = 0.5 * (num_values - 1)
            places = (torch.arange(num_values, dtype=torch.float64) - middle) / max(middle, 0.5)
            made = half_width * places
        else:
            made = torch.tensor(list(values), dtype=torch.float64)
        self.prior = prior if probabilities is None else "own"
        super().__init__(made, log_density(made, prior, probabilities), "weights")
        places = (self.values == 0.0).nonzero().flatten()
        self.zero: int | None = int(places[0]) if len(places) else None
        if sparse and self.zero is None:
            raise ConfigError(
                f"sparse=True needs zero among the values of the weights, got {_some(made)}; use "
                "an odd num_values, values= with 0 in them, or sparse=False"
            )


class NoiseGrid(Grid):
    """The values that the noise variance may take, in squared units of the standardised target.

    Args:
        lowest, highest, num_values: ends and number of evenly spaced logarithms.
        values: of one's own, ascending and positive, in the place of these.
        probabilities: prior of one's own, normalised here; None: uniform.

    Raises:
        ConfigError: as ``Grid``, an option out of range, or a value that is not positive.

    Source: Evans thesis, section 7.3.2.
    """

    def __init__(
        self,
        lowest: float = 1e-4,
        highest: float = 1.0,
        num_values: int = 15,
        values: Sequence[float] | None = None,
        probabilities: Sequence[float] | None = None,
    ) -> None:
        if num_values < 1 or not 0.0 < lowest <= highest < math.inf:
            raise ConfigError(
                f"num_values={num_values} must be at least 1, lowest={lowest} above 0, and "
                f"highest={highest} finite and no smaller"
            )
        if values is None:
            ends = math.log10(lowest), math.log10(highest)
            made = torch.logspace(*ends, num_values, dtype=torch.float64)
        else:
            made = torch.tensor(list(values), dtype=torch.float64)
        super().__init__(made, log_density(made, "uniform", probabilities), "noise variance")
        if not bool((self.values > 0.0).all()):
            raise ConfigError(f"values of the noise variance must be positive, got {_some(made)}")


def log_density(values: Tensor, prior: Prior, own: Sequence[float] | None = None) -> Tensor:
    """Logarithms (k,) of prior weights at ``values`` (k,); ``own`` come before ``prior``."""
    if own is not None:
        given = torch.tensor(list(own), dtype=torch.float64)
        return torch.where(given < 0.0, math.nan, given.log())
    return -0.5 * values.square() if prior == "gaussian" else torch.zeros_like(values)


def _some(values: Tensor) -> str:
    shown = ", ".join(f"{v:g}" for v in values.flatten()[:6].tolist())
    return f"[{shown}{', ...' if values.numel() > 6 else ''}]"
