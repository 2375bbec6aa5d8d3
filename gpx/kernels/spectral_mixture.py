"""The spectral mixture kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError, ShapeError
from gpx.kernels.base import Kernel
from gpx.kernels.exponential import exponential
from gpx.linalg import running_sum
from gpx.tensor_checks import check_at_least


class SpectralMixture(Kernel):
    """k(tau) = sum_q weight_q prod_d exp(-2 pi^2 scale_qd^2 tau_d^2) cos(2 pi frequency_qd tau_d).

    The spectral density is a mixture of Gaussians, symmetric in every dimension. All parameters
    start at spread values, not at data; frequencies are in cycles per unit of x.

    Args:
        num_inputs: d, the number of (active) columns.
        num_mixtures: number of mixture components Q.
        weight: initial sum of the weights, the prior variance in squared units of y; or Q weights.
        max_frequency: initial frequencies are q / Q times it, in cycles per unit of x.
        scale: initial standard deviation of each component in frequency, in cycles per unit of x;
            or (Q, d) of them.
        frequency (Q, d): initial frequencies; None: by ``max_frequency``.
        active_dims: columns of x that the kernel uses; None for all.

    Raises:
        ConfigError: sizes below one, or initial values of another shape.
        ShapeError: when evaluated at inputs with another number of columns.

    Cost: O(Q n1 n2 d) time and, with gradients, memory.
    Source: Wilson and Adams 2013, eq. 12 ("Gaussian process kernels for pattern discovery").
    """

    weight: Tensor
    frequency: Tensor
    scale: Tensor

    def __init__(
        self,
        num_inputs: int,
        num_mixtures: int = 4,
        weight: float | Sequence[float] = 1.0,
        max_frequency: float = 1.0,
        scale: float | Sequence[Any] = 0.1,
        active_dims: list[int] | None = None,
        frequency: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(active_dims)
        check_at_least(1, num_inputs=num_inputs, num_mixtures=num_mixtures)
        self.num_inputs = self.ard_num_dims = num_inputs
        shape = (num_mixtures, num_inputs)
        steps = torch.arange(1, num_mixtures + 1, dtype=torch.float64) / num_mixtures
        spread = (max_frequency * steps).unsqueeze(1).expand(shape)
        weights, widths = (torch.as_tensor(v, dtype=torch.float64) for v in (weight, scale))
        given = {
            "weight": weights if weights.ndim else (weights / num_mixtures).expand(num_mixtures),
            "frequency": torch.as_tensor(
                spread if frequency is None else frequency, dtype=torch.float64
            ),
            "scale": widths if widths.ndim else widths.expand(shape),
        }
        for name, values in given.items():
            wanted = shape[:1] if name == "weight" else shape
            if values.shape != wanted:
                raise ConfigError(
                    f"{name} has values of shape {tuple(values.shape)}, expected {wanted} for "
                    f"num_mixtures={num_mixtures} and num_inputs={num_inputs}"
                )
            positive_parameter(self, name, values)

    @property
    def outputscale(self) -> Tensor:
        """Prior variance: the sum of the weights."""
        return self.weight.sum()

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Sum over components of damped waves."""
        if x1.shape[1] != self.num_inputs:
            raise ShapeError(
                f"SpectralMixture has {self.num_inputs} inputs but x has {x1.shape[1]} (active) "
                f"columns; set num_inputs={x1.shape[1]}"
            )
        return self._of_difference(x1.unsqueeze(1) - x2.unsqueeze(0))

    def variance(self, x: Tensor) -> Tensor:
        """The sum of the weights at every row."""
        return self.weight.sum().expand(x.shape[0])

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``, in O(Q n d)."""
        return self._of_difference(self._select(x1) - self._select(x2))

    def _of_difference(self, tau: Tensor) -> Tensor:
        total = tau.new_zeros(tau.shape[:-1])
        for weight, frequency, scale in zip(self.weight, self.frequency, self.scale, strict=True):
            damping = exponential((tau * scale).square().sum(-1) * (-2.0 * math.pi**2))
            wave = (tau * (2.0 * math.pi * frequency)).cos().prod(-1)
            total = total + weight * damping * wave
        return total

    def num_spectral_normals(self, num_inputs: int) -> int:
        """2 d + 1: d for the Gaussian, d for the signs, one for the component."""
        return 2 * num_inputs + 1

    def spectral_frequencies(self, normals: Tensor) -> Tensor:
        """As in ``Kernel``; differentiable in frequency and scale, not in the weights.

        The weights enter only through which component a row belongs to, a discrete choice.
        """
        if self.active_dims is not None:
            raise ConfigError("spectral frequencies of SpectralMixture need active_dims=None")
        d = self.num_inputs
        gauss, signs, choice = normals[:, :d], normals[:, d : 2 * d].sign(), normals[:, 2 * d]
        edges = running_sum((self.weight / self.weight.sum()).detach())[:-1].contiguous()
        component = torch.bucketize(torch.special.ndtr(choice).contiguous(), edges)
        centre, width = self.frequency[component], self.scale[component]
        return 2.0 * math.pi * (signs * centre + width * gauss)

    def spectral_density(self, omega: Tensor) -> Tensor:
        """As in ``Kernel``: a mixture of Gaussians, mirrored in every dimension."""
        total = omega.new_zeros(omega.shape[0])
        for weight, frequency, scale in zip(self.weight, self.frequency, self.scale, strict=True):
            both = sum(((omega + s * frequency) / scale).square().mul(-0.5).exp() for s in (1, -1))
            total = total + weight * (both / (2.0 * scale * math.sqrt(2.0 * math.pi))).prod(-1)
        return total
