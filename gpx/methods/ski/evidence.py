"""Log marginal likelihood of structured kernel interpolation; the cost does not depend on n."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg.trace import FixedProbes
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.grid_spectrum import (
    Circulant,
    circulant_eigenvalues,
    grid_eigenvalues,
    scaled_logdet,
)
from gpx.methods.ski.quad_logdet import quad_logdet, quadratic_form
from gpx.methods.ski.system import NEGLIGIBLE_TRACE, SKISystem
from gpx.tensor_checks import check_at_least, check_one_of
from gpx.warned_line import users_line

EVIDENCE_ERROR_TARGET = 1.0
"""Standard error of the evidence in nats that is small enough for any number of rows."""

GRADIENT_ERROR_TARGET = 0.1
"""Standard error of the gradient by the hyperparameters in nats that is always small enough."""

MIN_PROBES = 8
"""Fewest probes from which a standard error is trusted: with two it is often small by chance."""

PROBES_IF_COMPLETE = 2
"""Probes if the low-rank part is complete; the trace that they estimate is then at most a nat."""

Logdet = Literal["lanczos", "chebyshev", "eigenvalues", "circulant", "cholesky"]


@runtime_checkable
class GatheredRows(Protocol):
    """What ``SKIEvidence`` requires of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    tolerance: float
    max_iterations: int

    @property
    def grid(self) -> InterpolationGrid:
        """The interpolation grid."""

    def system(self, x: Tensor) -> SKISystem:
        """The kernel matrix plus noise of the rows that replace x."""


