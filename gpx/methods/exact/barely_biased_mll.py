"""Log marginal likelihood whose expected error is below a bound in nats set by the user."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from gpx.inference.exact_solver import require_finite
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.methods.base.objective import Evidence, Facts
from gpx.methods.exact.barely_biased import (
    Estimate,
    barely_biased_gradient,
    barely_biased_log_marginal_likelihood,
)
from gpx.methods.exact.iterative_mll import ProbedMLL, ProbeKind
from gpx.methods.exact.model import ExactModel
from gpx.tensor_checks import check_at_least, check_one_of, check_positive


class BarelyBiasedMLL(ProbedMLL):
    """Log marginal likelihood of an ``ExactGP`` whose expectation is within ``bias`` nats.

    Args:
        bias: epsilon, nats; 1 to 100 in the publication.
        estimate: "below", as published, or "middle" of the bracket, which needs fewer steps for the
            same bias but may exceed the evidence in expectation.
        probes, kind_of_probes, resample: see ``ProbedMLL``; one probe suffices for training, two
            or more give a standard error.
        max_steps: most Lanczos steps; if they do not suffice, ``report.converged`` is False.

    Exactness: an estimate whose expectation lies in [evidence - bias, evidence] ("below"), or
    [evidence - bias, evidence + bias] ("middle"), while ``report.converged``. Cost: see
    ``barely_biased_log_marginal_likelihood``.
    """

    def __init__(
        self,
        bias: float = 1.0,
        probes: int = 4,
        kind_of_probes: ProbeKind = "rademacher",
        resample: bool = True,
        max_steps: int = 200,
        estimate: Estimate = "below",
    ) -> None:
        super().__init__(probes, kind_of_probes, resample)
        check_positive(finite=True, bias=bias)
        check_at_least(1, max_steps=max_steps)
        check_one_of(get_args(Estimate), estimate=estimate)
        self.bias, self.max_steps = bias, max_steps
        self.estimate: Estimate = estimate

    def evidence(
        self, model: ExactModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Estimate in nats, in float64; parts are those of ``IterativeTerms``."""
        residual = y - model.mean(x)
        require_finite(residual)
        noise = model.likelihood.noise_variance
        with torch.no_grad():
            system = PreconditionedKernel(
                model.kernel, x, noise, model.iterative, exact_products=True
            )
            w = self.draw_probes(x, generator)
            found = barely_biased_log_marginal_likelihood(
                system,
                residual,
                w,
                bias=self.bias,
                max_steps=self.max_steps,
                estimate=self.estimate,
            )
        value = found.terms.total()
        if torch.is_grad_enabled():
            gradient = barely_biased_gradient(system, model.kernel, x, found)
            value = gradient.attached(value, residual, noise)
        facts: Facts = {
            "solver": "barely_biased",
            "products": system.backend,
            "preconditioner_rank": system.factor.shape[0],
            "solver_iterations": found.report.iterations,
            "solver_converged": found.report.converged,
            "columns_multiplied": found.process.multiplied + 1,
            "bias_bound": found.bias_bound,
        }
        return Evidence(value, self.kind, found.terms._asdict(), found.report, facts)
