"""Known differences of the noise variance between rows, or between cells of several targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, Normal

from gpx.errors import ConfigError, class_name
from gpx.tensor_checks import validation


class RowNoise(NamedTuple):
    """The noise variance of each row as ``known + relative * s``.

    s is the noise variance that the likelihood learns for all rows; with p targets there is one for
    each, and known variances are (n, p), where a model takes them (``Model.takes_cell_noise``).

    Attributes:
        known (n,), or (n, p): variances in squared (standardised) target units, such as those of
            repeated measurements; not negative.
        relative (n,): one over the weight of each row, the number of rows it stands for. For other
            than Gaussian noise see ``Likelihood.log_prob_of_rows``.
    """

    known: Tensor
    relative: Tensor

    @classmethod
    def of_variances(cls, variances: Tensor) -> RowNoise:
        """Known variances (n,) or (n, p), beside which the likelihood learns one of all rows, or p.

        Raises:
            ConfigError: neither a vector nor a matrix of finite numbers, 0 or more.
        """
        if not isinstance(variances, Tensor) or variances.ndim not in (1, 2):
            given = f"an object of class {class_name(variances)}"
            if isinstance(variances, Tensor):
                given = f"a tensor {tuple(variances.shape)}"
            raise ConfigError(
                "known noise must be a tensor (n,) of the variance of every row, (n, p) of that of "
                f"p targets, or a RowNoise; got {given}"
            )
        if not bool(((variances >= 0.0) & variances.isfinite()).all()):
            raise ConfigError("known noise variances must be finite and not negative")
        return cls(variances, variances.new_ones(len(variances)))

    @classmethod
    def plain(cls, like: Tensor) -> RowNoise:
        """Of rows of which nothing is known; dtype, device and length of ``like`` (n,)."""
        return cls(torch.zeros_like(like), torch.ones_like(like))

    def variance(self, noise_variance: Tensor) -> Tensor:
        """Noise variances (n,) for the learned s (), differentiable in it."""
        return self.known + self.relative * noise_variance

    def variances(self, noise_variances: Tensor) -> Tensor:
        """Noise variances (n, p) for the learned ones of p targets (p,), differentiable in them."""
        return self.columns() + self.relative.unsqueeze(-1) * noise_variances

    def columns(self) -> Tensor:
        """Known variances (n, p) of the cells of p targets, or (n, 1) of all cells of a row."""
        return self.known if self.known.ndim > 1 else self.known.unsqueeze(-1)

    def of_target(self, target: int) -> RowNoise:
        """The noise of the cells of one of p targets."""
        columns = self.columns()
        return RowNoise(columns[:, target if columns.shape[1] > 1 else 0], self.relative)

    def packed(self) -> Tensor:
        """As one tensor (n, q + 1), q = 1 or p columns of known variances first, to be kept."""
        return torch.cat([self.columns(), self.relative.unsqueeze(-1)], -1)

    @classmethod
    def unpacked(cls, kept: Tensor) -> RowNoise:
        """The noise of a ``packed`` tensor."""
        known = kept[:, :-1]
        return cls(known[:, 0] if known.shape[1] == 1 else known, kept[:, -1])

    def of(self, rows: Tensor | slice) -> RowNoise:
        """The noise of the rows with these numbers (m,)."""
        return RowNoise(self.known[rows], self.relative[rows])

    def like(self, tensor: Tensor) -> RowNoise:
        """In the dtype and on the device of a tensor."""
        return RowNoise(self.known.to(tensor), self.relative.to(tensor))

    def on(self, device: torch.device) -> RowNoise:
        """On a device, in the same dtype."""
        return RowNoise(self.known.to(device), self.relative.to(device))

    def added_to(self, law: Distribution) -> Distribution:
        """The distribution of y (n,) with the known variances added; weights are ignored.

        Args:
            law: normal, or a mixture of normals.
        """
        if isinstance(law, MixtureSameFamily):
            parts = law.component_distribution
            known = self.known.to(parts.mean).unsqueeze(-1)
            noisy = Normal(parts.mean, (parts.variance + known).sqrt())
            share = law.mixture_distribution
            return MixtureSameFamily(share, noisy, validate_args=validation(known))
        return Normal(law.mean, (law.variance + self.known.to(law.mean)).sqrt())

    def concatenated(self, more: RowNoise) -> RowNoise:
        """The noise of these rows followed by that of ``more``."""
        known = [self.known, more.known]
        if self.known.ndim != more.known.ndim:  # one of them knows the same of all targets
            width = max(each.columns().shape[1] for each in (self, more))
            known = [each.columns().expand(-1, width) for each in (self, more)]
        return RowNoise(torch.cat(known), torch.cat([self.relative, more.relative]))


def training_noise(model: Any, like: Tensor) -> Tensor:
    """Noise variances of a model's training rows: () for all of them, or (n,).

    Args:
        model: with a Gaussian likelihood, and ``row_noise`` if it supports it.
        like: a tensor of the result's dtype and device.
    """
    learned: Tensor = model.likelihood.noise_variance
    known: RowNoise | None = getattr(model, "row_noise", None)
    return learned if known is None else known.like(like).variance(learned)
