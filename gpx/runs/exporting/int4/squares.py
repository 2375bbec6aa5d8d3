"""A network with squares as activations and 4-bit weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpx.methods.direct.codes import QuantisedWeights
from gpx.runs.exporting.int4.forms import Form

DRAWS = """\
static void gpx_draws(const float *standard, float *draws)
{
    float here[GPX_WIDEST], next[GPX_WIDEST];
    int i, j, s, layer, into, weight;

    for (s = 0; s < GPX_SAMPLES; s++) {
        for (i = 0; i < GPX_INPUTS; i++)
            here[i] = standard[i];
        if (GPX_BIAS)
            here[GPX_INPUTS] = 1.0f;
        into = GPX_INPUTS + GPX_BIAS;
        weight = 0;
        for (layer = 0; layer < GPX_LAYERS; layer++) {
            for (j = 0; j < (int)gpx_widths[layer]; j++) {
                float sum = 0.0f;
                for (i = 0; i < into; i++, weight++) {
                    int code = GPX_CODE(s, weight);
                    if (code != GPX_ZERO)
                        sum += (float)(code - GPX_ZERO) * here[i];
                }
                sum *= gpx_steps[layer];
                next[j] = layer + 1 < GPX_LAYERS ? sum * sum : sum;
            }
            into = (int)gpx_widths[layer];
            for (i = 0; i < into; i++)
                here[i] = next[i];
        }
        draws[s] = gpx_scale[0] * here[0];
    }
}
"""


@dataclasses.dataclass(frozen=True)
class SquareNetwork(Form):
    """Layers of weighted sums, squared between layers, in float32.

    Attributes:
        scale (1,): of the output, float32.
        widths (l,): neurons of every layer.
        steps (l,): value of one step of a weight in every layer, float32.
        inputs (2,): number of inputs, and 1 if there is a bias (an input of 1), else 0.
    """

    scale: NDArray[np.float32]
    widths: NDArray[np.uint16]
    steps: NDArray[np.float32]
    inputs: NDArray[np.int32]
    types: ClassVar[Mapping[str, str]] = {
        "scale": "float",
        "widths": "unsigned short",
        "steps": "float",
    }

    def draws(self, x: NDArray[np.float32], weights: QuantisedWeights) -> NDArray[np.float32]:
        """As in ``Form``."""
        integers = weights.integers.numpy().astype(np.float32)  # (S, b)
        ones = np.ones((len(x), int(self.inputs[1])), dtype=np.float32)
        start = np.concatenate([x, ones], 1)
        here = [np.broadcast_to(column[:, None], (len(x), len(integers))) for column in start.T]
        used = 0
        for layer, width in enumerate(self.widths.tolist()):
            made = []
            for _ in range(width):
                total = np.zeros((len(x), len(integers)), dtype=np.float32)
                for value in here:
                    total += integers[:, used] * value
                    used += 1
                total *= self.steps[layer]
                made.append(total * total if layer + 1 < len(self.widths) else total)
            here = made
        return self.scale * here[0]

    def c_functions(self) -> str:
        """As in ``Form``."""
        bias = int(self.inputs[1])
        widest = max(int(self.inputs[0]) + 1, int(self.widths.max()))
        sizes = f"GPX_LAYERS = {len(self.widths)}, GPX_BIAS = {bias}, GPX_WIDEST = {widest}"
        return f"enum {{ {sizes} }};\n\n{DRAWS}"
