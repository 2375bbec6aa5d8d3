"""A toy data set with one input."""

from __future__ import annotations

import numpy as np

from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.tensor_checks import check_at_least, check_not_negative

GAP = (1.0, 2.5)
"""Interval without inputs, so that figures show predictions without data."""


class Toy1D(DataSource):
    """Noisy sinc: ``y = sin(pi x) / (pi x) + noise`` for x in [-4, 4] with a gap.

    Args:
        num_points: rows to draw.
        noise: standard deviation of the Gaussian noise, in the unit of y (the sinc peaks at 1).
        seed: of inputs and noise; not the seed of training.
        split, test_fraction, root, split_seed: as for every source (``root`` is not used).

    Raises:
        ConfigError: ``num_points`` below 1, ``noise`` or ``seed`` negative.
    """

    def __init__(
        self,
        num_points: int = 200,
        noise: float = 0.05,
        seed: int = 0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        check_at_least(1, num_points=num_points)
        check_not_negative(noise=noise)
        check_at_least(0, seed=seed)
        self.num_points = num_points
        self.noise = noise
        self.seed = seed

    def table(self) -> Table:
        """Draw all rows."""
        random = np.random.Generator(np.random.PCG64(self.seed))
        x = random.uniform(-4.0, 4.0 - (GAP[1] - GAP[0]), size=self.num_points)
        x[x > GAP[0]] += GAP[1] - GAP[0]
        y = np.sinc(x) + self.noise * random.standard_normal(self.num_points)
        return Table(
            name="toy1d",
            x=x[:, None],
            y=y,
            input_names=("x",),
            target_name="y",
            notes=f"simulated; no inputs between {GAP[0]:g} and {GAP[1]:g}",
            origin="toy1d generator",
        )
