"""Gaussian families for the whitened inducing variables v, whose prior is N(0, I)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, ShapeError
from gpx.inference.variational.moments import factor_terms, gaussian_kl


class WhitenedGaussian(nn.Module, ABC):
    """q(v) = prod over p latent functions of N(mean_p, S_p S_p^T), starting at the prior N(0, I).

    A family is made without sizes, with options of its own; the model that takes it says how many
    inducing variables and latent functions there are.

    Attributes:
        mean (p, M): a parameter, from ``start`` on.
    """

    mean: nn.Parameter

    def start(self, num_inducing: int, num_latents: int = 1) -> WhitenedGaussian:
        """Parameters of the prior over M variables of p latent functions each; returns itself.

        What was there before is dropped. A subclass adds its own parameters in ``_start``.

        Raises:
            ConfigError: no variable or no latent function.
        """
        if num_inducing < 1 or num_latents < 1:
            raise ConfigError(
                f"need at least one inducing point and one latent function, "
                f"got {num_inducing} and {num_latents}"
            )
        before = getattr(self, "mean", torch.empty(0))
        self.mean = nn.Parameter(before.new_zeros(num_latents, num_inducing))
        self._start()
        return self

    @abstractmethod
    def _start(self) -> None:
        """Make the covariance's parameters, at the prior, to the size and dtype of ``mean``."""

    @abstractmethod
    def root(self) -> Tensor:
        """The family's own form of S, shared by ``moments`` and ``kl`` of one evaluation."""

    @abstractmethod
    def moments(self, projection: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and excess variance over the prior of A^T v, each (p, B), for A (M, B)."""

    @abstractmethod
    def kl(self, root: Tensor) -> Tensor:
        """KL(q || N(0, I)) in nats, summed over the latent functions; ()."""

    def terms(self, projection: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``moments`` for A (M, B), and ``kl``, made together."""
        root = self.root()
        return *self.moments(projection, root), self.kl(root)

    @abstractmethod
    def factor(self) -> Tensor:
        """S (p, M, M), lower triangular."""

    @abstractmethod
    def assign(self, mean: Tensor, factor: Tensor) -> None:
        """Set q to N(mean, factor factor^T), or to the member of the family closest in KL(q || .).

        Args:
            mean (p, M).
            factor (p, M, M): lower triangular with a positive diagonal.
        """

    def _check(self, mean: Tensor, factor: Tensor) -> None:
        latents, size = self.mean.shape
        if mean.shape != (latents, size) or factor.shape != (latents, size, size):
            raise ShapeError(
                f"q(v) has mean {(latents, size)} and factor {(latents, size, size)}; "
                f"got {tuple(mean.shape)} and {tuple(factor.shape)}"
            )


class FullCholesky(WhitenedGaussian):
    """Full covariance through its Cholesky factor; the diagonal is learned on the log scale.

    Memory: p M^2 numbers (the strict upper triangle of the parameter is never read).
    """

    def _start(self) -> None:
        latents, size = self.mean.shape
        self.raw_factor = nn.Parameter(self.mean.new_zeros(latents, size, size))

    def root(self) -> Tensor:
        """S (p, M, M), differentiable."""
        diagonal = self.raw_factor.diagonal(dim1=-2, dim2=-1)
        return self.raw_factor.tril(-1) + torch.diag_embed(diagonal.exp())

    def factor(self) -> Tensor:
        """S (p, M, M), differentiable."""
        return self.root()

    def moments(self, projection: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Cost: 2 p M^2 B operations."""
        spread = (root.mT @ projection).square().sum(1)
        return self.mean @ projection, spread - projection.square().sum(0)

    def terms(self, projection: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See ``factor_terms``."""
        return factor_terms(projection, self.mean, self.raw_factor)

    def kl(self, root: Tensor) -> Tensor:
        """(|S|^2 + |m|^2 - p M) / 2 - sum log diag S."""
        return gaussian_kl(self.mean, root, self.raw_factor.diagonal(dim1=-2, dim2=-1))

    def assign(self, mean: Tensor, factor: Tensor) -> None:
        """Set mean and factor exactly."""
        self._check(mean, factor)
        with torch.no_grad():
            self.mean.copy_(mean)
            self.raw_factor.copy_(factor.tril())
            diagonal = self.raw_factor.diagonal(dim1=-2, dim2=-1)
            diagonal.log_()


class MeanField(WhitenedGaussian):
    """Diagonal covariance; standard deviations are learned on the log scale.

    Cheaper (no product with an M x M factor) and looser than the full family.
    """

    def _start(self) -> None:
        self.log_scale = nn.Parameter(torch.zeros_like(self.mean))

    def root(self) -> Tensor:
        """Standard deviations (p, M), differentiable."""
        return self.log_scale.exp()

    def factor(self) -> Tensor:
        """S (p, M, M), diagonal, differentiable."""
        return torch.diag_embed(self.root())

    def moments(self, projection: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Cost: 2 p M B operations each."""
        return self.mean @ projection, (root.square() - 1.0) @ projection.square()

    def kl(self, root: Tensor) -> Tensor:
        """(|s|^2 + |m|^2 - p M) / 2 - sum log s."""
        return gaussian_kl(self.mean, root, self.log_scale)

    def assign(self, mean: Tensor, factor: Tensor) -> None:
        """Keep the mean and, of the covariance, the inverse of the precision's diagonal.

        That is the diagonal Gaussian closest in KL(q || N(mean, factor factor^T)).
        """
        self._check(mean, factor)
        with torch.no_grad():
            identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            self.mean.copy_(mean)
            self.log_scale.copy_(-torch.linalg.vector_norm(inverse, dim=-2).log())
