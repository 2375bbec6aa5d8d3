"""Bayesian average over a finite set of models by their evidences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from gpx.errors import ConfigError
from gpx.methods.base.model import Marginals, Posterior


def mixture_moments(parts: Marginals, weights: Tensor | None = None) -> Marginals:
    """Mean and variance (n,) of mixtures of components with means and variances (J, n).

    Args:
        parts: of the components; (J, n, p) of p functions where weights are equal.
        weights (J,), or (J, n) for weights of every row: that sum to one; None: equal.
    """
    count = len(parts.mean)
    share = 1.0 / count if weights is None else weights.to(parts.mean).view(count, -1)
    mean = (share * parts.mean).sum(0)
    # variance within the components and of their means: no difference of large numbers
    variance = (share * (parts.variance + (parts.mean - mean).square())).sum(0)
    return Marginals(mean, variance)


def gaussian_mixture(parts: Marginals, weights: Tensor | None = None) -> MixtureSameFamily:
    """Mixtures of normals, batch shape (n,); their densities are log-sum-exps.

    Args:
        parts: means and variances (J, n) of the components; variances are positive.
        weights (J,), or (J, n) for weights of every row: that sum to one; None: equal.
    """
    count, rows = parts.mean.shape
    if weights is None:
        weights = parts.mean.new_ones(count)
    share = Categorical(probs=_by_row(weights.to(parts.mean)).expand(rows, count))
    # torch's check of values cannot look at none
    checked = None if rows else False
    normals = Normal(parts.mean.mT, parts.variance.mT.sqrt())
    return MixtureSameFamily(share, normals, validate_args=checked)


def _by_row(weights: Tensor) -> Tensor:
    return weights if weights.ndim == 1 else weights.mT


class FiniteMixture(Posterior):
    """Posterior over functions under finitely many models: a mixture, not a Gaussian process.

    No approximation of the command line makes one: it is for averages over models from Python.

    p(theta_j | y) is proportional to p(y | theta_j) p(theta_j).

    Args:
        posteriors: one per model.
        log_evidences (J,): log p(y | theta_j) in nats, all of the same data and all exact (or all
            by the same estimate: they are compared by their differences).
        log_priors (J,): log p(theta_j) up to a constant; None: equal.

    Attributes:
        weights (J,): p(theta_j | y).

    Raises:
        ConfigError: numbers of models, evidences and priors differ, or none is finite.

    Source: Evans thesis, section 2.3 (type-I inference over a finite set).
    """

    weights: Tensor

    def __init__(
        self,
        posteriors: Sequence[Posterior],
        log_evidences: Tensor,
        log_priors: Tensor | None = None,
    ) -> None:
        super().__init__()
        scores = log_evidences.double()
        if log_priors is not None:
            if log_priors.shape != scores.shape:
                raise ConfigError(f"{log_priors.shape[0]} priors for {scores.shape[0]} evidences")
            scores = scores + log_priors.double()
        if scores.shape != (len(posteriors),) or not len(posteriors):
            raise ConfigError(
                f"{len(posteriors)} posteriors and {tuple(scores.shape)} evidences; expected one "
                "evidence per posterior"
            )
        if not bool(torch.isfinite(scores.max())) or bool(torch.isnan(scores).any()):
            raise ConfigError("no model has a finite evidence times prior; check the evidences")
        self.posteriors = torch.nn.ModuleList(posteriors)
        self.register_buffer("weights", (scores - scores.logsumexp(0)).exp())

    @torch.no_grad()
    def components(self, x: Tensor) -> Marginals:
        """Mean and variance of every model's latent function, (J, n) each."""
        found = [p.predict(x) for p in self._models()]
        return Marginals(
            torch.stack([f.mean for f in found]), torch.stack([f.variance for f in found])
        )

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """First two moments of the mixture at x (n, d); its quantiles are not a Gaussian's.

        Cost: that of all its models.
        """
        return mixture_moments(self.components(x), self.weights)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (n, d) -> (num, n), each of one model drawn by its weight."""
        chosen = torch.multinomial(self.weights, num, replacement=True, generator=generator)
        drawn = [
            (rows, p.sample_paths(len(rows), generator=generator))
            for j, p in enumerate(self._models())
            if len(rows := (chosen == j).nonzero().squeeze(1))
        ]

        @torch.no_grad()
        def paths(x: Tensor) -> Tensor:
            out = x.new_empty(num, x.shape[0])
            for rows, functions in drawn:
                out[rows] = functions(x)
            return out

        return paths

    def _models(self) -> list[Posterior]:
        return [p for p in self.posteriors if isinstance(p, Posterior)]
