"""Base class of likelihoods: p(y | f) per row, and its expectations under Gaussians."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)
from torch.nn.functional import logsigmoid

from gpx.constructed import Constructed
from gpx.errors import ConfigError, NotAvailable, ShapeError, class_name
from gpx.likelihoods.row_noise import RowNoise
from gpx.likelihoods.tilted import Curvature, Tilted, tilted_by_quadrature
from gpx.tensor_checks import validation

Task = Literal["regression", "binary", "multiclass", "ordinal", "count", "proportion", "positive"]


def is_classification(task: Task) -> bool:
    """Whether targets are classes, ordered or not, rather than numbers."""
    return task in ("binary", "multiclass", "ordinal")


def class_numbers(y: Tensor, task: Task) -> Tensor:
    """Classes 0 .. C - 1 (n,) of targets, which are -1 and 1 where there are two."""
    return (y > 0).long() if task == "binary" else y.long()


def class_law(probabilities: Tensor) -> Categorical:
    """Categorical law of class probabilities (..., C), with the logarithms of small ones exact.

    ``Categorical(probs=...)`` raises those below rounding (1.2e-7 in float32) to it in logarithms,
    so that a classifier that is certain and wrong would seem better than it is. Zero counts as the
    smallest normal number.
    """
    logits = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
    return Categorical(logits=logits, validate_args=validation(logits))


def log_class_probabilities(law: Any) -> Tensor:
    """Log probabilities of the classes (n, C), or of the labels -1 and 1 (n, 2).

    Args:
        law: of classes, with ``logits`` or ``probs`` (n, C), or (n,) of the label 1.

    Raises:
        ConfigError: the distribution has no class probabilities.
    """
    logits, probs = getattr(law, "logits", None), getattr(law, "probs", None)
    if logits is not None:
        if logits.ndim == 1:
            return logsigmoid(torch.stack([-logits, logits], -1))
        return torch.log_softmax(logits, -1)
    if probs is None:
        raise ConfigError(
            f"a {type(law).__name__} has no class probabilities; the predictive distribution of a "
            "likelihood of classes must have probs or logits"
        )
    if probs.ndim == 1:
        probs = torch.stack([getattr(law, "complement", 1.0 - probs), probs], -1)
    return cast(Tensor, probs.log())


class Likelihood(Constructed, ABC):
    """Observation model: targets are independent given the latent functions.

    Shapes: y (n,), or (n, num_outputs) for several outputs; f, mean and variance (..., n) for one
    latent function, (..., n, p) for p of them, where the leading dimensions are samples or members
    of an ensemble. Everything is in nats and in the (standardised) unit of the targets.

    Attributes:
        num_latents: p, number of latent functions of one row.
        num_outputs: number of targets of one row.
        log_concave: whether log p(y | f) is concave in f for every y.
        task: decides how targets are encoded and which metrics apply. ``regression``: real numbers;
            ``binary``: -1 or 1; ``multiclass``, and ``ordinal`` for ordered classes: 0, 1, ...,
            num_classes - 1; ``count``: 0, 1, 2, ...; ``proportion``: above 0 and below 1;
            ``positive``: above 0. Only those of ``regression`` are standardised, the others stay
            as they are.
        num_classes: number of classes; 0 where targets are numbers.
        weights_divide_noise: whether a row of weight w is the mean of w rows, of noise variance
            divided by w. False: it counts as w rows, its log density times w.
    """

    num_latents: int = 1
    num_outputs: int = 1
    num_classes: int = 0
    weights_divide_noise: ClassVar[bool] = False
    log_concave: ClassVar[bool]
    task: ClassVar[Task]

    def forward(self, *_: Any, **__: Any) -> Any:
        """Raises NotAvailable: a likelihood is asked by name."""
        raise NotAvailable(
            f"{class_name(self)} is not called: new observations have the law "
            "posterior.predictive(x, likelihood), which is likelihood.predictive(mean, variance) "
            "for most posteriors; log p(y | f) is likelihood.log_prob(y, f)"
        )

    @abstractmethod
    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f) in nats, summed over the outputs of a row: f as above -> (..., n)."""

    @abstractmethod
    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f) in nats under f ~ N(mean, variance), points and latents independent.

        Args:
            y (n,) or (n, num_outputs): targets.
            mean, variance (..., n) or (..., n, p): latent marginals; the variance is not negative.

        Returns:
            (..., n), differentiable in mean, variance and the likelihood's own parameters.
        """

    def start(self, residual: Tensor) -> None:
        """Initialise parameters that depend on the targets; called once, before training.

        Args:
            residual (n,) or (n, num_outputs): training targets minus their prior mean.

        Default: parameters keep their values.
        """

    def require_row_noise(self, noise: RowNoise) -> None:
        """Raise ConfigError if the likelihood cannot include noise of a known variance.

        Default: weights of rows are accepted, known variances are not.
        """
        if bool((noise.known != 0.0).any()):
            raise ConfigError(
                f"known noise of rows (noise=) adds to that of the Gaussian likelihood of one "
                f"output, and this one is {class_name(self)}: leave it out, or give weights="
            )

    def log_prob_of_rows(self, y: Tensor, f: Tensor, noise: RowNoise | None) -> Tensor:
        """``log_prob`` of rows with weights or partly known noise.

        Default: a row of weight w counts as w rows, log p(y | f) times w.

        Args:
            y, f: of ``log_prob``.
            noise: of each row, accepted by ``require_row_noise``; None: no weights, nothing known.
        """
        found = _of_each_row(self.log_prob(y, f), self, "log_prob", f)
        return found if noise is None else found / noise.relative.to(found)

    def expected_log_prob_of_rows(
        self, y: Tensor, mean: Tensor, variance: Tensor, noise: RowNoise | None
    ) -> Tensor:
        """``expected_log_prob`` of such rows; ``noise`` as in ``log_prob_of_rows``."""
        found = self.expected_log_prob(y, mean, variance)
        found = _of_each_row(found, self, "expected_log_prob", mean)
        return found if noise is None else found / noise.relative.to(found)

    @abstractmethod
    def predictive(self, mean: Tensor, variance: Tensor) -> Distribution:
        """Distribution of y with batch shape (..., n), given latent marginals as above.

        For several outputs a ``torch.distributions.Independent`` of event shape (num_outputs,),
        whose base distribution has the marginals of the outputs, or a multivariate normal if their
        errors are correlated; see ``target_marginals``.
        """

    def log_predictive_of_rows(
        self, y: Tensor, mean: Tensor, variance: Tensor, noise: RowNoise | None
    ) -> Tensor:
        """log E p(y | f) in nats under f ~ N(mean, variance): the density of new observations.

        Default: that of ``predictive``, times the weight of each row.

        Args:
            y, mean, variance: of ``expected_log_prob``.
            noise: as in ``log_prob_of_rows``.

        Returns:
            (..., n), differentiable as ``predictive`` is. Of several outputs the sum over those of
            a row, each by its own law.
        """
        found = self.predictive(mean, variance).log_prob(y)
        found = _of_each_row(found, self, "predictive(...).log_prob", mean)
        return found if noise is None else found / noise.relative.to(found)

    def outputs(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of the noise-free outputs from those of the latents. Default: the same."""
        return mean, variance

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """Derivatives of ``log_prob`` at y (n,) and f as above, themselves differentiable in f.

        For Newton's method and Laplace's approximation. Not implemented by likelihoods whose second
        derivative does not have the form of ``Curvature`` or does not exist.

        Raises:
            NotAvailable: not implemented.
        """
        raise NotAvailable(
            f"the {class_name(self)} likelihood declares no second derivatives (curvature), which "
            "Laplace's approximation needs; model=SVGP() takes any likelihood"
        )

    def tilted(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tilted:
        """log E p(y | f) and its derivatives, exact to rounding. For expectation propagation.

        Args:
            y (n,): targets.
            mean, variance (..., n): of f; one latent function, the variance is not negative.

        Default: ``tilted_by_quadrature`` for a log-concave likelihood that defines ``curvature``.

        Raises:
            NotAvailable: not implemented, and no such likelihood.
        """
        if not self.is_curved:
            raise NotAvailable(
                f"the {class_name(self)} likelihood does not know its moments (tilted), which "
                "expectation propagation needs; take likelihood=Bernoulli(), or model=SVGP(), "
                "which takes any likelihood"
            )
        return tilted_by_quadrature(self, y, mean, variance)

    @classmethod
    def suits_laplace(cls) -> bool:
        """Whether it is log-concave and defines ``curvature``."""
        declared = getattr(cls, "log_concave", False)  # by subclasses only
        return declared and cls.curvature is not Likelihood.curvature

    @property
    def is_curved(self) -> bool:
        """Whether it ``suits_laplace`` and has one latent function."""
        return self.suits_laplace() and self.num_latents == 1

    @property
    def closed_moments(self) -> bool:
        """Whether ``tilted`` is a closed form, not a quadrature."""
        return type(self).tilted is not Likelihood.tilted


def require_labels(likelihood: Likelihood, y: Tensor, count: int) -> None:
    """Raise ShapeError where a label of y (n,) is not one of 0, 1, ..., count - 1.

    Checked on the CPU only: on a GPU the check would synchronise, and torch stops by itself.
    """
    if y.is_cpu and len(y) and not (int(y.min()) >= 0 and int(y.max()) < count):
        raise ShapeError(
            f"{class_name(likelihood)}: labels reach from {int(y.min())} to {int(y.max())}, "
            f"expected 0 to {count - 1} for its {count} classes; give it num_classes="
            f"{int(y.max()) + 1}, or number the classes from 0"
        )


def target_marginals(predictive: Distribution) -> Distribution:
    """The law of every single target: batch shape (..., n), or (..., n, p) for p outputs.

    Args:
        predictive: from ``Likelihood.predictive``.
    """
    if isinstance(predictive, (LowRankMultivariateNormal, MultivariateNormal)):
        return Normal(predictive.mean, predictive.stddev, validate_args=False)
    return predictive.base_dist if isinstance(predictive, Independent) else predictive


def _of_each_row(found: Tensor, likelihood: Likelihood, method: str, latents: Tensor) -> Tensor:
    """``found``, checked to have one entry a row: a sum would count the data n times.

    Args:
        found: result of ``method``.
        latents (..., n) or (..., n, p): what it was given.

    Raises:
        ShapeError: it has another shape than (..., n).
    """
    rows = latents.shape[:-1] if likelihood.num_latents > 1 else latents.shape
    if found.shape != rows:
        raise ShapeError(
            f"{class_name(likelihood)}.{method} gave a tensor of shape {tuple(found.shape)}, "
            f"expected {tuple(rows)}: one entry for each row, not summed over rows"
        )
    return found
