"""Gaussian families for the whitened inducing variables v, whose prior is N(0, I)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gpx.errors import NotAvailable, ShapeError, class_name
from gpx.inference.variational.moments import factor_terms, gaussian_kl
from gpx.linalg.cholesky import noted_checks
from gpx.tensor_checks import check_at_least


class WhitenedGaussian(nn.Module, ABC):
    """q(v) = prod over p latent functions of N(mean_p, S_p S_p^T), starting at the prior N(0, I).

    A family is constructed from its options; the model that uses it sets the sizes by ``start``.

    Attributes:
        mean (p, M): a parameter, from ``start`` on.
    """

    mean: nn.Parameter

    def start(self, num_inducing: int, num_latents: int = 1) -> WhitenedGaussian:
        """Set q to the prior over M variables of p latent functions each; returns itself.

        Parameters that are there already take the new values, of another size too, so that an
        optimiser that was made for them trains these. One that has made steps keeps moments of the
        old size, which torch refuses. A subclass makes its own parameters in ``_start``.

        Raises:
            ConfigError: no variable or no latent function.
        """
        check_at_least(1, num_inducing=num_inducing, num_latents=num_latents)
        before = getattr(self, "mean", torch.empty(0))
        known = dict(self._parameters)
        self.mean = nn.Parameter(before.new_zeros(num_latents, num_inducing))
        self._start()
        for name, parameter in known.items():
            made = self._parameters.get(name)
            if parameter is not None and made is not None and made is not parameter:
                parameter.data, parameter.grad = made.data, None
                self._parameters[name] = parameter
        return self

    @abstractmethod
    def _start(self) -> None:
        """Create the covariance's parameters at the prior, of the size and dtype of ``mean``."""

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
        """``moments`` for A (M, B), and ``kl``."""
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

    def natural_step(
        self,
        rate: float | Tensor,
        longest: float = math.inf,
        gradients: Sequence[Tensor | None] | None = None,
    ) -> None:
        """Step along the natural gradient of a loss, given the gradients of the parameters.

        The natural parameters of q take a step along the gradient in its moments m and S + m m^T:
        the precision P = (S S^T)^{-1} becomes P + 2 rate dloss/d(S S^T), and the mean m - rate
        P^{-1} dloss/dm with the new P. Where that P is not positive definite (the likelihood is not
        log-concave) rate^2 / 2 times the step's square is added, which makes it so.

        A subclass with a ``_start`` or ``root`` of its own needs a step of its own: the inherited
        one is for the parameters of its base class, and training does not take it.

        Args:
            rate: step size. For minus the bound as loss at most one, which with Gaussian noise and
                all data reaches the optimum in one step.
            longest: longest step of the mean of a latent function, in prior standard deviations; no
                value of the function moves by more.
            gradients: of the parameters in their order; None: their ``grad``.

        Inside ``checks_deferred`` an indefinite first P is only noted and q stays unchanged, for
        the step to be repeated outside.

        Raises:
            NotAvailable: the family has no such step.

        Source: Hensman, Fusi and Lawrence 2013; Salimbeni, Eleftheriadis and Hensman 2018; for the
            added square Lin, Schmidt and Khan 2020.
        """
        raise NotAvailable(f"{class_name(self)} has no natural gradient step")

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

    @torch.no_grad()
    def natural_step(
        self,
        rate: float | Tensor,
        longest: float = math.inf,
        gradients: Sequence[Tensor | None] | None = None,
    ) -> None:
        """As in ``WhitenedGaussian``, in float64; about 4 p M^3 operations."""
        of_mean, of_raw = _gradients((self.mean, self.raw_factor), gradients)
        factor = self.raw_factor.double().tril()  # as ``root``, with fewer launches
        factor.diagonal(dim1=-2, dim2=-1).exp_()
        of_factor = of_raw.tril()
        diagonal = of_factor.diagonal(dim1=-2, dim2=-1)
        diagonal.div_(factor.diagonal(dim1=-2, dim2=-1))  # the parameter is its logarithm
        # in the basis of S: S^T P S = I, and 2 S^T (dloss / d S S^T) S is symmetric with the lower
        # triangle of S^T dloss/dS
        root, failed = _upper_root(factor.mT @ of_factor, rate)
        factor = torch.linalg.solve_triangular(root.mT, factor, upper=False, left=False)
        step = factor @ (factor.mT @ of_mean.unsqueeze(-1))
        mean = self.mean - _shortened(rate * step.squeeze(-1), longest)
        factor.diagonal(dim1=-2, dim2=-1).log_()
        if failed is not None:
            mean = torch.where(failed, self.mean, mean)
            factor = torch.where(failed, self.raw_factor, factor)
        self.mean.copy_(mean)
        self.raw_factor.copy_(factor)


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
        """Set q to the diagonal Gaussian closest in KL(q || N(mean, factor factor^T)).

        Its variances are the inverse of the precision's diagonal.
        """
        self._check(mean, factor)
        with torch.no_grad():
            identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            self.mean.copy_(mean)
            self.log_scale.copy_(-torch.linalg.vector_norm(inverse, dim=-2).log())

    @torch.no_grad()
    def natural_step(
        self,
        rate: float | Tensor,
        longest: float = math.inf,
        gradients: Sequence[Tensor | None] | None = None,
    ) -> None:
        """As in ``WhitenedGaussian``; O(p M) operations."""
        of_mean, of_scale = _gradients((self.mean, self.log_scale), gradients)
        change = rate * of_scale
        grown = torch.where(change > -1.0, 1.0 + change, 1.0 + change + 0.5 * change.square())
        variance = self.root().double().square() / grown
        self.mean.copy_(self.mean - _shortened(rate * variance * of_mean, longest))
        self.log_scale.copy_(0.5 * variance.log())


