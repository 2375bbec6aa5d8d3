"""Basis functions that the caller evaluates, for bases without a closed form."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpx.methods.direct.codes import QuantisedWeights
from gpx.runs.exporting.int4.forms import Form

DRAWS = """\
static void gpx_draws(const float *features, float *draws)
{
    int j, s;

    for (s = 0; s < GPX_SAMPLES; s++)
        draws[s] = 0.0f;
    for (j = 0; j < GPX_FUNCTIONS; j++) {
        float feature = gpx_unit[j] * features[j];
        for (s = 0; s < GPX_SAMPLES; s++) {
            int code = GPX_CODE(s, j);
            if (code != GPX_ZERO)
                draws[s] += (float)(code - GPX_ZERO) * feature;
        }
    }
}
"""


@dataclasses.dataclass(frozen=True)
class GivenFeatures(Form):
    """Values of basis functions, given by the caller as floats, times 4-bit weights.

    Attributes:
        unit (k,): value of one step of each weight, float32.
        columns (k,): indices of the basis functions to be given, in this order.
    """

    unit: NDArray[np.float32]
    columns: NDArray[np.int32]
    given: ClassVar[bool] = True
    types: ClassVar[Mapping[str, str]] = {"unit": "float"}

    def draws(self, x: NDArray[np.float32], weights: QuantisedWeights) -> NDArray[np.float32]:
        """As in ``Form``, but from values (n, k) of the functions."""
        found = np.zeros((len(x), len(weights.codes)), dtype=np.float32)
        for number, steps in enumerate(weights.integers.numpy().T.astype(np.float32)):
            found += (self.unit[number] * x[:, number])[:, None] * steps
        return found

    def c_inputs(self, count: int) -> str:
        """As in ``Form``."""
        wanted = textwrap.fill(" ".join(map(str, self.columns)), 90, subsequent_indent="   ")
        return (
            f"features: values at {count} standardised inputs of these functions of the basis, "
            f"counted\n   from 0: {wanted}."
        )

    def c_functions(self) -> str:
        """As in ``Form``."""
        return DRAWS
