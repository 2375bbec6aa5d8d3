"""Fits of kernels to some rows, and the score by which ``kernel=auto`` compares them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.utils.parametrize import is_parametrized

from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.inference.leave_one_out import LeftOut
from gpx.kernels import Kernel
from gpx.likelihoods import Gaussian, Likelihood
from gpx.likelihoods.base import is_classification
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise, training_noise
from gpx.linalg import cholesky
from gpx.linalg.processes import sharing
from gpx.methods.base.model import Hyperparameters
from gpx.methods.classification.leave_one_out import left_out_log_density
from gpx.models import ExactGP, LaplaceGP
from gpx.objectives import ExactMLL, LaplaceEvidence
from gpx.options.build import build, fixed_parameters
from gpx.priors import Priors
from gpx.training.exact_outputs import (
    exact_outputs,
    know_noise_of_outputs,
    rows_of_outputs,
    take_over,
)
from gpx.training.initialisation import noise_evidence
from gpx.training.laplace_start import constant_evidence, start_level
from gpx.training.maximise import maximise
from gpx.training.several_fits import (
    SHORTER,
    amplify,
    explains,
    lengthen,
    start_factors,
    with_lengthscales,
)

Node = dict[str, Any]
Maximum = tuple[float, float | None, float | None, float | None]
"""``evidence``, ``predictive``, ``error`` and ``forecast`` of a ``Fit``."""

MIN_NOISE_SHARE = 1e-6
"""A run only starts from the fitted hyperparameters if the noise variance is at least this share of
the prior variance (and the kernel matrix is well-conditioned), otherwise from the config's."""
MAX_VAIN = 2
"""Kernels that are fitted again from shorter lengthscales to no avail; after so many of them what
is left counts as noise."""
PENALTY_UNDER_PRIOR = 0.5
"""Nats for a hyperparameter in the score of kernels that are fitted under a prior, as those of
classes are: few of them are fitted to noise."""
LARGER = 10.0
"""Factor of the outputscale for fits of classes that follow one which explains nothing: where few
of many inputs matter, functions of a variance of one are nearer to constants than to the labels,
and shrink."""
FORECASTS = (0.7, 0.8, 0.9)
"""Shares of a series from which the tenth that follows is forecast."""


@dataclass(frozen=True)
class Fit:
    """A kernel fitted to the rows.

    Attributes:
        name: its expression.
        node: its config, with the hyperparameters found.
        likelihood: config of the likelihood, with the hyperparameters found.
        evidence: nats per row.
        predictive: leave-one-out log density, nats per row; None for counts and positive targets.
        score: nats, see ``score``.
        hyperparameters: number of hyperparameters of the kernel.
        error: root mean squared leave-one-out error; None unless the noise is Gaussian.
        forecast: log density of later rows given earlier ones, nats per row; None unless there is
            one input and Gaussian noise.
    """

    name: str
    node: Node
    likelihood: Node
    evidence: float
    predictive: float | None = None
    score: float = -math.inf
    hyperparameters: int = 0
    forecast: float | None = None
    error: float | None = None


def score(
    rows: int,
    hyperparameters: int,
    evidence: float,
    predictive: float | None,
    penalty: float | None = None,
) -> float:
    """Score by which kernels are compared, in nats.

    The mean of the penalised evidence (minus log(n) / 2 for every hyperparameter, the Bayesian
    information criterion) and the leave-one-out log density, both summed over rows. The former
    assumes that the model is true; the latter measures predictions but does not penalise
    hyperparameters. If there is no ``predictive``, the former alone; also for series, because
    leaving out single rows measures interpolation and favours rough kernels.

    Args:
        rows: n.
        hyperparameters: number of those of the kernel.
        evidence, predictive: nats per row.
        penalty: nats for a hyperparameter; None: log(n) / 2.

    Source: Schwarz 1978 (the criterion).
    """
    each = 0.5 * math.log(rows) if penalty is None else penalty
    criterion = rows * evidence - each * hyperparameters
    return criterion if predictive is None else 0.5 * (criterion + rows * predictive)


