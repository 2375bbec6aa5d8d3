"""Inducing points drawn uniformly from the data."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.inducing.base import Selection, Selector, random_rows
from gpx.kernels.base import Kernel


class Uniform(Selector):
    """M training inputs without replacement.

    The baseline: it needs many more points than an over-dispersed choice, and may repeat inputs.
    Cost: O(n). Source: Burt thesis, section 3.1.2.
    """

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        indices = random_rows(x.shape[0], num_inducing, x, generator)
        return Selection(points=x[indices].clone(), indices=indices)
