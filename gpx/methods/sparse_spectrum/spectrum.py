"""Trigonometric features with learned frequencies: fixed ones, or a Gaussian over each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from gpx.bases.fourier.trigonometric import trigonometric_features
from gpx.errors import ConfigError, class_name
from gpx.kernels import RBF, Kernel, Matern
from gpx.tensor_checks import check_at_least, check_positive

Paths = Callable[[Tensor, Tensor], Tensor]
"""x (t, d), weights (num, m) -> functions (num, t)."""


class LearnedSpectrum(nn.Module, ABC):
    """m features at frequencies points / lengthscale, for weights with prior N(0, I).

    Args:
        kernel: gives the initial frequencies, lengthscales and outputscale.
        num_basis: m.
        num_inputs: d.
        num_points: r, number of frequencies.

    Attributes:
        points (r, d): frequencies times the lengthscale, so that a lengthscale scales them all.

    Raises:
        ConfigError: a kernel not in ``kernels``, or one with active_dims.
    """

    kernel: RBF | Matern
    kernels: ClassVar[tuple[type[Kernel], ...]] = (RBF, Matern)

    def __init__(self, kernel: Kernel, num_basis: int, num_inputs: int, num_points: int) -> None:
        super().__init__()
        if not isinstance(kernel, self.kernels) or kernel.active_dims is not None:
            wanted = " or ".join(k.__name__ for k in self.kernels)
            raise ConfigError(
                f"frequencies start at those of an {wanted} kernel of all inputs, got "
                f"{class_name(kernel)}; give one of these, with active_dims=None"
            )
        assert isinstance(kernel, RBF | Matern)
        kernel.num_spectral_normals(num_inputs)  # raises for subclasses that have none
        self.kernel = kernel
        self.num_basis, self.num_inputs = num_basis, num_inputs
        self.points = nn.Parameter(torch.zeros(num_points, num_inputs))

    def draw(self, generator: torch.Generator) -> None:
        """Draw frequencies from the kernel's spectral density."""
        frequencies = self.kernel.draw_frequencies(*self.points.shape, generator=generator)
        self.points.data = frequencies * self.kernel.lengthscale.detach()

    def frequencies(self) -> Tensor:
        """Angular frequencies, or their means (r, d), in radians per unit of x."""
        return self.points / self.kernel.lengthscale

    def scale(self) -> Tensor:
        """sqrt(2 outputscale / m), ()."""
        return (2.0 / self.num_basis * self.kernel.outputscale).sqrt()

    @abstractmethod
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean (n, m) of the features at x (n, d), and their variance (None: they are fixed)."""

    @abstractmethod
    def paths(self, num: int, *, generator: torch.Generator) -> Paths:
        """``num`` draws of the features, as a function of x and of the weights of each draw."""

    def penalty(self) -> Tensor:
        """KL(q || prior) of uncertain frequencies in nats, ()."""
        return self.points.new_zeros(())

    def distribution(self) -> list[nn.Parameter]:
        """Parameters of the distribution over frequencies; none if they are fixed."""
        return []


class SpectralPoints(LearnedSpectrum):
    """Cosines and sines of m / 2 frequencies.

    Source: Lazaro-Gredilla et al., "Sparse spectrum Gaussian process regression", JMLR 2010.
    """

    def __init__(self, kernel: Kernel, num_basis: int, num_inputs: int) -> None:
        if num_basis < 2 or num_basis % 2:
            raise ConfigError(
                f"num_basis={num_basis}: every frequency has a cosine and a sine, so it must be "
                "even and at least 2"
            )
        super().__init__(kernel, num_basis, num_inputs, num_basis // 2)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """As in ``LearnedSpectrum``, without variance."""
        return trigonometric_features(x, self.frequencies()[None], self.scale()), None

    def paths(self, num: int, *, generator: torch.Generator) -> Paths:
        """As in ``LearnedSpectrum``, with the same features for all draws."""
        return lambda x, weights: weights @ self.moments(x)[0].mT


class UncertainSpectrum(LearnedSpectrum):
    """m cosines with free phases, of frequencies with q(points) = N(points, diag(exp(2 log_std))).

    phi_r(x) = sqrt(2 outputscale / m) cos(w_r . x + phase_r). The prior of points is standard
    normal, that of an RBF kernel.

    Args:
        kernel, num_basis, num_inputs: as in ``LearnedSpectrum``.
        std: initial standard deviation of q, relative to that of the prior.

    Attributes:
        points (m, d), log_std (m, d): of q.
        phases (m,): in radians.

    Source: Gal and Turner, "Improving the Gaussian process sparse spectrum approximation by
    representing uncertainty in frequency inputs", ICML 2015.
    """

    kernels = (RBF,)

    def __init__(self, kernel: Kernel, num_basis: int, num_inputs: int, std: float = 0.1) -> None:
        check_at_least(1, num_basis=num_basis)
        check_positive(finite=True, std=std)
        super().__init__(kernel, num_basis, num_inputs, num_basis)
        self.log_std = nn.Parameter(torch.full((num_basis, num_inputs), math.log(std)))
        self.phases = nn.Parameter(torch.zeros(num_basis))

    def draw(self, generator: torch.Generator) -> None:
        """As in ``LearnedSpectrum``; also draws uniform phases."""
        super().draw(generator)
        turns = torch.rand(self.phases.shape, generator=generator, device=self.phases.device)
        self.phases.data = (2.0 * math.pi * turns).to(self.phases)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean and variance of the features under q, (n, m) each.

        With t = 1 - exp(-v), v the variance of the angle a: E cos = sqrt(1 - t) cos a and
        var cos = t (sin^2 a + t (cos^2 a - 1/2)), without cancellation if q is narrow.
        """
        angle = x @ self.frequencies().mT + self.phases
        spread = x.square() @ (self.log_std.exp() / self.kernel.lengthscale).square().mT
        lost = -torch.expm1(-spread)
        cosine, square = angle.cos(), self.scale().square()
        variance = lost * (angle.sin().square() + lost * (cosine.square() - 0.5))
        return self.scale() * (-0.5 * spread).exp() * cosine, square * variance

    def paths(self, num: int, *, generator: torch.Generator) -> Paths:
        """As in ``LearnedSpectrum``, with frequencies drawn from q."""
        noise = self.points.new_empty(num, *self.points.shape).normal_(generator=generator)
        drawn = (self.points + noise * self.log_std.exp()) / self.kernel.lengthscale

        def functions(x: Tensor, weights: Tensor) -> Tensor:
            made = [
                (self.scale() * torch.cos(x @ one.mT + self.phases)) @ w
                for one, w in zip(drawn, weights, strict=True)
            ]
            return torch.stack(made) if made else x.new_zeros(0, len(x))

        return functions

    def penalty(self) -> Tensor:
        """As in ``LearnedSpectrum``; the prior is standard normal."""
        excess = (2.0 * self.log_std).exp() + self.points.square() - 1.0 - 2.0 * self.log_std
        return 0.5 * excess.sum()

    def distribution(self) -> list[nn.Parameter]:
        """As in ``LearnedSpectrum``: q and the phases."""
        return [self.points, self.log_std, self.phases]
