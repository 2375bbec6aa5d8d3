"""Two classes under discrete weights, by a bound on the logistic likelihood in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.bases import Basis
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.linalg import with_gradient
from gpx.means.base import Mean
from gpx.methods.direct.base import DiscreteWeights
from gpx.methods.direct.grids import WeightGrid, effective_log_prior
from gpx.methods.direct.mean_field import negative_divergence

LARGEST_START = 10.0
"""Largest expected loss per row, in nats, from which training starts where there is a choice."""

NARROWING = (0.0, *(10.0**power for power in range(-1, 5)))
"""Precisions of the Gaussians around zero by which the start of q is narrowed, in this order."""

START_ROWS = 1000
"""Number of rows at which the loss of the start is computed."""


class LogisticFit(NamedTuple):
    """A lower bound on E log p(y | w), and its derivative.

    Attributes:
        value (): nats, summed over the rows.
        by_logits (m, k): derivative by logits whose softmax the probabilities are.
    """

    value: Tensor
    by_logits: Tensor


@torch.no_grad()
def logistic_fit(features: Tensor, offset: Tensor, log_q: Tensor, values: Tensor) -> LogisticFit:
    """-sum_i E exp(-z_i), z_i = offset_i + features_i^T w, under independent discrete weights.

    log(1 + x) <= x gives -log(1 + exp(-z)) >= -exp(-z), whose expectation factorises over the
    weights. With features_i = t_i phi(x_i) and offset_i = t_i m(x_i) for labels t_i it bounds the
    expected logistic log likelihood. The bound is tight where f is confident and right; where f is
    confident and wrong it charges exp(|z|) instead of |z|.

    Args:
        features (n, m), offset (n,): multiplied by the labels -1 and 1.
        log_q (m, k): log probabilities of the weights.
        values (k,): of every weight.

    Cost: O(n m k), in blocks of rows that fit into the memory budget.
    Source: Evans thesis, theorem 7.2, whose linear terms cancel.
    """
    q = log_q.exp()
    value, slope = log_q.new_zeros(()), torch.zeros_like(log_q)
    for rows in row_chunks(len(features), 3 * 8 * log_q.numel(), DEFAULT_BUDGET):
        exponents = log_q - features[rows].double().unsqueeze(-1) * values
        log_factors = exponents.logsumexp(-1, keepdim=True)  # log E exp(-a w) of each weight
        losses = (log_factors.sum((1, 2)) - offset[rows].double()).exp()
        value -= losses.sum()
        slope -= torch.einsum("n,nmk->mk", losses, exponents.sub_(log_factors).exp_())
        slope += losses.sum() * q
    return LogisticFit(value, slope)


class DirectLogistic(DiscreteWeights):
    """Two classes, P(y = 1) = sigmoid(f), with f on basis functions with discrete weights.

    Under q the weights are independent. Only the rows of a batch are sampled; the posterior has the
    same 4-bit draws as that of ``Direct``. Hyperparameters stay as configured.

    Args:
        kernel, mean, basis, num_basis, weights: as for ``DiscreteWeights``.
        likelihood: ``Bernoulli`` with the logit link.

    Attributes:
        logits (m, k): their softmax gives the probabilities of q; see ``initialise``.

    Raises:
        ConfigError: a link other than logit, or as ``DiscreteWeights``.

    Exactness: see ``DirectLogisticBound``.
    Cost: O(n m k) for the bound on n rows and its gradient.
    Source: Evans thesis, section 7.3.3.
    """

    data_sized = (*DiscreteWeights.data_sized, "logits")
    likelihood: Bernoulli

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Bernoulli,
        basis: Basis | Callable[..., Basis],
        num_basis: int = 200,
        weights: WeightGrid | None = None,
    ) -> None:
        super().__init__(
            kernel=kernel,
            mean=mean,
            likelihood=likelihood,
            basis=basis,
            num_basis=num_basis,
            weights=weights,
        )
        if getattr(likelihood, "link", "logit") != "logit":
            raise ConfigError(
                f"DirectLogistic bounds the logistic likelihood, and the link is {likelihood.link};"
                " use likelihood=Bernoulli(link=logit)"
            )
        self.logits = nn.Parameter(torch.zeros(0, len(self.weights), dtype=torch.float64))

    def bound_terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Terms of the bound for rows x (b, d) with labels y (b,), -1 and 1, in nats.

        Differentiable by the logits: the bound on the fit, and weights, which is -KL(q || prior).
        """
        log_q = self.logits.log_softmax(-1)
        with torch.no_grad():
            signed = y.unsqueeze(1) * self.basis(x) * self.scale.to(x.dtype)
            fit = logistic_fit(signed, y * self.mean(x), log_q, self.values())
        prior, constant = effective_log_prior(log_q.exp(), self.weights)
        return {
            "fit": with_gradient(fit.value, [self.logits], [fit.by_logits]),
            "weights": negative_divergence(log_q, prior).sum() + constant,
        }

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the basis functions and start q at the prior, narrowed where its loss is large.

        The bound charges exp(|f|) for a wrong f. Under a wide prior gradients of that size leave
        no step by which other weights improve.

        Raises:
            ConfigError: labels other than -1 and 1, or a bound that overflows.
        """
        if not bool((y.abs() == 1.0).all()):
            some = ", ".join(f"{v:g}" for v in y.unique()[:4].tolist())
            raise ConfigError(f"DirectLogistic takes labels -1 and 1 of two classes, got {some}")
        one = y.new_ones(())  # stands in for a noise variance; labels have unit size
        self.note = self.basis.start(x, y - self.mean(x), one, generator=generator)
        self.remember_columns(x, x.shape[1])
        self.set_prior_scale()
        losses: list[float] = []
        for precision in NARROWING:
            losses.append(self._loss_of_start(x[:START_ROWS], y[:START_ROWS], precision))
            if losses[-1] <= LARGEST_START:
                break
        smallest = min(losses)
        if not math.isfinite(smallest):
            raise ConfigError(
                "the bound on the logistic likelihood charges exp(|f|) for a wrong f, which "
                "overflows: give the kernel a smaller outputscale"
            )
        place = losses.index(smallest)
        self._loss_of_start(x[:1], y[:1], NARROWING[place])
        if place:
            self.note += (
                f"; q starts narrower than the prior, whose loss is {losses[0]:.1g} nats a row"
            )

    def _loss_of_start(self, x: Tensor, y: Tensor, precision: float) -> float:
        """Set q to the prior times a Gaussian around zero; the expected loss per row, in nats."""
        start = self.log_prior() - 0.5 * precision * self.values().square()
        self.logits.data = start.expand(len(self.scale), -1).clone()
        return -float(self.bound_terms(x, y)["fit"]) / len(x)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q."""
        return {"variational": [self.logits]}
