"""Values that a discrete variable may take, and their prior probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError, class_name
from gpx.tensor_checks import check_at_least, check_one_of, check_positive

Prior = Literal["gaussian", "uniform"]

ZERO_TOLERANCE = 1e-6
"""Values below this share of the largest one are taken as rounding errors of zero."""


class Grid:
    """Values of a discrete variable in ascending order, with a prior probability for each.

    Args:
        values (k,): ascending and finite.
        log_weights (k,) or (c, k): unnormalised log prior, or one for each of c components of a
            mixture of priors.
        name: of the variable, for messages.
        shares (c,): unnormalised weights of the components; None: equal ones.

    Attributes:
        values (k,), log_prior (k,): float64, without the values of prior probability zero; the
            prior is normalised, for a mixture the marginal one.
        log_components (c, k), log_shares (c,): of the mixture; c = 1 for a single prior.

    Raises:
        ConfigError: values that are not finite or not ascending, or a prior of another length,
            without mass, or with a negative or infinite entry.
    """

    def __init__(
        self,
        values: Tensor,
        log_weights: Tensor,
        name: str,
        shares: Sequence[float] | None = None,
    ) -> None:
        if values.ndim != 1 or not len(values) or not bool(values.isfinite().all()):
            raise ConfigError(
                f"values of the {name}: expected finite numbers, got {_first_values(values)}"
            )
        if not bool((values.diff() > 0.0).all()):
            raise ConfigError(
                f"values of the {name} must ascend without repeats, got {_first_values(values)}; "
                "sort them"
            )
        if log_weights.shape[-1] != len(values):
            raise ConfigError(
                f"the prior of the {name} has {log_weights.shape[-1]} probabilities for "
                f"{len(values)} values; give one for each"
            )
        if bool((log_weights == math.inf).any() | log_weights.isnan().any()):
            raise ConfigError(
                f"the prior of the {name} has a probability that is negative or not finite; give "
                "numbers from 0 on"
            )
        if not bool((log_weights > -math.inf).any(-1).all()):
            raise ConfigError(
                f"the prior of the {name} has no mass: every probability is 0; make one positive"
            )
        components = log_weights.reshape(-1, len(values)).log_softmax(-1)
        if len(components) > 1 and not bool(components.isfinite().all()):
            raise ConfigError(
                f"the mixture of priors of the {name} has a component with a probability of 0; "
                "make it small and positive"
            )
        possible = (components > -math.inf).any(0)
        self.values = values[possible]
        self.log_components = components[:, possible]
        self.log_shares = _log_shares(shares, len(components), name)
        self.log_prior = (self.log_shares.unsqueeze(1) + self.log_components).logsumexp(0)

    def __len__(self) -> int:
        return len(self.values)


class WeightGrid(Grid):
    """The values that every weight may take, in units of its prior standard deviation.

    Args:
        num_values: k, evenly spaced from -half_width to half_width; if odd, zero is one of them.
        half_width: in prior standard deviations.
        prior: ``gaussian`` (the standard normal density at the values, normalised) or ``uniform``.
        values: ascending values to use instead of evenly spaced ones; those below 1e-6 times the
            largest become zero.
        probabilities: prior probabilities of the values to use instead of ``prior``; they are
            normalised. Several lists make a mixture of priors with one component for all weights.
        widths: standard deviations of a mixture of Gaussian priors, for functions of uncertain
            size.
        shares: unnormalised weights of the components of a mixture; None: equal ones.
        sparse: refuse values without zero.

    Attributes:
        zero: the index of zero among the values; None if zero is not a value.

    Raises:
        ConfigError: as ``Grid``, an option out of range, or no zero although ``sparse``.

    Source: Evans thesis, section 7.2 (its benchmarks use 15 values up to three standard deviations)
    and theorem 7.4 (mixtures of priors).
    """

    def __init__(
        self,
        num_values: int = 15,
        half_width: float = 3.0,
        prior: Prior = "gaussian",
        values: Sequence[float] | None = None,
        probabilities: Sequence[float] | Sequence[Sequence[float]] | None = None,
        widths: Sequence[float] | None = None,
        shares: Sequence[float] | None = None,
        sparse: bool = True,
    ) -> None:
        check_at_least(1, num_values=num_values)
        check_positive(finite=True, half_width=half_width)
        check_one_of(get_args(Prior), prior=prior)
        if values is None:
            middle = 0.5 * (num_values - 1)
            places = (torch.arange(num_values, dtype=torch.float64) - middle) / max(middle, 0.5)
            made = half_width * places
        else:
            made = _as_numbers(values, "values")
            if len(made):  # the middle of numpy.linspace(-1, 1, 15) may be 1e-17 instead of zero
                largest = made[made.isfinite()].abs().max() if bool(made.isfinite().any()) else 0.0
                made[made.abs() <= ZERO_TOLERANCE * largest] = 0.0
        self.prior = prior if probabilities is None and widths is None else "own"
        weights = log_weights(made, prior, probabilities)
        if widths is not None:
            if probabilities is not None:
                raise ConfigError("widths= and probabilities= both give the prior; leave one out")
            weights = _log_gaussians(made, widths)
        super().__init__(made, weights, "weights", shares)
        places = (self.values == 0.0).nonzero().flatten()
        self.zero: int | None = int(places[0]) if len(places) else None
        if sparse and self.zero is None:
            if bool((made == 0.0).any()):
                raise ConfigError(
                    "sparse=True needs weights that can be zero, and probabilities= rules the "
                    "value 0 out; make its probability positive, or use sparse=False"
                )
            raise ConfigError(
                f"sparse=True needs zero among the values of the weights, got {_first_values(made)}"
                "; use an odd num_values, values= with 0 in them, or sparse=False"
            )

    def place_of_zero(self) -> int:
        """``zero``; raises ConfigError where zero is none of the values."""
        if self.zero is None:
            raise ConfigError("sparsity counts zeros, and no value of the weights is zero")
        return self.zero


class NoiseGrid(Grid):
    """The values that the noise variance may take, in squared units of the standardised target.

    Args:
        lowest, highest, num_values: range and number of values with evenly spaced logarithms.
        values: ascending positive values to use instead.
        probabilities: prior probabilities, normalised here; None: uniform.

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
        check_at_least(1, num_values=num_values)
        if not 0.0 < lowest <= highest < math.inf:
            raise ConfigError(
                f"lowest={lowest} must be above 0, and highest={highest} finite and no smaller"
            )
        if values is None:
            ends = math.log10(lowest), math.log10(highest)
            made = torch.logspace(*ends, num_values, dtype=torch.float64)
        else:
            made = _as_numbers(values, "values")
        super().__init__(made, log_weights(made, "uniform", probabilities), "noise variance")
        if not bool((self.values > 0.0).all()):
            raise ConfigError(
                f"values of the noise variance must be positive, got {_first_values(made)}"
            )


