"""Base class of models in weight space: f(x) = phi(x)^T w on a basis, with Gaussian q(w)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gpx.bases.base import Basis
from gpx.errors import ConfigError, class_name
from gpx.likelihoods import Gaussian, Likelihood
from gpx.means import Zero
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.weight_space.mean_field import MeanFieldWeights


@runtime_checkable
class WeightsOnBasis(Protocol):
    """What the bounds in weight space need of a model: a basis, and q(w) that is read by blocks.

    Attributes:
        basis: phi, with a diagonal prior precision.
        family: q(w), one row for each block of the basis.
        num_data (): n, used by the closed-form scales of q; set by the objective.
        noise_variance (): of the likelihood, or of Gaussian sites that replace it.
        anchor_blocks: number of leading blocks whose weights exact solves have set.
    """

    basis: Basis
    family: MeanFieldWeights
    likelihood: Likelihood
    num_data: Tensor

    @property
    def noise_variance(self) -> Tensor:
        """See above."""

    @property
    def anchor_blocks(self) -> int:
        """See above."""

    def log_scales(self, blocks: Tensor, *, sparse: bool = False) -> Tensor:
        """log c (L, W) of the diagonal columns of ``blocks`` (L,)."""


class WeightSpaceModel(Model):
    """y ~ p(y | f), f(x) = phi(x)^T w with prior w ~ N(0, S^-1) and q(w) = N(mu, C C^T).

    Args:
        basis: phi on the kernel, with a diagonal prior precision.
        mean: must be Zero: weights have prior mean zero and targets are standardised.
        likelihood: p(y | f).
        family: q(w), one row of W weights for each of the B blocks of the basis.

    Raises:
        ConfigError: another mean than Zero.
    """

    num_data: Tensor
    site_variance: Tensor

    def __init__(
        self, basis: Basis, mean: Mean, likelihood: Likelihood, family: MeanFieldWeights
    ) -> None:
        super().__init__()
        self.basis = basis
        self.mean = mean
        self.likelihood = likelihood
        self.family = family
        # a tensor, so that steps read it without a device synchronisation
        self.register_buffer("num_data", torch.ones(()))
        # noise variance of Gaussian sites that replace other likelihoods in closed-form scales
        self.register_buffer("site_variance", torch.ones(()))

    @property
    def kernel(self) -> nn.Module:
        """Covariance function; the basis owns it."""
        return self.basis.kernel

    @property
    def fixed_shapes(self) -> bool:  # type: ignore[override]
        """As in ``Model``: that of the basis."""
        return self.basis.fixed_shapes

    @property
    def anchor_blocks(self) -> int:
        """Number of leading blocks whose weights exact solves have set."""
        return 0

    @property
    def noise_variance(self) -> Tensor:
        """Noise variance (), for non-Gaussian likelihoods that of the Gaussian sites."""
        if not isinstance(self.likelihood, Gaussian):
            return self.site_variance
        return self.likelihood.noise_variance

    def log_scales(self, blocks: Tensor, *, sparse: bool = False) -> Tensor:
        """log c (L, W) of the diagonal columns of ``blocks``."""
        precision = self.basis.block_precision(blocks)
        return self.family.log_scale_of(
            blocks,
            column_square=self.num_data * self.basis.mean_column_square(),
            precision=precision.view(blocks.shape[0], -1),
            noise=self.noise_variance,
            sparse=sparse,
        )

    def start_scales(self, square: Tensor) -> None:
        """Set the scales to the optimum of the bound, given column squares phi_r^T phi_r (B, W)."""
        expected = self.num_data.to(square) * self.basis.mean_column_square().to(square)
        noise = self.noise_variance.to(square)
        precision = self.basis.precision_diagonal().to(square).view_as(square)
        log_scale = -0.5 * torch.log(square / noise + precision)
        self.family.set_scales(log_scale.to(self.family.mean), square / expected)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: sparse tables of q; ``hyperparameters``: kernel, likelihood, basis."""
        shared = [*self.kernel.parameters(), *self.likelihood.parameters()]
        listed = {id(p) for p in shared}
        own = [p for p in self.basis.parameters() if p.requires_grad and id(p) not in listed]
        return {
            "variational": list(self.family.parameters()),
            "hyperparameters": [*shared, *own],
        }


def require_zero_mean(mean: Mean, approximation: str) -> None:
    """Raise ConfigError if the prior mean is not Zero.

    Args:
        mean: as given.
        approximation: name of the model's class.
    """
    if not isinstance(mean, Zero):
        raise ConfigError(
            f"model={approximation}() needs mean=Zero(), got {class_name(mean)}: weight-space "
            "models put no prior mean on the weights, and targets are standardised"
        )