class SKIEvidence(Objective[GatheredRows]):
    """log N(y; m(x), W K_UU W^T + noise I) by conjugate gradients and an estimate of log |A|.

    The n data rows are replaced by n' rows (``CellSums``), so that with A = W' K W'^T + noise I

        log p = -1/2 [r'^T A^{-1} r' + (r^T r - r'^T r') / noise + log |A|
                + (n - n') log noise + n log 2 pi].

    ``logdet`` is one of

    - "lanczos": stochastic Lanczos quadrature with random probes. For smooth kernels the
      preconditioner is nearly exact: two probes suffice if its trace error is at most a hundredth
      of a nat (on several axes 5e-5 nats per row, if that is more, but at most one nat). For rough
      kernels a control variate about halves the standard error, and probes are added until the
      standard errors of value and gradient reach ``accuracy``; a warning says if ``most_probes``
      are not enough. Errors are reported in ``facts``. The gradient is unbiased.
    - "chebyshev": the value by polynomials of a degree, up to 2,000, that grows with the square
      root of the condition number; their error is added to that of the probes. Probes are added,
      with the same warning, as for rough kernels: without a preconditioner many are needed. The
      gradient is that of "lanczos". Much slower; for comparison.
    - "eigenvalues": scaled eigenvalues of K_UU, O(sum m_l^3); not a bound, and ignores where the
      data lie. The error is below 1 % in one dimension with a resolved kernel and uniform inputs,
      and 1 to 10 % in two and three (Hultin 2017, section 3.2.2, with its missing term).
    - "circulant": the same with the eigenvalues of a circulant matrix, O(m log m); the error grows
      by 0.2 % ("whittle"), for "chan" and "tyrtyshnikov" much more.
    - "cholesky": exact, of the dense matrix, O(n'^3); for reference.

    With the last three, ``facts`` has bounds on the exact log |A| ("logdet_low", "logdet_high") for
    kernels that factor and for a single input.

    Args:
        probes: number of probes drawn at a time, if the preconditioner is not complete; their
            standard error is considered from 8 probes on. They are fixed for a run unless
            ``resample``.
        accuracy: target standard error of the evidence in nats per data row (one nat in all is
            always enough), and of the gradient of the log-determinant by the optimised
            hyperparameters, relative in Euclidean norms (a tenth of a nat is always enough; not
            applied with ``resample``). The size of a gradient is estimated too, so that a stated
            error near 100 % means that the gradient is unknown.
        most_probes: largest number of probes; a warning states the error if it is reached.
        resample: draw new probes at every step, for first-order optimisers.
        logdet: see above.
        circulant: "whittle", "strang", "chan" or "tyrtyshnikov".
        wraps: of "whittle"; None: until the kernel has decayed.
        pad: include (n - m) log noise for the eigenvalues that the grid cannot have; False only to
            reproduce published figures, which lack this term.

    Kind: an estimate of the exact log density of the interpolated model.
    Cost: O(m log m + n') per step of the solves for 1 + probes columns, independent of n.
    Source: Wilson and Nickisch 2015; Gardner et al. 2018 (solves and quadrature together); Hultin
    2017, sections 3.2.2, 3.4 and 5.3.
    """

    batching = "full"
    kind = "estimate"
    models = (GatheredRows,)
    made_for = "SKI"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)
    drawn: Tensor
    gradient_error: Tensor

    def __init__(
        self,
        probes: int = 8,
        resample: bool = False,
        logdet: Logdet = "lanczos",
        circulant: Circulant = "whittle",
        wraps: int | None = None,
        pad: bool = True,
        accuracy: float = 1e-3,
        most_probes: int = 64,
    ) -> None:
        super().__init__()
        check_at_least(2, probes=probes)  # for a standard error
        check_one_of(get_args(Logdet), logdet=logdet)
        check_one_of(get_args(Circulant), circulant=circulant)
        check_at_least(1, wraps=wraps)
        self.num_probes, self.logdet, self.circulant = probes, logdet, circulant
        self.wraps, self.pad = wraps, pad
        if not accuracy > 0.0 or most_probes < probes:
            raise ConfigError(
                f"accuracy={accuracy} must be above 0, and most_probes={most_probes} at least "
                f"probes={probes}"
            )
        self.accuracy, self.most_probes = accuracy, most_probes
        self.probes = FixedProbes(resample)
        self.register_buffer("drawn", torch.tensor(probes))
        self.register_buffer("gradient_error", torch.tensor(math.inf, dtype=torch.float64))
        self._warned_of: set[str] = set()

    def prepare(
        self, model: GatheredRows, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Fix the probes of the run, and reset what an earlier run has recorded."""
        self.probes.prepare(generator)
        self.drawn.fill_(self.num_probes)
        self.gradient_error.fill_(math.inf)
        self._warned_of.clear()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load states of versions with a fixed number of probes, which do not store these."""
        state_dict.setdefault(prefix + "drawn", torch.tensor(self.num_probes))
        state_dict.setdefault(prefix + "gradient_error", self.gradient_error)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def evidence(
        self, model: GatheredRows, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence in nats with parts ``fit`` and ``complexity``.

        Raises:
            DidNotConverge: a solve needs more than the model's ``max_iterations`` steps, or a
                standard error is not finite.
            ConfigError: ``logdet`` is not possible for this grid or its size.
            NotPositiveDefinite: a hyperparameter that is not finite.
        """
        _require_finite(model)
        system = model.system(x)
        target, rest = system.data.residuals_from(y, model.mean(x))
        n, size = len(x), len(target)
        facts: dict[str, bool | int | float | str] = {"rows": size, "low_rank": system.part.rank}
        if self.logdet in ("lanczos", "chebyshev"):
            draws = self.probes.generator(x.device, generator)
            few = self.logdet == "lanczos" and system.part.complete
            found = quad_logdet(
                system,
                target,
                probes=PROBES_IF_COMPLETE if few else self.num_probes,
                least_probes=0 if self.probes.resample or few else self._least_probes(),
                generator=draws,
                chebyshev=self.logdet == "chebyshev",
                tolerance=model.tolerance,
                max_iterations=model.max_iterations,
                accuracy=2.0 * self._target_error(n),
                most_probes=self.most_probes,
                hyperparameters=() if few else _hyperparameters(model),
                gradient_error_target=self._target_gradient_error,
            )
            quad, logdet, report = found.quad, found.logdet, found.report
            logdet = logdet + (n - size) * system.noise.log()
            error = float(found.logdet_error)
            if few:  # the scatter of two probes says little; use the bound from the trace error
                error = max(error, NEGLIGIBLE_TRACE, system.expected_error(found.probes))
            facts["logdet_error"] = error
            facts["probes"] = found.probes
            if not few:
                self.drawn.fill_(found.probes)
                if found.slopes is not None:
                    self._record_gradient_error(*found.slopes, found.probes)
                if math.isfinite(float(self.gradient_error)):
                    facts["gradient_error"] = float(self.gradient_error)
            self._warn_of_error(0.5 * error, n, found.probes)
        else:
            quad, report = quadratic_form(
                system, target, tolerance=model.tolerance, max_iterations=model.max_iterations
            )
            logdet = self._deterministic(system, model, n)
            bracket = system.logdet_bracket()
            if bracket is not None:
                shift = float((n - size) * system.noise.detach().log())
                facts["logdet_low"], facts["logdet_high"] = (end + shift for end in bracket)
        fit = -0.5 * (quad + rest / system.noise)
        complexity = -0.5 * logdet
        value = fit + complexity - 0.5 * n * LOG_TWO_PI
        parts = {"fit": fit, "complexity": complexity}
        return Evidence(value, self.kind, parts, report, facts)

    def _least_probes(self) -> int:
        return max(int(self.drawn), min(MIN_PROBES, self.most_probes))

    def _target_error(self, num_data: int) -> float:
        return max(EVIDENCE_ERROR_TARGET, self.accuracy * num_data)

    def _warn_of_error(self, error: float, num_data: int, probes: int) -> None:
        """Warn once if a standard error (nats) is above its target."""
        if error > self._target_error(num_data) and "value" not in self._warned_of:
            self._warned_of.add("value")
            # polynomials are of A itself: the low-rank part takes nothing off their error
            other = "rank" if self.logdet == "lanczos" else "take logdet=lanczos"
            warnings.warn(
                f"the evidence of {num_data:,} rows has a standard error of {error:.3g} nats after "
                f"{probes} probes, above accuracy={self.accuracy:g} nats a row; raise most_probes, "
                f"or {other}, or ask for less accuracy",
                stacklevel=users_line(),
            )

    def _target_gradient_error(self, size: float) -> float:
        """Target standard error of the log-determinant's gradient of this size."""
        return (
            math.inf
            if self.probes.resample
            else max(2.0 * GRADIENT_ERROR_TARGET, self.accuracy * size)
        )

    def _record_gradient_error(self, error: float, size: float, probes: int) -> None:
        """Record the error of the gradient, and warn once if it is above its target."""
        share = error / size if size else math.inf if error else 0.0
        self.gradient_error.fill_(share)
        if error > self._target_gradient_error(size) and "gradient" not in self._warned_of:
            self._warned_of.add("gradient")
            warnings.warn(
                f"the gradient of the log-determinant has a standard error of {share:.1%} "
                f"after {probes} probes, above accuracy={self.accuracy:g} of its size; raise "
                "most_probes, or rank, or ask for less accuracy",
                stacklevel=users_line(),
            )

    def _deterministic(self, system: SKISystem, model: GatheredRows, num_data: int) -> Tensor:
        if self.logdet == "cholesky":
            return (
                system.dense_logdet() + (num_data - len(system.weights.values)) * system.noise.log()
            )
        if not model.grid.has_cells:
            raise ConfigError(
                f"logdet={self.logdet} is of one grid, and additive=True has one for every axis; "
                "use logdet=lanczos"
            )
        if self.logdet == "eigenvalues":
            values = grid_eigenvalues(system.covariance)
        else:
            values = circulant_eigenvalues(
                system.covariance, model.grid, model.kernel, self.circulant, self.wraps
            )
        return scaled_logdet(values, system.noise, num_data, self.pad)


def _hyperparameters(model: GatheredRows) -> list[Tensor]:
    return [*model.kernel.parameters(), *model.likelihood.parameters()]


def _require_finite(model: GatheredRows) -> None:
    """Check all hyperparameters with one device synchronisation.

    Raises:
        NotPositiveDefinite: names those that are not finite.
    """
    if bool(torch.cat([p.flatten() for p in _hyperparameters(model)]).isfinite().all()):
        return
    bad = [
        f"{part}.{name}"
        for part in ("kernel", "likelihood")
        for name, p in getattr(model, part).named_parameters()
        if not bool(p.isfinite().all())
    ]
    raise NotPositiveDefinite(
        f"the kernel matrix has no value: not finite are {', '.join(bad)}; start from other "
        "hyperparameters, or take smaller steps"
    )
