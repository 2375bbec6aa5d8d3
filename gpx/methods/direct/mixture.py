"""Regression on discrete weights with a mixture for q, so that weights may depend on others."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpx.bases import Basis
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.direct.base import DiscreteRegression
from gpx.methods.direct.grids import NoiseGrid, WeightGrid
from gpx.methods.direct.mean_field import squared_error
from gpx.tensor_checks import check_at_least

TOLERANCE = 1e-3
"""Nats that a sweep of the start gains at least."""


class DirectMixture(DiscreteRegression):
    """Regression with discrete weights under a mixture of r independent distributions of them.

    Expectations of the likelihood and of the prior stay exact sums, free of n; the entropy of the
    mixture is bounded (``DirectMixtureELBO``) or its gradient sampled (``DirectSampledELBO``).

    Args:
        kernel, mean, basis, num_basis, weights: as for ``DiscreteWeights``.
        likelihood: Gaussian.
        noise: values of the noise variance and their prior; None: it stays as initialised.
        components: r.
        perturbation: standard deviation of what is added to the logits of each component at the
            start, which is the mean field of coordinate ascent.
        sweeps: of that ascent, at most.
        anneal: levels of the precision before it, see ``annealed``.

    Attributes:
        share_logits (r,): of the components.
        logits (r, m, k): of the weights in every component.
        tangent (m, k): logarithms of the distribution at which the entropy is bounded, of any sum.

    Raises:
        ConfigError: options out of range.

    Cost: n m^2 / 2 multiply-adds once; an evaluation O(r (m^2 + m k)), and its entropy.
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
        self.start_sums(noise)
        check_at_least(1, components=components)
        check_at_least(0, sweeps=sweeps, anneal=anneal)
        if not 0.0 <= perturbation < math.inf:
            raise ConfigError(f"perturbation={perturbation} must be at least 0 and finite")
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
        """Terms of the bound that are exact, in nats: fit, constant, prior and noise."""
        shares, q, noise = self.log_shares().exp(), self.log_q().exp(), self.noise_terms()
        error = squared_error(self.statistics, q, self.values()).value
        return {
            "fit": -0.5 * noise.precision * (shares @ error),
            "constant": noise.constant,
            "prior": shares @ self._expected_log_prior(q),
            "noise": noise.prior,
        }

    def _expected_log_prior(self, q: Tensor) -> Tensor:
        """E log p(w) (r,) under every component; of a mixture of priors a lower bound on it."""
        grid = self.weights
        each = q.sum(1) @ grid.log_components.to(q.device).mT
        return (each + grid.log_shares.to(q.device)).logsumexp(-1)

    def mixture(self) -> tuple[Tensor, Tensor]:
        """As in ``DiscreteWeights``."""
        return self.log_shares().exp(), self.log_q().exp()

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the functions, sum over the data, and perturb the mean field that ascent finds."""
        self.fix(x, y, generator=generator)
        logits = self.annealed(self.anneal)
        before = -math.inf
        for _ in range(self.sweeps):
            logits = self.swept(logits)
            found = self.bound(logits)
            if self.noise is not None:
                self.noise_logits.copy_(self.best_noise(found.fit))
            here = float(found.value)
            if here - before < TOLERANCE:
                break
            before = here
        self.start_around(logits, generator=generator)
        self.note += f"; {self.components} components"

    @torch.no_grad()
    def start_around(self, logits: Tensor, *, generator: torch.Generator) -> None:
        """Let q start at perturbations of a mean field with ``logits`` (m, k)."""
        shape = (self.components, *logits.shape)
        draws = torch.randn(
            shape, generator=generator, dtype=torch.float64, device=generator.device
        )
        self.logits.data = logits + self.perturbation * draws.to(logits.device)
        self.tangent.data = logits.log_softmax(-1)
        self.share_logits.data.zero_()

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: all of q, and where its entropy is bounded."""
        return {"variational": self.and_noise(self.share_logits, self.logits, self.tangent)}
