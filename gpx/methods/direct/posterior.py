"""Posterior process on basis functions with discrete weights, with exact moments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.bases.base import Basis
from gpx.bases.frozen import fixed_copy
from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError
from gpx.inference.finite_mixture import gaussian_mixture, mixture_moments
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import functions_by_blocks
from gpx.methods.base.trained_columns import TrainedColumns
from gpx.methods.direct.mean_field import cumulants, draw_codes


class DiscretePosterior(InDoublePrecision, Posterior):
    """Posterior over discrete weights, independent within each component of q.

    Subclasses define the function of the weights.

    Attributes:
        noise_values (k_s,): possible noise variances; empty if the noise variance is known.
        noise_probabilities (k_s,): their posterior probabilities.
    """

    in_double = ("noise_values",)
    noise_probabilities: Tensor
    noise_values: Tensor

    def register_state(
        self, noise_values: Tensor | None, device: torch.device | None = None
    ) -> None:
        """Register the buffers; all but ``noise_values`` are empty."""
        empty = torch.zeros(0, dtype=torch.float64, device=device)
        for name in self.data_sized:
            self.register_buffer(name, empty.clone())
        given = empty if noise_values is None else noise_values.to(device, copy=True)
        self.register_buffer("noise_values", given)

    @abstractmethod
    def mixture(self) -> tuple[Tensor, Tensor]:
        """Shares (r,) and probabilities (r, m, k) of q's components; r = 1 for a mean field."""

    @property
    def has_own_noise(self) -> bool:
        """As in ``Posterior``: true if the noise variance has a posterior."""
        return len(self.noise_values) > 0

    def noise_variance(self, likelihood: Likelihood) -> Tensor:
        """Expected noise variance ()."""
        if self.has_own_noise:
            return self.noise_probabilities @ self.noise_values
        assert isinstance(likelihood, Gaussian)
        return likelihood.noise_variance.detach()

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """As in ``Posterior``; adds the expected noise variance if that has a posterior."""
        if not self.has_own_noise:
            return super().predictive(x, likelihood)
        mean, variance = self.predict(x)
        return Normal(mean, (variance + self.noise_variance(likelihood).to(x.dtype)).sqrt())

    def predictive_of_rows(
        self, x: Tensor, likelihood: Gaussian | NoisyOutputs, noise: RowNoise
    ) -> Distribution:
        """As in ``Posterior``; row weights scale the expected noise variance."""
        if not self.has_own_noise:
            return super().predictive_of_rows(x, likelihood, noise)
        mean, variance = self.predict(x)
        own = noise.like(x).variance(self.noise_variance(likelihood).to(x))
        return Normal(mean, (variance + own).sqrt())

    @torch.no_grad()
    def sample_codes(self, num: int, *, generator: torch.Generator) -> Tensor:
        """Draw ``num`` weight vectors, as indices into the values: (num, m), uint8.

        Raises:
            ConfigError: there are more than 256 values.
        """
        shares, probabilities = self.mixture()
        count = probabilities.shape[-1]
        if count > 256:
            raise ConfigError(f"a byte holds 256 values and the weights have {count}")
        return draw_codes(shares, probabilities, num, generator).to(torch.uint8)


