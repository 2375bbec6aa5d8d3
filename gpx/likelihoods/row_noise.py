"""Gaussian noise whose variance differs from row to row in a known way."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


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

    def predictive(
        self, mean: Tensor, variance: Tensor, noise_variance: Tensor
    ) -> torch.distributions.Normal:
        """Law of y (n,) given latent marginals (n,)."""
        noise = self.like(mean).variance(noise_variance.to(mean))
        return torch.distributions.Normal(mean, (variance.clamp_min(0.0) + noise).sqrt())

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
