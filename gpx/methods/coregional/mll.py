"""Log marginal likelihood of several outputs that are modelled jointly."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.dense_factor import kernel_matrix, row_blocks, warn_of_rounding
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityTerms
from gpx.inference.several_targets import OutputsGradient, require_no_infinity
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import (
    CholeskyReport,
    cholesky_in_place,
    inverse_from_factor,
    require_memory,
    upper_solve,
)
from gpx.linalg.cholesky import checks_deferred
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.coregional.covariance import Latent, observed_log_density, targets_solver
from gpx.methods.coregional.system import WhitenedOutputs

DEFERRED_CHECK_DEVICES = ("cuda",)
"""Devices on which the success of all factorisations is checked once, at the end."""


@runtime_checkable
class CoregionalModel(Protocol):
    """What ``CoregionalMLL`` needs of a model."""

    mean: Mean
    likelihood: GaussianOutputs

    @property
    def latents(self) -> Sequence[Latent]:
        """The latent processes, whose covariances add up."""


@torch.no_grad()
def complete_log_density(
    kernel: Kernel,
    x: Tensor,
    residual: Tensor,
    between: Tensor,
    noise: Tensor,
    *,
    gradient: bool,
) -> tuple[LogDensityTerms, OutputsGradient | None]:
    """log N(vec R; 0, B (x) K + S (x) I), K = k(x, x), S = diag(noise), and its gradient.

    With ``WhitenedOutputs`` it is a sum over p independent processes, r_i ~ N(0, v_i K + I). The
    eigenvalues of v_i K + I are at least one, so no jitter is tried: factorisations fail only if
    rounding exceeds one, at v_i n of about 10^7 in float32 and 10^15 in float64. The derivative
    with respect to C = B (x) K + S (x) I is (a a^T - C^{-1}) / 2 with a = C^{-1} r, whose blocks
    are sums over the p processes.

    Args:
        x (n, d), residual (n, p), between (p, p), noise (p,).
        gradient: whether to compute the gradient (two thirds of the work).

    Cost: p n^3/3 multiply-adds for the value, p n^3 with the gradient; two n x n arrays, with the
    gradient three. One device synchronisation for all p factorisations.
    Raises: ConfigError when the arrays do not fit; NotPositiveDefinite.
    """
    n, p = residual.shape
    arrays = 3 if gradient else 2
    require_memory(
        arrays * n * n * x.element_size(),
        x.device,
        f"exact regression of {p} outputs on {n} training points",
        "use model=SVGP() with likelihood=MixedOutputs(), fewer points, or dtype=float32",
    )
    outputs = WhitenedOutputs.of(between, noise)
    gram, buffer = kernel_matrix(kernel, x.detach()), x.new_empty(n, n)
    weight = torch.zeros_like(gram) if gradient else None
    rotated = residual.detach() @ outputs.unmix
    solved, traces, gram_traces = torch.empty_like(rotated), [], []
    complexity = x.new_zeros((), dtype=torch.float64)

    def factor(i: int) -> Tensor:
        def fill(matrix: Tensor) -> None:
            torch.mul(gram, outputs.variances[i], out=matrix)
            matrix.diagonal().add_(1.0)

        name = f"the kernel matrix of independent output {i} plus unit noise"
        return cholesky_in_place(fill, buffer, ladder=(0.0,), name=name)[0]

    deferred: AbstractContextManager[list[Tensor]] = nullcontext([])
    if x.device.type in DEFERRED_CHECK_DEVICES:
        deferred = checks_deferred()
    with deferred as failed:
        for i, variance in enumerate(outputs.variances):
            upper = factor(i)
            complexity -= upper.diagonal().double().log().sum()
            solved[:, i] = upper_solve(upper, rotated[:, i : i + 1]).squeeze(1)
            if weight is not None:
                inverse = inverse_from_factor(upper)
                traces.append(inverse.diagonal().sum())
                gram_traces.append(torch.dot(gram.view(-1), inverse.view(-1)))
                weight.sub_(inverse.mul_(0.5 * variance))
    for (i,) in torch.stack(failed).nonzero().tolist() if failed else ():
        factor(i)  # raises the error of this one
    fit = -0.5 * (rotated * solved).double().sum()
    complexity -= 0.5 * n * noise.double().log().sum()
    constant = complexity.new_tensor(-0.5 * n * p * LOG_TWO_PI)
    terms = LogDensityTerms(fit, complexity, constant)
    if weight is None:
        return terms, None
    weight.addmm_(solved * (0.5 * outputs.variances), solved.mT)
    kernel_gradient = KernelGradient(kernel, x)
    kernel_gradient.add_symmetric(
        row_blocks(n, n, x), lambda rows, columns: 2.0 * weight[rows, columns]
    )
    unmix = outputs.unmix
    inner = solved.mT @ gram @ solved - torch.stack(gram_traces).diag()
    alpha = solved @ unmix.mT
    of_noise = alpha.square().sum(0) - unmix.square() @ torch.stack(traces)
    of_between = 0.5 * unmix @ inner @ unmix.mT
    return terms, OutputsGradient(-alpha, 0.5 * of_noise, [of_between], [kernel_gradient])


@torch.no_grad()
def count_missing_and_rounding(
    latents: Sequence[Latent], x: Tensor, y: Tensor, noise: Tensor
) -> tuple[int, float]:
    """Number of missing targets, and n v eps for ``FLOAT32_LIMIT``.

    Both in one transfer from the device. The second is 0 in float64, without rows, and with several
    latent processes, of which the factorisation itself warns.

    Args:
        latents, x (n, d), noise (p,): of the model.
        y (n, p): NaN where a target is missing.
    """
    parts = [y.isnan().sum().reshape(1)]
    if len(x) and x.dtype == torch.float32 and len(latents) == 1:
        kernel, between = latents[0]
        parts += [kernel.diagonal(x[:1]), noise, between.matrix().reshape(-1)]
    missing, *given = (
        torch.cat([part.double() for part in parts]).cpu().split([part.numel() for part in parts])
    )
    if not given:
        return int(missing), 0.0
    prior, noise, matrix = given  # small, so the host does the eigendecomposition
    ratios = WhitenedOutputs.of(matrix.view(len(noise), len(noise)), noise).variances
    rounding = ratios.max() * prior.max() * len(x) * torch.finfo(x.dtype).eps
    return int(missing), float(rounding)


class CoregionalMLL(Objective[CoregionalModel]):
    """Log marginal likelihood of a ``CoregionalGP`` for the targets that are not missing.

    Exactness: exact; warns if float32 is too inaccurate (``FLOAT32_LIMIT``). Cost:
    ``complete_log_density``; with missing targets, known noise or several latent processes,
    ``observed_log_density``.
    """

    batching = "full"
    kind = "exact"
    takes_missing_targets = True
    takes_row_noise = True
    models = (CoregionalModel,)
    made_for = "CoregionalGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (GaussianOutputs,)

    def evidence(
        self,
        model: CoregionalModel,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Log marginal likelihood in nats, in float64; parts are those of ``LogDensityTerms``.

        Args:
            y (n, p): NaN where a target is missing.

        Raises:
            DataError: infinite targets, or an output without any target.
        """
        residual, noise = y - model.mean(x)[:, None], model.likelihood.noise_variance.to(y)
        known: RowNoise | None = getattr(model, "row_noise", None)
        require_no_infinity(residual.detach())
        latents, gradient = model.latents, torch.is_grad_enabled()
        kernels = [each.kernel for each in latents]
        betweens = [each.between.matrix().to(y) for each in latents]
        missing, rounding = count_missing_and_rounding(latents, x, y, noise)
        facts: Facts = {"missing_targets": missing}
        report: CholeskyReport | None = None
        if missing or len(latents) > 1 or known is not None:
            noise = noise if known is None else known.like(y).variances(noise)
            terms, found, report = observed_log_density(
                kernels, x, residual, betweens, noise, gradient=gradient
            )
            facts |= {"solver": targets_solver(missing), "jitter": report.relative}
        else:
            warn_of_rounding(rounding)  # the factorisation of the observed targets warns itself
            terms, found = complete_log_density(
                kernels[0], x, residual, betweens[0], noise, gradient=gradient
            )
            facts |= {"solver": "cholesky of each output"}
        value = terms.total()
        if found is not None:
            value = found.attached(value, residual, noise, betweens)
        return Evidence(value, self.kind, terms._asdict(), report, facts)