def _gradients(
    parameters: Sequence[nn.Parameter], given: Sequence[Tensor | None] | None
) -> list[Tensor]:
    """The given gradients, or the parameters' ``grad``, in float64; None counts as zero."""
    found = [parameter.grad for parameter in parameters] if given is None else given
    return [
        torch.zeros_like(p, dtype=torch.float64) if g is None else g.double()
        for p, g in zip(parameters, found, strict=True)
    ]


def _shortened(step: Tensor, longest: float) -> Tensor:
    """Steps (p, M), shortened to at most length ``longest``."""
    if longest == math.inf:
        return step
    length = torch.linalg.vector_norm(step, dim=-1, keepdim=True)
    return step * (longest / length).clamp_max(1.0)


def _upper_root(change: Tensor, rate: float | Tensor) -> tuple[Tensor, Tensor | None]:
    """Upper triangular U (p, M, M) with U U^T = I + E for symmetric E = ``rate`` times ``change``.

    Of ``change`` (p, M, M) only the lower triangle is read. U U^T = I + E + E^2 / 2 where I + E is
    not positive definite. Inside ``checks_deferred`` always the first form, and whether a
    factorisation failed ().
    """
    flipped = change.mT.flip(-2, -1).mul_(rate)  # whose lower triangle is that of the change
    flipped.diagonal(dim1=-2, dim2=-1).add_(1.0)
    lower, info = torch.linalg.cholesky_ex(flipped)  # reads the lower triangle alone
    noted = noted_checks()
    if noted is not None:
        noted.append((info != 0).any())
        return lower.flip(-2, -1), noted[-1]
    if bool(info.any() if len(info) > 1 else info):
        # ((I + E)^2 + I) / 2 from the triangle of its root: squaring would lose small eigenvalues
        whole = flipped.tril() + flipped.tril(-1).mT
        identity = torch.eye(change.shape[-1], dtype=change.dtype, device=change.device)
        rows = torch.cat([whole, identity.expand_as(change)], dim=-2)
        triangle = torch.linalg.qr(rows, mode="r").R * math.sqrt(0.5)
        signs = triangle.diagonal(dim1=-2, dim2=-1).sign()
        lower = torch.where((info == 0)[:, None, None], lower, (signs.unsqueeze(-1) * triangle).mT)
    return lower.flip(-2, -1), None
