"""Cosines of linear functions of the inputs, from a table of one period."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpx.bases.closed_forms import Waves
from gpx.runs.exporting.int4.forms import FULL, Features, interpolated

NUM_CELLS = 256
"""Cells of the table of one period of the cosine."""

UNIT = """\
static int gpx_unit(const float *standard, int j)
{
    float turned = gpx_start[j] * 0.25f;
    int i, phase, place, part;

    for (i = 0; i < GPX_INPUTS; i++)
        turned += standard[i] * gpx_turns[j * GPX_INPUTS + i];
    /* beyond 2^31 turns a float has no fraction left */
    turned = turned > -2.0e9f && turned < 2.0e9f ? turned - (float)(int)turned : 0.0f;
    phase = (int)((unsigned)(int)(turned * 65536.0f) & 65535u);
    place = phase >> 8;
    part = phase & 255;
    return (gpx_wave[place] * (256 - part) + gpx_wave[place + 1] * part) / 256;
}
"""


@dataclasses.dataclass(frozen=True)
class WaveFeatures(Features):
    """cos(2 pi (turns . x + start / 4)), with an error of at most 8e-5.

    Attributes:
        turns (k, d): in turns per standardised input, float32.
        start (k,): in quarters of a turn: 0 for a cosine, 3 for a sine.
        wave (257,): one period of the cosine and its first entry again.
    """

    turns: NDArray[np.float32]
    start: NDArray[np.uint8]
    wave: NDArray[np.int16]
    types: ClassVar[Mapping[str, str]] = {
        "turns": "float",
        "start": "unsigned char",
        "wave": "short",
    }

    @classmethod
    def of(cls, form: Waves, scale: NDArray[np.float32], factor: NDArray[np.int16]) -> WaveFeatures:
        """Tables of all functions of a form."""
        angle = 2.0 * math.pi * np.arange(NUM_CELLS + 1) / NUM_CELLS
        start = (4.0 * form.start).round().byte().numpy()
        wave = np.rint(FULL * np.cos(angle)).astype(np.int16)
        return cls(scale, factor, form.turns.float().numpy(), start, wave)

    def unit(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """As in ``Features``."""
        start = self.start.astype(np.float32) * np.float32(0.25)
        turned = np.broadcast_to(start, (len(x), len(start))).copy()
        for column in range(self.turns.shape[1]):  # in the order of the C function
            turned += x[:, column : column + 1] * self.turns[:, column]
        turned -= np.trunc(turned)
        phase = np.trunc(turned * np.float32(65536.0)).astype(np.int64) & 65535
        place, part = phase >> 8, phase & 255
        return interpolated(self.wave[place], self.wave[place + 1], part, 256)

    def c_unit(self) -> str:
        """As in ``Features``."""
        return UNIT
