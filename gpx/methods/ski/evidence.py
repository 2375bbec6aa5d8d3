"""Log marginal likelihood of structured kernel interpolation, at a cost free of n."""

from __future__ import annotations

import math
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg.trace import FixedProbes
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.ski.system import SKISystem


@runtime_checkable
class GatheredRows(Protocol):
    """What the evidence asks of a model: few rows that stand for many, and their kernel matrix."""

    mean: Mean
    likelihood: Gaussian
    tolerance: float
    max_iterations: int

    def system(self, x: Tensor) -> SKISystem:
        """Their kernel matrix plus noise."""


class SKIEvidence(Objective[GatheredRows]):
    """log N(y; m(x), W K_UU W^T + noise I) by conjugate gradients and Lanczos quadrature.

    n data rows are n' rows that stand for them (``CellSums``), so that with A = W' K W'^T + noise I

        log p = -1/2 [r'^T A^{-1} r' + (r^T r - r'^T r') / noise + log |A|
                + (n - n') log noise + n log 2 pi].

    The preconditioner carries all of K_UU that is above the noise where the kernel is smooth, and
    the log-determinant then has next to no scatter over the probes; for rough kernels its standard
    error is reported (``facts``).

    Args:
        probes: of the log-determinant and its gradient; fixed for a run unless ``resample``.
        resample: new probes at every step, for first-order optimisers.

    Kind: an estimate of the exact log density of the interpolated model, with its standard error.
    Cost: per iteration of the solves O(m log m + n') for 1 + probes columns; free of n.
    Source: Wilson and Nickisch 2015; Gardner et al. 2018 (solves and quadrature together).
    """

    batching = "full"
    kind = "estimate"
    models = (GatheredRows,)
    made_for = "SKI"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def __init__(self, probes: int = 8, resample: bool = False) -> None:
        super().__init__()
        if probes < 2:
            raise ConfigError(f"probes={probes} must be at least 2, for a standard error")
        self.num_probes = probes
        self.probes = FixedProbes(resample)

    def evidence(
        self, model: GatheredRows, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence in nats with parts ``fit`` and ``complexity``.

        Raises:
            DidNotConverge: solves that need more than the model's ``max_iterations``.
        """
        system = model.system(x)
        target, rest = system.data.residuals((y - model.mean(x)).double())
        found = system.quad_logdet(
            target,
            probes=self.num_probes,
            generator=self.probes.generator(x.device, generator),
            tolerance=model.tolerance,
            max_iterations=model.max_iterations,
        )
        n, size = len(x), len(target)
        fit = -0.5 * (found.quad + rest / system.noise)
        complexity = -0.5 * (found.logdet + (n - size) * system.noise.log())
        value = fit + complexity - 0.5 * n * math.log(2.0 * math.pi)
        facts: dict[str, bool | int | float | str] = {
            "logdet_error": float(found.logdet_error),
            "rows": size,
            "low_rank": system.part.rank,
        }
        parts = {"fit": fit, "complexity": complexity}
        return Evidence(value, self.kind, parts, found.report, facts)
