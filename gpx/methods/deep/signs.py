"""Frequencies from Hadamard matrices and random signs (SORF), fixed or with a posterior."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpx.bases.counter_random import standard_normals
from gpx.bases.random_directions import hadamard_transform, next_power_of_two, random_signs
from gpx.methods.deep.draws import RandomLayer
from gpx.methods.deep.weights import check_keep
from gpx.tensor_checks import check_at_least, check_positive

PRIOR_DEVIATION = 0.1
"""Prior standard deviation of the deviations of signs; the published variance is 0.01."""
START_STREAM = 0x44454C54
"""Key of the random stream of initial deviations, which keeps them independent of other draws."""


class SignFrequencies(RandomLayer):
    """x -> sqrt(D) H D_1 H D_2 H D_3 x with the orthonormal Walsh-Hadamard matrix H of size D.

    D is the smallest power of two that is at least max(d, r); x is padded with zeros, and the first
    r results are used. The D_i are diagonal matrices of random signs drawn once. If learned, they
    are signs plus deviations delta_i with prior N(0, deviation^2) and Monte Carlo dropout. (A zero
    mean prior on the signs themselves would pull them to zero.)

    Args:
        num_inputs, num_outputs: d, r.
        learned: whether signs have learned deviations.
        keep: probability that a deviation is kept.
        seed: of signs and deviations.
        deviation: standard deviation of the prior, and of the initial deviations.

    Raises:
        ConfigError: sizes below one, a probability or a deviation out of range.

    Cost: O(n D log D) per pass, 3 D numbers. Source: Tran et al., "Calibrating deep convolutional
    Gaussian processes", AISTATS 2019; Yu et al., "Orthogonal random features", NeurIPS 2016.
    """

    signs: Tensor

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        learned: bool = False,
        keep: float = 0.5,
        seed: int = 0,
        deviation: float = PRIOR_DEVIATION,
    ) -> None:
        super().__init__()
        check_at_least(1, num_inputs=num_inputs, num_outputs=num_outputs)
        check_positive(deviation=deviation)
        self.num_inputs, self.num_outputs = num_inputs, num_outputs
        self.keep, self.deviation = check_keep(keep), deviation
        self.size = next_power_of_two(max(num_inputs, num_outputs))
        signs = random_signs(seed, torch.zeros(1, dtype=torch.long), 3, self.size)[0]
        self.register_buffer("signs", signs.to(torch.get_default_dtype()), persistent=False)
        self.deviations: nn.Parameter | None = None
        if learned:
            start = standard_normals(seed ^ (START_STREAM << 32), torch.arange(3), self.size)
            self.deviations = nn.Parameter(deviation * start.to(self.signs))

    @property
    def random(self) -> bool:
        """Whether deviations are masked."""
        return self.deviations is not None and self.keep < 1.0

    @property
    def known_kl(self) -> bool:  # type: ignore[override]
        """Whether ``kl`` is exact, which holds for fixed signs only."""
        return self.deviations is None

    def forward(self, x: Tensor) -> Tensor:
        """Products with the frequencies: (n, d) -> (n, r)."""
        x = functional.pad(x, (0, self.size - self.num_inputs))
        for number in (2, 1, 0):
            x = hadamard_transform(x * self._diagonal(number, len(x))) / math.sqrt(self.size)
        return math.sqrt(self.size) * x[:, : self.num_outputs]

    def _diagonal(self, number: int, rows: int) -> Tensor:
        """Diagonal of D_i: (D,), or (n, D) with a mask for each row."""
        if self.deviations is None:
            return self.signs[number]
        delta = self.deviations[number]
        if self.keep < 1.0:
            shape = (self.size,) if self.draws.shared else (rows, self.size)
            delta = delta * self.draws.mask(shape, self.keep, delta)
        return self.signs[number] + delta

    def kl(self) -> Tensor:
        """keep / (2 deviation^2) times the sum of squared deviations: KL up to a constant."""
        if self.deviations is None:
            return self.signs.new_zeros(())
        return 0.5 * self.keep / self.deviation**2 * self.deviations.square().sum()