class KernelFitter:
    """Fits kernels to the same rows.

    Args:
        config: with ``facts``; its mean and likelihood are fitted with every kernel.
        x (n, d), y (n,) or (n, p): the rows, NaN where one of p targets is missing.
        more (m, d): inputs of these and further rows, at which kernel matrices must be
            well-conditioned.
        max_evaluations: limit of evaluations of the evidence, for each kernel.
        noise: what is known of the noise of the n rows, and of the m; Gaussian likelihoods use it.
        priors: of hyperparameters, under which kernels are fitted; of several outputs they are not.
    """

    def __init__(
        self,
        config: DictConfig,
        x: Tensor,
        y: Tensor,
        more: Tensor,
        max_evaluations: int,
        noise: tuple[RowNoise, RowNoise] | None = None,
        priors: Priors | None = None,
    ) -> None:
        self.config, self.x, self.y, self.more = config, x, y, more
        self.max_evaluations = max_evaluations
        self.noise = None if noise is None else noise[0]
        self.noise_of_more = None if noise is None else noise[1]
        self.priors = priors
        self.mean = build(config, "mean")
        stored = OmegaConf.to_container(config.likelihood, resolve=False)
        assert isinstance(stored, dict)
        self.start: Node = {str(option): value for option, value in stored.items()}
        likelihood: Likelihood = build(config, "likelihood")
        self.gaussian = isinstance(likelihood, (Gaussian, NoisyOutputs))
        self.of_classes = is_classification(likelihood.task)
        self.under_prior = self.of_classes or (self.gaussian and priors is not None and y.ndim == 1)
        self.has_level = likelihood.task in ("count", "positive")
        self.keeps_noise = any(part == "likelihood" for part, _ in fixed_parameters(config))
        self.series = x.shape[1] == 1
        self.in_vain = 0
        # the terms of a series' sum are told apart by a few nats of all rows
        self.ftol, self.gtol = (1e-8, 1e-4) if self.series else (1e-6, 1e-3)

    def hyperparameters(self, node: Node) -> int:
        """Number of hyperparameters of the kernel of ``node``."""
        filled = copy.deepcopy(self.config)
        filled.kernel = node
        return num_learned(build(filled, "kernel"))

    def fit(self, name: str, node: Node, likelihood: Node | None = None) -> Fit:
        """Fit the kernel of ``node`` by maximum evidence; the score is -inf if it has none.

        Of several inputs a fit that takes everything for noise is repeated from shorter
        lengthscales, of classes from longer ones, with larger functions too; of series,
        decompositions see to that.

        Args:
            name: of the kernel.
            node: its config, with the initial values.
            likelihood: config of the likelihood; None: that of the run, which also holds where one
                of its parameters is fixed.
        """
        start = self.start if likelihood is None or self.keeps_noise else likelihood
        filled = copy.deepcopy(self.config)
        filled.kernel, filled.likelihood = node, start
        again = likelihood is None and not self.series and self.in_vain < MAX_VAIN
        again = again and (self.gaussian or self.of_classes)
        try:
            parts, found_here = self._from(filled, 1.0)
            if again and not self._explains(parts, found_here[0]):
                parts, found_here = self._from_others(filled, parts, found_here)
        except (NotPositiveDefinite, DidNotConverge):
            return Fit(name, node, start, -math.inf)
        kernel, (evidence, predictive, error, forecast) = parts.kernel, found_here
        count = num_learned(kernel)
        found = self.score(count, evidence, predictive)
        if not math.isfinite(found):
            return Fit(name, node, start, -math.inf)
        results = (evidence, predictive, found, count, forecast, error)
        if isinstance(
            parts.likelihood, Gaussian
        ):  # the config of other ones cannot hold the values
            if not self._can_start_from(kernel, parts.likelihood.noise_variance.detach()):
                return Fit(name, node, self.start, *results)
            start = with_values(start, parts.likelihood)
        return Fit(name, with_values(node, kernel), start, *results)

    def score(self, hyperparameters: int, evidence: float, predictive: float | None) -> float:
        """``score`` of these rows."""
        compared = None if self.series and self.gaussian else predictive
        penalty = PENALTY_UNDER_PRIOR if self.under_prior else None
        return score(len(self.y), hyperparameters, evidence, compared, penalty)

    def _from(
        self, filled: DictConfig, factor: float, scale: float = 1.0
    ) -> tuple[Hyperparameters, Maximum]:
        """Fit the parts of a config, from lengthscales and outputscales times factors."""
        kernel: Kernel = build(filled, "kernel")
        if factor != 1.0:
            lengthen(kernel, factor)
        if scale != 1.0:
            amplify(kernel, scale)
        likelihood: Likelihood = build(filled, "likelihood")
        parts = Hyperparameters(
            kernel.double(), copy.deepcopy(self.mean).double(), likelihood.double()
        )
        if self.has_level:
            start_level(parts, self.y)
        return parts, _agreed(self._maximise(parts))

    def _from_others(
        self, filled: DictConfig, parts: Hyperparameters, found: Maximum
    ) -> tuple[Hyperparameters, Maximum]:
        """The first fit from another start that explains something, else the one given."""
        if not with_lengthscales(parts.kernel):
            return parts, found
        starts = [(factor, 1.0) for factor in SHORTER]
        if self.of_classes:
            longest = math.sqrt(self.x.shape[1])
            longer = [(factor, 1.0) for factor in start_factors(2, self.x.shape[1])[1:]]
            starts = [(0.5 * longest, LARGER), (longest, LARGER), *longer, *starts]
        for start in starts:
            try:
                other = self._from(filled, *start)
            except (NotPositiveDefinite, DidNotConverge):
                continue
            if self._explains(other[0], other[1][0]):
                return other
        self.in_vain += 1
        return parts, found

    def _explains(self, parts: Hyperparameters, evidence: float) -> bool:
        """Whether a fit with this evidence per row explains more than independent noise does."""
        if not self.gaussian:
            (noise,) = _agreed((constant_evidence(parts.likelihood, self.y),))
            return explains(parts.kernel, len(self.y) * evidence - noise)
        rows = rows_of_outputs(self.x, self.y)
        each = zip(self._exact(parts), rows, strict=True)
        noise = sum(noise_evidence(gp, x, y) for gp, (x, y) in each if len(y))
        (noise,) = _agreed((noise,))
        return explains(parts.kernel, len(self.y) * evidence - noise)

    def _exact(self, parts: Hyperparameters) -> list[ExactGP]:
        """An exact GP for every output, which knows the noise of its rows."""
        exact = exact_outputs(parts)
        know_noise_of_outputs(exact, self.y, self.noise)
        return exact

    @torch.no_grad()
    def _can_start_from(self, kernel: Kernel, noise: Tensor) -> bool:
        """Whether the matrix of ``more`` rows has a Cholesky factor with half of the noise."""
        variance = kernel.diagonal(self.more).max()
        if self.noise_of_more is not None:
            noise = self.noise_of_more.like(noise).variance(noise)
        if not bool(noise.min() >= MIN_NOISE_SHARE * variance):
            return False
        covariance = kernel.evaluate(self.more, self.more)
        covariance.diagonal().add_(0.5 * noise)
        return int(torch.linalg.cholesky_ex(covariance).info) == 0

    def _maximise(self, parts: Hyperparameters) -> Maximum:
        """Maximise the evidence; returns it, ``predictive``, ``error`` and ``forecast``."""
        module: nn.Module
        outputs: list[tuple[ExactGP, Tensor, Tensor]] = []

        def share(y: Tensor) -> float:
            return len(y) / len(self.y)  # share of rows that have this output

        if self.gaussian:
            exact, objective = self._exact(parts), ExactMLL()
            rows = rows_of_outputs(self.x, self.y)
            outputs = [(each, *own) for each, own in zip(exact, rows, strict=True) if len(own[1])]
            module = nn.ModuleList([each for each, _, _ in outputs])

            def loss() -> Tensor:
                return torch.stack([share(y) * objective(gp, x, y) for gp, x, y in outputs]).sum()
        else:
            laplace, approximate = LaplaceGP(**parts._asdict()), LaplaceEvidence()
            module = laplace

            def loss() -> Tensor:
                return approximate(laplace, self.x, self.y)

        # losses are per row, and priors are not
        with_priors = self.under_prior or not self.gaussian
        number, priors = (len(self.y), self.priors) if with_priors else (1, None)
        maximise(
            module,
            lambda: -number * loss(),
            number,
            self.max_evaluations,
            ftol=self.ftol,
            gtol=self.gtol,
            priors=priors,
        )
        with torch.no_grad():
            evidence = -float(loss())
        if not self.gaussian:
            if not self.of_classes:
                return evidence, None, None, None
            return evidence, float(left_out_log_density(laplace, self.x, self.y).mean()), None, None
        take_over(exact, parts)
        left_out = [(share(y), _left_out(gp, x, y)) for gp, x, y in outputs]
        predictive = sum(part * float(each.log_density().mean()) for part, each in left_out)
        error = sum(part * float(each.residual.square().mean()) for part, each in left_out) ** 0.5
        if not self.series:
            return evidence, predictive, error, None
        forecast = sum(share(y) * _forecast(gp, x, y) for gp, x, y in outputs)
        return evidence, predictive, error, forecast