class DirectPosterior(TrainedColumns, DiscretePosterior):
    """Posterior process of ``Direct``; needs no training data.

    f(x) = m(x) + phi(x)^T (scale * w). The weights w are independent, with ``probabilities`` of the
    ``values``; for a mixture q, they are independent given the component.

    Args:
        basis: the basis functions phi.
        mean: prior mean function m.
        noise_values (k_s,): possible noise variances; None: the likelihood's noise variance.

    Attributes:
        scale (m,): prior standard deviations of the weights.
        values (k,): possible values of a weight, in units of its scale.
        probabilities (r, m, k): of every weight in every component of q.
        shares (r,): weights of the components.
    """

    data_sized = ("scale", "values", "probabilities", "shares", "noise_probabilities")
    scale: Tensor
    values: Tensor
    probabilities: Tensor
    shares: Tensor

    def __init__(self, basis: Basis, mean: Mean, noise_values: Tensor | None) -> None:
        super().__init__()
        self.basis = fixed_copy(basis)
        self.mean = untrained(mean)
        self.register_state(noise_values, next(self.basis.parameters()).device)

    def fill(
        self,
        scale: Tensor,
        values: Tensor,
        probabilities: Tensor,
        noise_probabilities: Tensor,
        shares: Tensor,
    ) -> None:
        """Store q; the arguments are the attributes of the same names."""
        self.keep(
            self.scale,
            scale=scale,
            values=values,
            probabilities=probabilities,
            noise_probabilities=noise_probabilities,
            shares=shares,
        )

    def mixture(self) -> tuple[Tensor, Tensor]:
        """As in ``DiscretePosterior``."""
        return self.shares, self.probabilities

    @property
    def zero(self) -> int | None:
        """The index of zero among the values; None if zero is not a value."""
        places = (self.values == 0.0).nonzero().flatten()
        return int(places[0]) if len(places) else None

    def sparsity(self) -> float | None:
        """Expected share of zeros in a draw of the weights; None if zero is not a value."""
        zero = self.zero
        if zero is None:
            return None
        return float(self.shares @ self.probabilities[..., zero].mean(1))

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        found: dict[str, bool | int | float | str] = {"num_basis": len(self.scale)}
        sparsity = self.sparsity()
        return found if sparsity is None else found | {"sparsity": sparsity}

    def _features(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        row = 4 * 8 * len(self.scale)
        for rows in row_chunks(x.shape[0], row, DEFAULT_BUDGET):
            yield rows, self.basis(x[rows]) * self.scale.to(x.dtype)

    def cumulants(self, x: Tensor, orders: int = 3) -> tuple[Tensor, ...]:
        """Mean, variance and third cumulant of f at x (t, d) in every component: (r, t) each.

        Exact: cumulants of independent weights add up. Cost: r m multiply-adds a row for each of
        the first ``orders``, which are returned.
        """
        of_weights = cumulants(self.probabilities, self.values)[:orders]
        found = x.new_empty(orders, len(self.shares), x.shape[0])
        for rows, features in self._features(x):
            for order, each in enumerate(of_weights):
                found[order, :, rows] = each.to(x.dtype) @ (features ** (order + 1)).mT
            found[0, :, rows] += self.mean(x[rows])
        return found.unbind()

    def predict(self, x: Tensor) -> Marginals:
        """Exact mean and variance of the latent function at x (t, d), which is not Gaussian."""
        mean, variance = self.cumulants(x, 2)
        return mixture_moments(Marginals(mean, variance), self.shares)

    def third_cumulant(self, x: Tensor) -> Tensor:
        """E (f - E f)^3 at x (t, d): (t,); exact."""
        mean, variance, third = self.cumulants(x)
        shares = self.shares.to(x.dtype).unsqueeze(1)
        off = mean - (shares * mean).sum(0)
        return (shares * (third + 3.0 * variance * off + off**3)).sum(0)

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """As in ``DiscretePosterior``; for several components a mixture of normals."""
        if len(self.shares) == 1:
            return super().predictive(x, likelihood)
        return self._mixture_of_normals(x, self.noise_variance(likelihood).to(x.dtype))

    def predictive_of_rows(
        self, x: Tensor, likelihood: Gaussian | NoisyOutputs, noise: RowNoise
    ) -> Distribution:
        """As in ``DiscretePosterior``; for several components a mixture of normals."""
        if len(self.shares) == 1:
            return super().predictive_of_rows(x, likelihood, noise)
        variance = noise.like(x).variance(self.noise_variance(likelihood).to(x))
        return self._mixture_of_normals(x, variance)

    def _mixture_of_normals(self, x: Tensor, noise: Tensor) -> Distribution:
        """One normal per component of q, with noise variances () or (t,) added."""
        mean, variance = self.cumulants(x, 2)
        return gaussian_mixture(Marginals(mean, variance + noise), self.shares)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t).

        Cost: num m k once, num m multiply-adds a row.
        """
        drawn = self.values[draw_codes(*self.mixture(), num, generator)]
        return functions_by_blocks(
            self,
            num,
            lambda x: (drawn.to(x.dtype) @ features.mT for _, features in self._features(x)),
            self.mean,
        )
