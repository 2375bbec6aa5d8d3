"""Evaluation of the latent draws from inputs and 4-bit weights, in NumPy and in C."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from gpx.methods.direct.codes import QuantisedWeights
from gpx.runs.exporting.int4.c_source import array

FULL = 32767
"""The integer that represents the largest value of a function."""

SUMS = """\
static void gpx_draws(const float *standard, float *draws)
{
    int sums[GPX_SAMPLES] = {0};
    int j, s;

    for (j = 0; j < GPX_FUNCTIONS; j++) {
        int feature = gpx_feature(standard, j);
        for (s = 0; s < GPX_SAMPLES; s++) {
            int code = GPX_CODE(s, j);
            if (code != GPX_ZERO)
                sums[s] += (code - GPX_ZERO) * feature;
        }
    }
    for (s = 0; s < GPX_SAMPLES; s++)
        draws[s] = gpx_scale[0] * (float)sums[s];
}
"""


class Form(ABC):
    """Latent draws (n, S) from standardised inputs (n, d), by the same steps in NumPy and in C.

    A subclass is a frozen dataclass of arrays, which are stored in the archive and as C tables.
    """

    given: ClassVar[bool] = False
    """Whether the caller gives values of the basis functions instead of inputs."""
    types: ClassVar[Mapping[str, str]] = {}
    """C type of every array that becomes a table."""

    @abstractmethod
    def draws(self, x: NDArray[np.float32], weights: QuantisedWeights) -> NDArray[np.float32]:
        """Latent draws (n, S) without the offset, in units of the target."""

    @abstractmethod
    def c_functions(self) -> str:
        """C source of ``gpx_draws`` and the functions it calls."""

    def c_inputs(self, count: int) -> str:
        """Description of the argument of the C function."""
        return f"x: {count} inputs in their own units."

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def c_tables(self) -> str:
        """The arrays in C, each named ``gpx_`` and its name."""
        found = self.arrays()
        return "".join(array(kind, f"gpx_{name}", found[name]) for name, kind in self.types.items())

    @property
    def table_bytes(self) -> int:
        """Size of the tables in C."""
        sizes = {"float": 4, "short": 2, "unsigned short": 2, "unsigned char": 1}
        found = self.arrays()
        return sum(sizes[kind] * found[name].size for name, kind in self.types.items())


@dataclasses.dataclass(frozen=True)
class Features(Form):
    """Basis functions in 16 bits times weights in 4 bits, summed in 32-bit integers.

    Attributes:
        scale (1,): converts a sum to units of the target, float32.
        factor (k,): relative size of every function, integers up to 32767; empty if all are equal.
    """

    scale: NDArray[np.float32]
    factor: NDArray[np.int16]

    @abstractmethod
    def unit(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The functions (n, k) before their factors."""

    @abstractmethod
    def c_unit(self) -> str:
        """C source of ``static int gpx_unit(const float *standard, int j)``."""

    def features(self, x: NDArray[np.float32]) -> NDArray[np.int32]:
        """The functions (n, k) at standardised inputs (n, d), as integers up to 32767."""
        found = self.unit(x)
        if len(self.factor):
            found = divided(found * self.factor.astype(np.int64), FULL)
        return found.astype(np.int32)

    def draws(self, x: NDArray[np.float32], weights: QuantisedWeights) -> NDArray[np.float32]:
        """As in ``Form``; raises ConfigError if a sum may overflow 32 bits."""
        sums = weights.products(torch.from_numpy(self.features(x))).numpy()
        return self.scale * sums.astype(np.float32)

    def c_functions(self) -> str:
        """As in ``Form``."""
        times = f" * gpx_factor[j] / {FULL}" if len(self.factor) else ""
        feature = (
            "static int gpx_feature(const float *standard, int j)\n"
            f"{{\n    return gpx_unit(standard, j){times};\n}}\n\n"
        )
        return f"{self.c_unit()}\n{feature}{SUMS}"

    def c_tables(self) -> str:
        """As in ``Form``."""
        own = array("float", "gpx_scale", self.scale)
        if len(self.factor):
            own += array("short", "gpx_factor", self.factor)
        return own + super().c_tables()

    @property
    def table_bytes(self) -> int:
        """As in ``Form``."""
        return 4 + 2 * len(self.factor) + super().table_bytes


def divided(values: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """Integer quotients, rounded towards zero as in C."""
    return np.sign(values) * (np.abs(values) // by)


def interpolated(
    low: NDArray[Any], high: NDArray[Any], part: NDArray[np.int64], whole: int
) -> NDArray[np.int64]:
    """Linear interpolation, at ``part / whole`` between two entries; rounded towards zero."""
    return divided(low.astype(np.int64) * (whole - part) + high.astype(np.int64) * part, whole)
