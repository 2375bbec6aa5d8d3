"""Sparse Gaussian process regression averaged over its hyperparameters."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from gpx.errors import ConfigError
from gpx.inducing import Selector
from gpx.inducing.features import InducingFeatures
from gpx.inference.sampled_hyperparameters import SampledHyperparameters
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.sparse.collapsed_elbo import CollapsedELBO
from gpx.methods.sparse.sgpr import SGPR


class FullyBayesianSGPR(SampledHyperparameters, SGPR):  # type: ignore[misc]  # other posterior
    """Fully Bayesian SGPR: hyperparameters are marginalised by sampling, inducing points stay
    fixed.

    The density of the hyperparameters is p(theta) times the exponential of the collapsed bound: the
    marginal of the optimal free-form q(u, theta), in KL divergence to the exact posterior.

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        num_inputs: d, the number of columns of x.
        num_inducing: M.
        num_data, selector, features, fit_noise, jitter: as for ``SGPR``.

    Raises:
        ConfigError: ``num_inducing="auto"``, whose points depend on the hyperparameters.

    Cost: see ``HamiltonianChains`` and ``HyperparameterMixture``; 4 n M^2 multiply-adds or so for a
    bound with its gradient.
    Source: Hensman, Matthews, Filippone and Ghahramani 2015, for Gaussian noise.
    """

    data_sized: ClassVar[tuple[str, ...]] = (*SGPR.data_sized, "samples")

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        num_inducing: int = 512,
        num_data: int | None = None,
        selector: Selector | None = None,
        features: InducingFeatures | None = None,
        fit_noise: bool = True,
        jitter: float | None = None,
    ) -> None:
        if isinstance(num_inducing, str):
            raise ConfigError(
                f"num_inducing={num_inducing} chooses points for one value of the hyperparameters, "
                "which FullyBayesianSGPR averages over: give a number"
            )
        super().__init__(
            kernel=kernel,
            mean=mean,
            likelihood=likelihood,
            num_inputs=num_inputs,
            num_inducing=num_inducing,
            num_data=num_data,
            selector=selector,
            features=features,
            fit_noise=fit_noise,
            jitter=jitter,
        )
        self.inducing_points.requires_grad_(False)
        self._register_samples()

    def log_density_once(self, x: Tensor, y: Tensor) -> Tensor:
        """As in ``SampledHyperparameters``: the collapsed bound."""
        return CollapsedELBO().evidence(self, x, y).value
