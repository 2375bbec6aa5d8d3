"""Gaussian noise whose variance differs from row to row in a known way."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, Normal


class RowNoise(NamedTuple):
    """What is known of the noise of each row: its variance is ``known + relative * s``.

    s is the noise variance that the likelihood learns for all rows.

    Attributes:
        known (n,): variances in squared (standardised) target units, such as those of repeated
            measurements; not negative.
        relative (n,): one over the weight of each row, which says how many rows it stands for. What
            that means where noise is not Gaussian: ``Likelihood.log_prob_of_rows``.
    """

    known: Tensor
    relative: Tensor

    def variance(self, noise_variance: Tensor) -> Tensor:
        """Noise variances (n,) for the learned s (), differentiable in it."""
        return self.known + self.relative * noise_variance

    def of(self, rows: Tensor | slice) -> RowNoise:
        """Of the rows with these numbers (m,)."""
        return RowNoise(self.known[rows], self.relative[rows])

    def like(self, tensor: Tensor) -> RowNoise:
        """In the dtype and on the device of a tensor."""
        return RowNoise(self.known.to(tensor), self.relative.to(tensor))

    def added_to(self, law: Distribution) -> Distribution:
        """The law of y (n,) with the known variances added to the noise that it has; weights are
        not looked at.

        Args:
            law: normal, or a mixture of normals.
        """
        if isinstance(law, MixtureSameFamily):
            parts = law.component_distribution
            known = self.known.to(parts.mean).unsqueeze(-1)
            noisy = Normal(parts.mean, (parts.variance + known).sqrt())
            checked = None if len(known) else False  # torch's check of values cannot look at none
            return MixtureSameFamily(law.mixture_distribution, noisy, validate_args=checked)
        return Normal(law.mean, (law.variance + self.known.to(law.mean)).sqrt())

    def and_of(self, more: RowNoise) -> RowNoise:
        """Of these rows and then of ``more``."""
        return RowNoise(
            torch.cat([self.known, more.known]), torch.cat([self.relative, more.relative])
        )


def training_noise(model: Any, like: Tensor) -> Tensor:
    """Noise variances of a model's training rows: () for all of them, or (n,) where some are known.

    Args:
        model: with a Gaussian likelihood, and ``row_noise`` where it takes any.
        like: of the dtype and device of what is known.
    """
    learned: Tensor = model.likelihood.noise_variance
    known: RowNoise | None = getattr(model, "row_noise", None)
    return learned if known is None else known.like(like).variance(learned)