def _agreed(values: Sequence[float | None]) -> Any:
    """The values that process 0 of a shared run has, as a tuple.

    Further fits depend on them, which processes share: none may enter one that others do not.
    """
    message = torch.tensor([math.nan if each is None else each for each in values]).double()
    sharing().broadcast([message])
    pairs = zip(values, message.tolist(), strict=True)
    return tuple(None if own is None else first for own, first in pairs)


@torch.no_grad()
def _left_out(model: ExactGP, x: Tensor, y: Tensor) -> LeftOut:
    """Leave-one-out predictions of y (n,)."""
    covariance = model.kernel.evaluate(x, x)
    covariance.diagonal().add_(training_noise(model, y))
    factor, _ = cholesky(covariance, name="the covariance of the rows", ladder=(0.0,))
    return LeftOut.of(factor, y - model.mean(x))


@torch.no_grad()
def _forecast(model: ExactGP, x: Tensor, y: Tensor) -> float:
    """Mean log density of y (n,) in tenths of the series, each given all rows before it."""
    order = x[:, 0].argsort()
    x, y = x[order], y[order] - model.mean(x[order])
    covariance = model.kernel.evaluate(x, x)
    noise = training_noise(model, y)
    covariance.diagonal().add_(noise[order] if noise.ndim else noise)
    factor, _ = cholesky(covariance, name="the covariance of the rows", ladder=(0.0,))
    # leading blocks of the factor are the factors of the earlier rows
    whitened = torch.linalg.solve_triangular(factor, y.unsqueeze(1), upper=False)
    densities = []
    for share in FORECASTS:
        start, end = round(share * len(y)), round((share + 0.1) * len(y))
        mean = (factor[start:end, :start] @ whitened[:start]).squeeze(1)
        deviation = factor[start:end, start:end].norm(dim=1)
        densities.append(Normal(mean, deviation).log_prob(y[start:end]))
    return float(torch.cat(densities).mean())


def num_learned(kernel: Kernel) -> int:
    """Number of learned hyperparameters."""
    return sum(p.numel() for p in kernel.parameters() if p.requires_grad)


def with_values(node: Node, part: Any) -> Node:
    """The config of a kernel or likelihood, with learned values in place of initial ones."""
    made = dict(node)
    for option, initial in node.items():
        value = getattr(part, option, None)
        if isinstance(value, nn.ModuleList):
            pairs = zip(initial, value, strict=True)
            made[option] = [with_values(each, module) for each, module in pairs]
        elif isinstance(value, nn.Module) and isinstance(initial, dict):
            made[option] = with_values(initial, value)
        elif isinstance(value, Tensor):
            learned = is_parametrized(part, option) or isinstance(value, nn.Parameter)
            if learned or initial is not None:  # without a value it may be fixed
                made[option] = value.detach().tolist()
    return made
