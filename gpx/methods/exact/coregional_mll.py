"""Log marginal likelihood of several outputs that are regressed on together."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityTerms
from gpx.kernels.base import Kernel
from gpx.kernels.over_axes import Coregionalisation
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.linalg import (
    cholesky_in_place,
    inverse_from_factor,
    require_memory,
    upper_solve,
    with_gradient,
)
from gpx.linalg.cholesky import checks_deferred
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.exact.coregional_posterior import require_no_infinity
from gpx.methods.exact.coregional_system import Observed, OutputsKernel, WhitenedOutputs
from gpx.methods.exact.exact_mll import log_marginal_likelihood
from gpx.methods.exact.model import kernel_matrix, row_blocks

ROUNDING = 0.5
"""n v eps from which gradients in float32 are warned of, where v is the largest ratio of a
function's variance to its noise variance and eps = 1.2e-7. With an RBF kernel, two inputs and noise
1e-4 the gradient is off by 0.4 % of its norm on 200 rows and by 1.6 % on 600, and small entries of
it by 100 %; with a Matern-3/2 kernel by a twentieth of that."""
WAITS_COST = ("cuda",)
"""Devices that are asked once whether all factorisations worked, not at each."""


@runtime_checkable
class CoregionalModel(Protocol):
    """What the objective asks of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: GaussianOutputs
    between: Coregionalisation


class OutputsGradient(NamedTuple):
    """Gradient of the log density of complete targets.

    Attributes:
        residual (n, p), between (p, p), noise (p,): with respect to y - m(x), B, noise variances.
        kernel: with respect to the kernel's parameters.
    """

    residual: Tensor
    between: Tensor
    noise: Tensor
    kernel: KernelGradient

    def attached(self, value: Tensor, residual: Tensor, between: Tensor, noise: Tensor) -> Tensor:
        """``value`` () with this gradient."""
        return with_gradient(
            value,
            [residual, between, noise, *self.kernel.inputs()],
            [self.residual, self.between, self.noise, *self.kernel.gradients()],
        )


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

    With ``WhitenedOutputs`` it is a sum over p independent processes, r_i ~ N(0, v_i K + I). No
    eigenvalue of v_i K + I is below one, and jitter is not tried: the factor exists unless rounding
    exceeds one, where v_i n is some 10^7 in float32 and 10^15 in float64. The derivative
    with respect to C = B (x) K + S (x) I is (a a^T - C^{-1}) / 2 with a = C^{-1} r, whose blocks
    are sums over the p processes.

    Args:
        x (n, d), residual (n, p), between (p, p), noise (p,).
        gradient: whether to compute the gradient (two thirds of the work).

    Cost: p n^3/3 multiply-adds for the value, p n^3 with the gradient; two n x n arrays, with the
    gradient three.
    Waits once for the device on all p factorisations.
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
    if x.device.type in WAITS_COST:
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
        factor(i)  # says what is wrong with this one
    fit = -0.5 * (rotated * solved).double().sum()
    complexity -= 0.5 * n * noise.double().log().sum()
    constant = complexity.new_tensor(-0.5 * n * p * LOG_TWO_PI)
    terms = LogDensityTerms(fit, complexity, constant)
    if weight is None:
        return terms, None
    weight.addmm_(solved * (0.5 * outputs.variances), solved.mT)
    gathered = KernelGradient(kernel, x)
    gathered.add_symmetric(row_blocks(n, n, x), lambda rows, past: 2.0 * weight[rows, past])
    unmix = outputs.unmix
    inner = solved.mT @ gram @ solved - torch.stack(gram_traces).diag()
    alpha = solved @ unmix.mT
    of_noise = alpha.square().sum(0) - unmix.square() @ torch.stack(traces)
    return terms, OutputsGradient(-alpha, 0.5 * unmix @ inner @ unmix.mT, 0.5 * of_noise, gathered)


@torch.no_grad()
def missing_and_rounding(
    kernel: Kernel, x: Tensor, y: Tensor, between: Tensor, noise: Tensor
) -> tuple[int, float]:
    """How many targets are missing, and what is compared with ``ROUNDING``; one wait for both.

    Args:
        kernel, x (n, d), between (p, p), noise (p,): as for ``complete_log_density``.
        y (n, p): NaN where a target is missing.

    Returns:
        their number, and n v eps of float32; zero in float64.
    """
    parts = [y.isnan().sum().reshape(1)]
    if x.dtype == torch.float32:
        parts += [kernel.diagonal(x[:1]), noise, between.reshape(-1)]
    missing, *given = (
        torch.cat([part.double() for part in parts]).cpu().split([part.numel() for part in parts])
    )
    if not given:
        return int(missing), 0.0
    prior, spread, matrix = given  # a few numbers, which the host eigendecomposes
    ratios = WhitenedOutputs.of(matrix.view(between.shape), spread).variances
    share = ratios.max() * prior.max() * len(x) * torch.finfo(x.dtype).eps
    return int(missing), float(share)


class CoregionalMLL(Objective[CoregionalModel]):
    """Log marginal likelihood of a ``CoregionalGP``: of the targets that are there.

    Exactness: exact; in float32 up to rounding that is warned of (``ROUNDING``). Cost:
    ``complete_log_density``; with missing targets ``ExactMLL``'s on the observed ones.
    """

    batching = "full"
    kind = "exact"
    takes_missing_targets = True
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
            DataError: infinite targets, or none at all.
        """
        self.check(model)
        residual, noise = y - model.mean(x)[:, None], model.likelihood.noise_variance.to(y)
        require_no_infinity(residual.detach())
        between = model.between.matrix().to(y)
        gradient = torch.is_grad_enabled()
        missing, rounding = missing_and_rounding(model.kernel, x, y, between, noise)
        if rounding > ROUNDING:
            warnings.warn(
                "float32 has too few digits for noise this far below the variance of the "
                "functions: gradients of the evidence may be off by some percent, of small ones "
                "by more; take dtype=float64",
                stacklevel=2,
            )
        facts: Facts = {"missing_targets": missing}
        if missing:
            seen = Observed.of(x, y)
            own, spread = residual[seen.rows, seen.outputs], noise[seen.outputs]
            pairs = OutputsKernel(model.kernel, model.between)
            terms, found, report = log_marginal_likelihood(
                pairs, seen.inputs, own, spread, gradient=gradient
            )
            value = terms.total()
            if found is not None:
                value = found.attached(value, own, spread)
            facts |= {"solver": "cholesky of observed targets", "jitter": report.jitter}
            return Evidence(value, self.kind, terms._asdict(), report, facts)
        terms, slope = complete_log_density(
            model.kernel, x, residual, between, noise, gradient=gradient
        )
        value = terms.total()
        if slope is not None:
            value = slope.attached(value, residual, between, noise)
        facts |= {"solver": "cholesky of each output"}
        return Evidence(value, self.kind, terms._asdict(), None, facts)
