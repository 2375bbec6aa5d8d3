"""Regression on discrete weights with a mixture for q, under which weights may be correlated."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpx.bases import Basis
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.direct.base import DiscreteRegression
from gpx.methods.direct.grids import NoiseGrid, WeightGrid
from gpx.methods.direct.mean_field import squared_error, total
from gpx.tensor_checks import check_at_least, check_not_negative

MIN_SWEEP_GAIN = 1e-3
"""The sweeps of the start end when one gains less than this many nats."""


class DirectMixture(DiscreteRegression):
    """Regression on discrete weights, with a mixture of r mean fields for q.

    Expectations of the log likelihood and of the log prior stay exact and cost nothing per row. The
    entropy of the mixture is bounded (``DirectMixtureELBO``) or its gradient sampled
    (``DirectSampledELBO``).

    Args:
        kernel, mean, basis, num_basis, weights: as for ``DiscreteWeights``.
        likelihood: Gaussian.
        noise: possible noise variances and their prior; None: the noise variance stays as
            initialised.
        components: r.
        perturbation: all components start at a mean field found by coordinate ascent; this is the
            standard deviation of the noise added to the logits of each.
        sweeps: most sweeps of that coordinate ascent.
        anneal: number of precision levels before it, see ``annealed_logits``.

    Attributes:
        share_logits (r,): their softmax gives the shares of the components.
        logits (r, m, k): their softmax gives the probabilities of the weights in every component.
        tangent (m, k): logarithm of the product at which the entropy is bounded; unnormalised.

    Raises:
        ConfigError: options out of range.

    Cost: n m^2 / 2 multiply-adds once; O(r (m^2 + m k)) per evaluation without the entropy.
    Source: Evans thesis, section 7.4.
    """

    data_sized = (*DiscreteRegression.data_sized, "logits", "tangent")
    in_double = (*DiscreteRegression.in_double, "share_logits")

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        basis: Basis | Callable[..., Basis],
        num_basis: int = 1000,
        weights: WeightGrid | None = None,
        noise: NoiseGrid | None = None,
        components: int = 5,
        perturbation: float = 0.1,
        sweeps: int = 100,
        anneal: int = 20,
    ) -> None:
        super().__init__(
            kernel=kernel,
            mean=mean,
            likelihood=likelihood,
            basis=basis,
            num_basis=num_basis,
            weights=weights,
        )
        self.register_sums(noise)
        check_at_least(1, components=components)
        check_at_least(0, sweeps=sweeps, anneal=anneal)
        check_not_negative(finite=True, perturbation=perturbation)
        self.components, self.perturbation, self.sweeps = components, perturbation, sweeps
        self.anneal = anneal
        empty = self.weights.values.new_zeros
        self.share_logits = nn.Parameter(empty(components))
        self.logits = nn.Parameter(empty(components, 0, len(self.weights)))
        self.tangent = nn.Parameter(empty(0, len(self.weights)))

    def log_shares(self) -> Tensor:
        """Logarithms of the shares (r,)."""
        return self.share_logits.log_softmax(0)

    def log_q(self) -> Tensor:
        """Logarithms of the probabilities (r, m, k)."""
        return self.logits.log_softmax(-1)

    def exact_terms(self) -> dict[str, Tensor]:
        """All terms of the bound but the entropy, exact, in nats: fit, constant, prior, noise."""
        shares, q, noise = self.log_shares().exp(), self.log_q().exp(), self.noise_terms()
        error = squared_error(self.statistics, q, self.values())
        return {
            "fit": -0.5 * noise.precision * (shares @ error),
            "constant": noise.constant,
            "prior": shares @ self._expected_log_prior(q),
            "noise": noise.prior,
        }

    def _expected_log_prior(self, q: Tensor) -> Tensor:
        """E log p(w) (r,) under every component; a lower bound on it for a mixture of priors."""
        grid = self.weights
        log_priors = q.sum(1) @ grid.log_components.to(q.device).mT
        return (log_priors + grid.log_shares.to(q.device)).logsumexp(-1)

    def mixture(self) -> tuple[Tensor, Tensor]:
        """As in ``DiscreteWeights``."""
        return self.log_shares().exp(), self.log_q().exp()

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the basis functions, compute the sums, and start q around an optimised mean field."""
        self.fix(x, y, generator=generator)
        logits = self.annealed_logits(self.anneal)
        before = -math.inf
        for _ in range(self.sweeps):
            logits = self.logits_after_sweep(logits)
            terms = self.mean_field_terms(logits)
            if self.noise is not None:
                self.noise_logits.copy_(self.best_noise_logits(terms["fit"]))
            value = float(total(terms))
            if value - before < MIN_SWEEP_GAIN:
                break
            before = value
        self.start_around(logits, generator=generator)
        self.note += f"; {self.components} components"

    @torch.no_grad()
    def start_around(self, logits: Tensor, *, generator: torch.Generator) -> None:
        """Set every component of q to a random perturbation of the mean field ``logits`` (m, k)."""
        shape = (self.components, *logits.shape)
        draws = torch.randn(
            shape, generator=generator, dtype=torch.float64, device=generator.device
        )
        self.logits.data = logits + self.perturbation * draws.to(logits.device)
        self.tangent.data = logits.log_softmax(-1)
        self.share_logits.data.zero_()

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q, and the tangent at which its entropy is bounded."""
        return {"variational": self.with_noise_logits(self.share_logits, self.logits, self.tangent)}
