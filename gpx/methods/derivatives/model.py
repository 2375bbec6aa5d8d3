"""Exact regression on values and derivatives of one function."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from gpx.constraints import is_trained, positive_parameters, set_above_floor
from gpx.errors import ConfigError, DataError, NotPositiveDefinite, class_name
from gpx.inference.several_targets import ObservedTargets, targets_log_density
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import check_derivatives
from gpx.kernels.stationary import Stationary
from gpx.kernels.structure import leaves
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.derivatives.covariance import (
    Inputs,
    ObservedDerivatives,
    as_inputs,
    prior_means,
    require_inputs,
)
from gpx.methods.derivatives.mll import FEWEST_CELLS
from gpx.methods.derivatives.posterior import DerivativePosterior
from gpx.sampling.batches import some_rows

TRIED_TARGETS = 600
"""Most values and derivatives by which starts are compared; cost is cubic in it."""
FACTORS = (0.5, 1.0, 3.0, 10.0)
"""Initial lengthscales that are tried, as multiples of those at which derivatives have the variance
of the data. For factors above one the outputscale grows with their square, so that derivatives keep
this variance: functions that are smooth over distances longer than the range of the data."""
SPREADS = (1.0, 0.5)
"""Powers to which the ratios of these lengthscales are raised. Derivatives with respect to an input
along which the function curves but does not rise are small, and do not show how fast they change,
so that the ratios may be misleading."""
NOISE_SHARES = (0.1, 0.001)
"""Of the mean squares of values and derivatives, at which their noise variances may start."""


class DerivativeGP(Model):
    """Gaussian process regression on a function's values and its partial derivatives.

    y_0 = f(x) + e_0 and y_j = df/dx_i (x) + e_j, with one noise variance each. Function and
    derivatives are one Gaussian process, whose covariances are derivatives of the kernel; a
    derivative is as much information as a value nearby.

    Values and derivatives may be missing: NaN in y (n, p). Their noise variances may be known for
    each row or cell (``know_noise``).

    Args:
        kernel: of f, with ``derivatives``: most that are differentiable, their sums and products.
        mean: of f.
        likelihood: ``GaussianOutputs(p)``: of the values and of the p - 1 derivatives.
        with_respect_to: columns of x by which f is differentiated, one for each target after the
            first; None: all of them in their order.

    Attributes:
        with_respect_to: the columns.
        inputs: None for the values, then the columns.

    Raises:
        ConfigError: another likelihood, or columns that are no numbers from 0, named twice, or not
            as many as targets after the first.

    Source: Rasmussen and Williams 2006, section 9.4; Solak et al. 2003.
    """

    takes_missing_targets = True
    takes_row_noise = True
    takes_cell_noise = True
    observes_derivatives = True
    kernel: Kernel
    mean: Mean
    likelihood: GaussianOutputs

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: GaussianOutputs,
        with_respect_to: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(likelihood, GaussianOutputs):
            raise ConfigError(
                f"likelihood={class_name(likelihood)}: DerivativeGP models values and derivatives "
                "with a noise variance each: take likelihood=GaussianOutputs()"
            )
        count = likelihood.num_outputs - 1
        chosen = list(range(count)) if with_respect_to is None else list(with_respect_to)
        if not all(isinstance(i, Integral) and i >= 0 for i in chosen):
            raise ConfigError(f"with_respect_to={chosen} must hold numbers of columns, from 0 on")
        if len(chosen) != count:
            raise ConfigError(
                f"with_respect_to={chosen} names {len(chosen)} inputs, and there are {count} "
                "derivatives, the targets after the first: name one for each"
            )
        if len(set(chosen)) < count:
            raise ConfigError(f"with_respect_to={chosen} names an input twice")
        self.kernel, self.mean, self.likelihood = kernel, mean, likelihood
        self.with_respect_to = tuple(int(i) for i in chosen)

    @property
    def num_outputs(self) -> int:
        """As in ``Model``: that of the likelihood."""
        return self.likelihood.num_outputs

    @property
    def inputs(self) -> Inputs:
        """What each target is differentiated by."""
        return as_inputs(self.with_respect_to)

    def check(self, x: Tensor) -> None:
        """As in ``Model``; also that the kernel's derivatives are those of its covariance."""
        super().check(x)
        require_inputs(self.inputs, x)
        check_derivatives(self.kernel, x[:3], self.with_respect_to)

    def start_targets(self, y: Tensor) -> Tensor | None:
        """As in ``Model``: all where there are no derivatives, and none where there are.

        Derivatives say more of lengthscales than an exact process of few values does.
        """
        return y if bool(y[:, 1:].isnan().all()) else None

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Start where the evidence of some values and derivatives is largest.

        Beside the present hyperparameters, lengthscales are tried at which derivatives have the
        variance of the data, longer and shorter ones (``FACTORS``), and two noise levels. What is
        not trained stays, and lengthscales where there are no derivatives.

        Cost: 18 factorisations of at most ``TRIED_TARGETS`` targets.
        """
        require_inputs(self.inputs, x)
        few = self._start_untold_noise(x, y)
        if self.start_targets(y) is not None:
            return
        count = min(len(x), max(2, TRIED_TARGETS // y.shape[1]))
        rows = some_rows(x, count, generator)
        x, y = x[rows], y[rows]
        known = None if self.row_noise is None else self.row_noise.of(rows).like(y)
        squares = (y - prior_means(self.mean, x, self.inputs)).square().nanmean(0)
        moving = [p for part in (self.kernel, self.likelihood) for p in part.parameters()]
        given = [parameter.clone() for parameter in moving]
        log = self._stretch(x, squares[1:])

        def start(factor: float | None, power: float, share: float | None) -> None:
            for parameter, value in zip(moving, given, strict=True):
                parameter.copy_(value)
            if factor is not None:
                stretch = (power * log + (1.0 - power) * log.mean()).exp()
                _lengthen(self.kernel, factor * stretch)
                _enlarge(self.kernel, max(factor, 1.0) ** 2)
            if share is not None and is_trained(self.likelihood, "noise_variance"):
                noise = self.likelihood.noise_variance
                noise = torch.where((squares > 0.0) & ~few, share * squares, noise)
                set_above_floor(self.likelihood, "noise_variance", noise)

        ways: list[tuple[float | None, float]] = [(None, 1.0)]
        ways += [(factor, power) for factor in FACTORS for power in SPREADS]
        tried = [(*way, share) for way in ways for share in NOISE_SHARES]
        found = []
        for each in tried:
            start(*each)
            found.append(self._log_density(x, y, known))
        best = max(range(len(tried)), key=found.__getitem__)
        start(*(tried[best] if found[best] > -math.inf else (None, 1.0, None)))

    def _start_untold_noise(self, x: Tensor, y: Tensor) -> Tensor:
        """Set the noise variances that are not learned; returns which these are (p,).

        It is next to nothing of a derivative that was never observed, and a small share of the
        prior's variance for one or two cells.
        """
        counts = (~y.isnan()).sum(0)
        few = counts < FEWEST_CELLS
        if is_trained(self.likelihood, "noise_variance"):
            found = self.kernel.derivatives(x[:1], x[:1])
            prior = torch.cat([found.entry(i, i) for i in self.inputs])
            least = torch.where(counts > 0, NOISE_SHARES[-1] * prior, 0.0)
            noise = torch.where(few, least, self.likelihood.noise_variance)
            set_above_floor(self.likelihood, "noise_variance", noise)
        return few

    def _stretch(self, x: Tensor, squares: Tensor) -> Tensor:
        """Logarithms (d,) of factors of lengthscales after which derivatives have a variance.

        It is that of the mean squares (p - 1,). Inputs without derivatives have the geometric mean
        of the others.
        """
        found = self.kernel.derivatives(x, x)
        log = torch.full_like(x[0], torch.nan)
        for i, square in zip(self.with_respect_to, squares, strict=True):
            log[i] = 0.5 * (found.entry(i, i).mean() / square).log()
        log = torch.where(log.isfinite(), log, torch.nan)
        return torch.where(log.isnan(), log.nanmean().nan_to_num(0.0), log)

    def _log_density(self, x: Tensor, y: Tensor, known: RowNoise | None) -> float:
        """Log evidence of a few rows; minus infinity where it cannot be computed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a start that is not taken needs no warning
            try:
                residual = y - prior_means(self.mean, x, self.inputs)
                targets = ObservedTargets(residual, some_empty=True)
                covariance = ObservedDerivatives(self.kernel, self.inputs, x, targets)
                noise = self.likelihood.noise_variance.to(y)
                noise = noise if known is None else known.variances(noise)
                terms, _, _ = targets_log_density(covariance, x, residual, noise, gradient=False)
            except (NotPositiveDefinite, DataError):  # no targets in these rows
                return -math.inf
        value = float(terms.total())
        return value if math.isfinite(value) else -math.inf

    def condition(self, x: Tensor, y: Tensor) -> DerivativePosterior:
        """Posterior given x (n, d) and y (n, p), NaN where a target is missing.

        Cost: N^3/3 multiply-adds and an N x N array for N observed values and derivatives.

        Raises:
            DataError: infinite targets, or none at all.
            ConfigError: the array does not fit into free memory, the kernel has no derivatives, or
                x lacks an input.
        """
        posterior = self.new_posterior()
        if self.row_noise is not None:
            posterior.know_noise(self.row_noise.like(x))
        posterior.condition_(x, y)
        return posterior

    def new_posterior(self) -> DerivativePosterior:
        """As in ``Model``."""
        parts = (self.kernel, self.mean, self.likelihood)
        return DerivativePosterior(*parts, self.with_respect_to)


def _lengthen(kernel: Kernel, factors: Tensor) -> None:
    """Multiply trained lengthscales within a kernel by the factors (d,) of their inputs."""
    for part in leaves(kernel):
        if not (isinstance(part, Stationary) and part.lengthscale_in_unit_of_x):
            continue
        if not is_trained(part, "lengthscale"):
            continue
        own = factors if part.active_dims is None else factors[part.active_dims]
        if part.lengthscale.numel() != len(own):
            own = own.log().mean().exp()
        set_above_floor(part, "lengthscale", own * part.lengthscale)


def _enlarge(kernel: Kernel, factor: float) -> None:
    """Multiply the trained outputscale of a kernel that is stationary by a factor."""
    parts = list(leaves(kernel))
    if len(parts) > 1 or not isinstance(parts[0], Stationary):
        return
    raw = {own.name: own.raw for own in positive_parameters(parts[0], below=False)}
    if "outputscale" in raw and raw["outputscale"].requires_grad:
        set_above_floor(parts[0], "outputscale", factor * parts[0].outputscale)