def require_grid(given: object, kind: type[Grid], argument: str) -> None:
    """Raise ConfigError unless ``given`` is a grid of that kind or None."""
    if given is not None and not isinstance(given, kind):
        found = class_name(given)
        raise ConfigError(
            f"{argument}= is of class {found}; give a gpx.models.{kind.__name__} or None"
        )


def log_weights(
    values: Tensor, prior: Prior, own: Sequence[float] | Sequence[Sequence[float]] | None = None
) -> Tensor:
    """Unnormalised log prior (k,) or (c, k) at ``values`` (k,); ``own`` takes precedence."""
    if own is None:
        return -0.5 * values.square() if prior == "gaussian" else torch.zeros_like(values)
    given = _as_numbers(own, "probabilities")
    return torch.where(given < 0.0, math.nan, given.log())


def _as_numbers(given: Sequence[float] | Sequence[Sequence[float]], option: str) -> Tensor:
    """Convert a list of numbers, or of equally long lists, to float64; otherwise ConfigError."""
    try:
        rows = [list(each) if not isinstance(each, float | int | str) else each for each in given]
        return torch.tensor(rows, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{option}={given} is not a list of numbers or of equally long lists of numbers"
        ) from error


def _log_gaussians(values: Tensor, widths: Sequence[float]) -> Tensor:
    """Unnormalised log densities (c, k) of Gaussians with standard deviations ``widths``."""
    deviations = _as_numbers(widths, "widths")
    if (
        deviations.ndim != 1
        or not len(deviations)
        or not bool((deviations > 0.0).all() & deviations.isfinite().all())
    ):
        raise ConfigError(f"widths={list(widths)}: expected standard deviations above 0")
    return -0.5 * (values / deviations.unsqueeze(1)).square()


def _log_shares(shares: Sequence[float] | None, count: int, name: str) -> Tensor:
    given = torch.ones(count, dtype=torch.float64)
    if shares is not None:
        given = _as_numbers(shares, "shares")
    if given.shape != (count,) or not bool((given > 0.0).all() & given.isfinite().all()):
        raise ConfigError(
            f"shares={list(shares or [])}: expected a positive number for each of the {count} "
            f"priors of the {name}"
        )
    return given.log().log_softmax(0)


def effective_log_prior(q: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Lower bound on E_q log p(w) for a mixture of priors, as an effective prior and a constant.

    E_q log p(w) >= sum_i rho_i (log(alpha_i / rho_i) + sum_j q_j . log p_i) for any rho on the
    simplex. The optimal rho is used; for a single prior the bound is exact.

    Args:
        q (m, k): probabilities of the weights.
        grid: values and prior of a weight.

    Returns:
        rho @ log p (k,), the effective log prior of every weight, and the constant
        sum_i rho_i log(alpha_i / rho_i) () to be added to the bound.

    Source: Evans thesis, theorem 7.4, which uses rho = alpha.
    """
    components = grid.log_components.to(q.device)
    if len(components) == 1:
        return components[0], q.new_zeros(())
    shares = grid.log_shares.to(q.device)
    log_rho = (shares + components @ q.sum(0)).log_softmax(0)
    rho = log_rho.exp()
    return rho @ components, (rho * (shares - log_rho)).sum()


def _first_values(values: Tensor) -> str:
    shown = ", ".join(f"{v:g}" for v in values.flatten()[:6].tolist())
    return f"[{shown}{', ...' if values.numel() > 6 else ''}]"
