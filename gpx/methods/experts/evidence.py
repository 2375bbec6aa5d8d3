"""Evidence of independent experts: the sum of their log marginal likelihoods, in batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.exact_solver import require_finite
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import cholesky_in_place, inverse_from_factor, upper_solve, with_gradient
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.rows import ExpertBatch, ExpertRows

CHOLESKY_HINT = "fewer rows per expert"
"""Advice in the error message if the covariance matrix of an expert cannot be factorised."""


class BatchTerms(NamedTuple):
    """Terms of the log marginal likelihoods of a batch of experts, in nats, and their gradient.

    Attributes:
        fit (c,): -r^T K^{-1} r / 2.
        complexity (c,): -log det K / 2.
        alpha (c, m): K^{-1} r, the negative gradient with respect to r; zero for padding.
        weight (c, m, m): gradient with respect to K, zero for padding; None if not requested.
    """

    fit: Tensor
    complexity: Tensor
    alpha: Tensor
    weight: Tensor | None


@torch.no_grad()
def batch_terms(
    batch: ExpertBatch, matrices: Tensor, noise: Tensor, residual: Tensor, *, gradient: bool
) -> BatchTerms:
    """log N(r_k; 0, K_k + noise_k I) of every expert, by one batched factorisation in place.

    Args:
        batch: the experts; says which rows are padding.
        matrices (c, m, m), noise (c,), residual (c, m): covariances, noise variances, y - m(x).
        gradient: whether to compute ``weight``, (alpha alpha^T - K^{-1}) / 2.

    Raises:
        NotPositiveDefinite: a matrix has no Cholesky factor; no jitter is added.
    """
    residual = batch.zero_padding(residual)
    upper, _ = cholesky_in_place(
        lambda buffer: batch.covariance(matrices, noise, buffer),
        torch.empty_like(matrices),
        name=f"the kernel matrix of an expert of {matrices.shape[-1]} rows",
        ladder=(0.0,),
        hint=CHOLESKY_HINT,
    )
    alpha = upper_solve(upper, residual.unsqueeze(2)).squeeze(2)
    fit = -0.5 * (residual * alpha).sum(1)
    complexity = -upper.diagonal(dim1=1, dim2=2).log().sum(1)
    if not gradient:
        return BatchTerms(fit, complexity, alpha, None)
    inverse = inverse_from_factor(upper)
    weight = inverse.baddbmm_(alpha.unsqueeze(2), alpha.unsqueeze(1), beta=-0.5, alpha=0.5)
    if batch.mask is not None:
        weight *= batch.mask.unsqueeze(1) & batch.mask.unsqueeze(2)
    return BatchTerms(fit, complexity, alpha, weight)


def experts_log_likelihood(
    parts: ExpertParts, batches: Iterable[ExpertBatch], x: Tensor, y: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum_k log p(y_k | x_k): the log density of y under a block-diagonal kernel matrix.

    Args:
        parts, batches: the experts and their training rows.
        x (n, d), y (n,): all training data.

    Returns:
        the value () in float64, differentiable in all hyperparameters, and its terms, in nats.

    Raises:
        NotPositiveDefinite: the covariance matrix of an expert has no Cholesky factor.

    Cost: m^3 / 3 multiply-adds for each expert of m rows, m^3 with the gradient.
    """
    with_gradients = torch.is_grad_enabled()
    parameters = parts.kernel_parameters() if with_gradients else []
    kernel_gradients = [torch.zeros_like(p) for p in parameters]
    terms = {name: y.new_zeros((), dtype=torch.float64) for name in ("fit", "complexity")}
    inputs_of_value: list[Tensor] = []  # residuals and noise variances of each batch
    gradients: list[Tensor] = []
    count = 0
    for batch in batches:
        count += batch.num_rows
        inputs = x[batch.rows]
        noise = parts.noise(batch.experts)
        residual = y[batch.rows] - parts.means(batch.experts, inputs)
        matrices = parts.covariances(batch.experts, inputs)
        found = batch_terms(
            batch, matrices.detach(), noise.detach(), residual.detach(), gradient=with_gradients
        )
        terms["fit"] += found.fit.double().sum()
        terms["complexity"] += found.complexity.double().sum()
        if found.weight is None:
            continue
        inputs_of_value += [residual, noise]
        gradients += [-found.alpha, found.weight.diagonal(dim1=1, dim2=2).sum(1)]
        if matrices.requires_grad:
            of_batch = torch.autograd.grad(matrices, parameters, found.weight, allow_unused=True)
            for total, part in zip(kernel_gradients, of_batch, strict=True):
                total += 0.0 if part is None else part
    terms["constant"] = terms["fit"].new_full((), -0.5 * count * LOG_TWO_PI)
    value = terms["fit"] + terms["complexity"] + terms["constant"]
    if with_gradients:
        gradients += kernel_gradients
        value = with_gradient(value, [*inputs_of_value, *parameters], gradients)
    return value, terms


@runtime_checkable
class HasExperts(Protocol):
    """What ``ExpertsMLL`` requires of a model: its experts and their rows."""

    likelihood: Gaussian

    @property
    def parts(self) -> ExpertParts:
        """Kernel, mean function and noise of every expert."""

    @property
    def batch_bytes(self) -> int:
        """Bytes that a batch of experts may take."""

    def expert_rows(self, x: Tensor) -> ExpertRows:
        """Training rows x (n, d) of every expert."""


class ExpertsMLL(Objective[HasExperts]):
    """Sum of the experts' log marginal likelihoods, each of its own rows.

    Kind: an estimate of the evidence of the Gaussian process on all data, not a bound on it. Exact
    for the model with independent experts (a block-diagonal kernel matrix).
    Cost and errors: ``experts_log_likelihood``.
    Source: Deisenroth and Ng 2015, section 3.1.
    """

    gradient_of_inputs = False
    batching = "full"
    kind = "estimate"
    models = (HasExperts,)
    made_for = "Committee"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self, model: HasExperts, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence in nats, in float64; parts ``fit``, ``complexity`` and ``constant``."""
        require_finite(y)
        rows = model.expert_rows(x)
        batches = rows.batches(x.element_size(), model.batch_bytes)
        value, terms = experts_log_likelihood(model.parts, batches, x, y)
        facts: Facts = {
            "evidence_of": "independent experts",
            "num_experts": len(rows),
            "largest_expert": int(rows.sizes.max()),
        }
        return Evidence(value, self.kind, terms, facts=facts)
