"""How a predictor gets the draws of its latent function from inputs and 4-bit weights."""

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
"""The integer that stands for a function's largest value."""

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
    """Draws (n, S) from standardised inputs (n, d), in NumPy and as C, step by step alike.

    A subclass is a frozen dataclass of arrays, which the archive holds and C has as tables.
    """

    given: ClassVar[bool] = False
    """Whether the caller has the functions' values in the place of inputs."""
    types: ClassVar[Mapping[str, str]] = {}
    """C type of every array, where it has a table."""

    @abstractmethod
    def draws(self, x: NDArray[np.float32], weights: QuantisedWeights) -> NDArray[np.float32]:
        """Latent draws (n, S) less the offset, in the target's units."""

    @abstractmethod
    def c_functions(self) -> str:
        """C of ``gpx_draws`` and what it calls."""

    def c_inputs(self, count: int) -> str:
        """What the C function takes, in words."""
        return f"x: {count} inputs in their own units."

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def c_tables(self) -> str:
        """The arrays in C, each ``gpx_`` and its name."""
        found = self.arrays()
        return "".join(array(kind, f"gpx_{name}", found[name]) for name, kind in self.types.items())

    @property
    def table_bytes(self) -> int:
        """Of the tables in C."""
        sizes = {"float": 4, "short": 2, "unsigned short": 2, "unsigned char": 1}
        found = self.arrays()
        return sum(sizes[kind] * found[name].size for name, kind in self.types.items())


@dataclasses.dataclass(frozen=True)
class Features(Form):
    """Functions in 16 bits times weights in 4: sums of 32-bit integers.

    Attributes:
        scale (1,): of a sum, float32.
        factor (k,): of every function, as integers up to 32767; empty where all are alike.
    """

    scale: NDArray[np.float32]
    factor: NDArray[np.int16]

    @abstractmethod
    def unit(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The functions (n, k) before their factors."""

    @abstractmethod
    def c_unit(self) -> str:
        """C of ``static int gpx_unit(const float *standard, int j)``."""

    def features(self, x: NDArray[np.float32]) -> NDArray[np.int32]:
        """The functions (n, k) at standardised inputs (n, d), as integers up to 32767."""
        found = self.unit(x)
        if len(self.factor):
            found = divided(found * self.factor.astype(np.int64), FULL)
        return found.astype(np.int32)

    def draws(self, x: NDArray[np.float32], weights: QuantisedWeights) -> NDArray[np.float32]:
        """As in ``Form``; raises ConfigError where a sum may leave 32 bits."""
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
    """Integer quotients towards zero, as C has them."""
    return np.sign(values) * (np.abs(values) // by)


def blended(
    low: NDArray[Any], high: NDArray[Any], part: NDArray[np.int64], whole: int
) -> NDArray[np.int64]:
    """Between two entries of a table, ``part`` of ``whole`` on the way; towards zero."""
    return divided(low.astype(np.int64) * (whole - part) + high.astype(np.int64) * part, whole)
