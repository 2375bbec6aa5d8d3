"""Draws of discrete weights as 4-bit integers, two to a byte, and integer products with them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError, DTypeError

SPACING_TOLERANCE = 1e-9
"""Largest relative deviation of a gap between values that still count as evenly spaced."""

INT32_MAX = 2**31 - 1
"""Largest 32-bit integer."""


class QuantisedWeights(NamedTuple):
    """Draws of the weights: w = step * (code - zero).

    Attributes:
        codes (S, m): indices of the values, uint8, below 16.
        step: distance between neighbouring values.
        zero: code of the value zero.
    """

    codes: Tensor
    step: float
    zero: int

    @property
    def integers(self) -> Tensor:
        """The weights in units of ``step`` (S, m), int32."""
        return self.codes.int() - self.zero

    @property
    def packed(self) -> Tensor:
        """Two codes to a byte (S, ceil(m / 2)), the first in the low half."""
        return pack_codes(self.codes)

    @property
    def multiply_adds(self) -> int:
        """Number of non-zero weights: integer multiply-adds for one input under all draws."""
        return int((self.codes != self.zero).sum())

    def products(self, features: Tensor) -> Tensor:
        """Integer features (n, m) times integer weights: (n, S), int32.

        Raises:
            DTypeError: the features are not integers.
            ConfigError: a product may exceed 32 bits.
        """
        if features.is_floating_point():
            raise DTypeError(f"products takes integer features, got {features.dtype}")
        whole, weights = features.long(), self.integers.long()
        largest_row_sum = int(weights.abs().sum(1).max()) if weights.numel() else 0
        largest = (int(whole.abs().max()) if whole.numel() else 0) * largest_row_sum
        if largest > INT32_MAX:
            raise ConfigError(
                f"sums of {features.shape[1]} products may reach {largest}, beyond 32 bits; use "
                "fewer functions (num_basis=) or features of fewer bits"
            )
        return (whole @ weights.mT).int()


def quantise_draws(codes: Tensor, values: Tensor) -> QuantisedWeights:
    """Represent draws by integers, from indices ``codes`` (S, m) into ``values`` (k,).

    Raises:
        ConfigError: more than 16 values, values that are not evenly spaced, or none that is zero.
    """
    if len(values) > 16:
        raise ConfigError(
            f"4 bits hold 16 values and the weights have {len(values)}; use num_values=15"
        )
    places = (values == 0.0).nonzero().flatten()
    if not len(places):
        raise ConfigError("weights of 4 bits need zero among their values; use an odd num_values")
    gaps = values.diff()
    step = float(gaps.mean()) if len(gaps) else 1.0
    if len(gaps) and float((gaps - step).abs().max()) > SPACING_TOLERANCE * step:
        raise ConfigError(
            "weights of 4 bits need evenly spaced values: leave out values= and learn_values="
        )
    return QuantisedWeights(codes, step, int(places[0]))


def pack_codes(codes: Tensor) -> Tensor:
    """Pack 4-bit codes (S, m) two to a byte: (S, ceil(m / 2)), the first in the low half.

    Raises:
        ConfigError: a code above 15.
    """
    if codes.numel() and int(codes.max()) > 15:
        raise ConfigError(f"4 bits hold codes up to 15, got {int(codes.max())}; use num_values=15")
    padded = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
    return padded[:, 0::2] | (padded[:, 1::2] << 4)


def unpack_codes(packed: Tensor, num: int) -> Tensor:
    """Undo ``pack_codes``: the ``num`` codes of every row, (S, num), uint8."""
    halves = torch.stack([packed & 15, packed >> 4], dim=2)
    return halves.flatten(1)[:, :num]
