"""Conversion between the data's own units and standardised ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPS = 4.0 * torch.finfo(torch.float64).eps
"""A column whose range is below this share of its largest magnitude counts as constant."""

SAFE = 1e140
"""For magnitudes beyond this or below its inverse, sums of squares leave the range of float64."""


class Standardiser(nn.Module):
    """Affine maps that give training inputs and targets mean zero and standard deviation one.

    All state is in buffers, for ``state_dict``. Keep them in float64: centring years or seconds
    since 1970 in float32 would lose their digits.

    Args:
        num_inputs: d.
        num_outputs: p.

    Attributes:
        input_mean, input_scale (d,): in the inputs' own units.
        target_mean, target_scale (), or (p,) for p > 1 outputs: in the target's own unit; 0 and 1
            if targets are not scaled.
    """

    input_mean: Tensor
    input_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor

    def __init__(self, num_inputs: int, num_outputs: int = 1) -> None:
        super().__init__()
        double, outputs = torch.float64, () if num_outputs == 1 else (num_outputs,)
        self.register_buffer("input_mean", torch.zeros(num_inputs, dtype=double))
        self.register_buffer("input_scale", torch.ones(num_inputs, dtype=double))
        self.register_buffer("target_mean", torch.zeros(outputs, dtype=double))
        self.register_buffer("target_scale", torch.ones(outputs, dtype=double))

    @classmethod
    def fit(cls, x: Tensor, y: Tensor, *, scale_targets: bool) -> tuple[Standardiser, Tensor]:
        """Standardiser by mean and population standard deviation of the training rows.

        Args:
            x (n, d), y (n,) or (n, p): training rows, float64. If some of several targets are
                missing (NaN), each column uses the rows that have it.
            scale_targets: False leaves targets unchanged.

        Returns:
            the standardiser, and a mask (d + p,) of constant columns (inputs, then targets), whose
            scale is one.
        """
        targets = y.reshape(len(y), -1)
        scaler = cls(x.shape[1], targets.shape[1])
        mean, scale, constant = _statistics(x)
        scaler.input_mean.copy_(mean)
        scaler.input_scale.copy_(scale)
        target_constant = torch.zeros(targets.shape[1], dtype=torch.bool)
        if scale_targets:
            mean, scale, target_constant = _observed_statistics(targets)
            scaler.target_mean.copy_(mean.view_as(scaler.target_mean))
            scaler.target_scale.copy_(scale.view_as(scaler.target_scale))
        return scaler, torch.cat([constant, target_constant])

    def transform_inputs(self, x: Tensor) -> Tensor:
        """x (n, d) in its own units -> (n, d) standardised, float64."""
        device = x.device
        centred = x.to(torch.float64) - self.input_mean.to(device)
        return centred / self.input_scale.to(device)

    def original_inputs(self, x: Tensor) -> Tensor:
        """x (n, d) standardised -> (n, d) in its own units, float64."""
        device = x.device
        scaled = x.to(torch.float64) * self.input_scale.to(device)
        return scaled + self.input_mean.to(device)

    def transform_targets(self, y: Tensor) -> Tensor:
        """y (n,) or (n, p) in its own unit -> standardised, same shape, float64."""
        device = y.device
        return (y.to(torch.float64) - self.target_mean.to(device)) / self.target_scale.to(device)

    def original_mean(self, mean: Tensor) -> Tensor:
        """Mean (or any quantile), (..., n) or (..., n, p), standardised -> own unit, float64."""
        device = mean.device
        scaled = mean.to(torch.float64) * self.target_scale.to(device)
        return scaled + self.target_mean.to(device)

    def original_std(self, std: Tensor) -> Tensor:
        """Standard deviation, (..., n) or (..., n, p), standardised -> own unit, float64."""
        return std.to(torch.float64) * self.target_scale.to(std.device)


def _observed_statistics(columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``_statistics`` of each column without missing values (NaN)."""
    if not bool(columns.isnan().any()):
        return _statistics(columns)
    each = [_statistics(column[~column.isnan()][:, None]) for column in columns.unbind(1)]
    mean, scale, constant = (torch.cat(parts) for parts in zip(*each, strict=True))
    return mean, scale, constant


def _statistics(columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, scale and mask of constant columns of (n, c); a constant column's mean is its value."""
    lowest, highest = columns.amin(0), columns.amax(0)
    largest = torch.maximum(lowest.abs(), highest.abs())
    if bool(((largest > SAFE) | ((largest > 0) & (largest < 1.0 / SAFE))).any()):
        # rescale, as squares would leave the range of float64
        unit = torch.where(largest > 0, largest, torch.ones_like(largest))
        mean, scale, constant = _statistics(columns / unit)
        return mean * unit, torch.where(constant, torch.ones_like(scale), scale * unit), constant
    constant = (highest - lowest) <= EPS * largest
    mean = torch.where(constant, lowest, columns.mean(0))
    std = (columns - mean).square().mean(0).sqrt()
    return mean, torch.where(constant, torch.ones_like(std), std), constant
