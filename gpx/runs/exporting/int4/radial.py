"""Functions of the distance to a centre, from a table indexed by the bits of a float."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpx.bases.closed_forms import Radial
from gpx.runs.exporting.int4.forms import FULL, Features, interpolated

ENTRIES_PER_OCTAVE = 32
"""Entries of the table between two powers of two."""

MAX_OCTAVES = 40
"""The table covers squared distances from 2^-40 to 2^40 at most."""

UNIT_FRACTION = 65536
"""Integer that represents the distance of two entries in interpolation."""

UNIT = """\
static int gpx_unit(const float *standard, int j)
{
    union { float value; unsigned bits; } square;
    int i, place, part;

    square.value = 0.0f;
    for (i = 0; i < GPX_INPUTS; i++) {
        float off = standard[i] - gpx_centres[j * GPX_INPUTS + i];
        square.value += off * off;
    }
    /* exponent and five leading bits of the mantissa are the index, the other bits the fraction */
    place = (int)(square.bits >> 18) - GPX_FIRST;
    part = (int)((square.bits >> 2) & 65535u);
    if (place < 0)
        return gpx_profile[0];
    if (place >= GPX_ENTRIES - 1)
        return gpx_profile[GPX_ENTRIES - 1];
    return (gpx_profile[place] * (65536 - part) + gpx_profile[place + 1] * part) / 65536;
}
"""


@dataclasses.dataclass(frozen=True)
class RadialFeatures(Features):
    """h(|x - centre|^2), to 1e-4 of h(0).

    Attributes:
        centres (k, d): in units of the lengthscales, float32.
        profile (entries,): h at squared distances whose float32 bit patterns differ by 2^18.
        first (1,): bit pattern of the first squared distance, divided by 2^18.
    """

    centres: NDArray[np.float32]
    profile: NDArray[np.int16]
    first: NDArray[np.int32]
    types: ClassVar[Mapping[str, str]] = {"centres": "float", "profile": "short"}

    @classmethod
    def of(
        cls, form: Radial, scale: NDArray[np.float32], factor: NDArray[np.int16]
    ) -> RadialFeatures:
        """Tables of all functions of a form."""
        powers = torch.arange(-MAX_OCTAVES, MAX_OCTAVES + 1, dtype=torch.float64)
        top = height(form)
        at_powers = form.profile(powers.exp2().unsqueeze(1)).squeeze(1) / top
        near = powers[(1.0 - at_powers).abs() < 0.5 / FULL]
        far = powers[at_powers.abs() > 0.5 / FULL]
        low = int(near.max()) if len(near) else -MAX_OCTAVES
        high = min(MAX_OCTAVES, int(far.max()) + 1) if len(far) else low + 1
        first, last = (127 + low) * ENTRIES_PER_OCTAVE, (127 + high) * ENTRIES_PER_OCTAVE
        squares = (np.arange(first, last + 1, dtype=np.uint32) << 18).view(np.float32)
        values = form.profile(torch.from_numpy(squares.astype(np.float64)).unsqueeze(1)) / top
        profile = (FULL * values.squeeze(1)).round().short().numpy()
        kept = form.centres.float().numpy()
        return cls(scale, factor, kept, profile, np.array([first], dtype=np.int32))

    def unit(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """As in ``Features``."""
        square = np.zeros((len(x), len(self.centres)), dtype=np.float32)
        for column, centres in zip(x.T, self.centres.T, strict=True):
            off = column[:, None] - centres
            square += off * off
        bits = square.view(np.uint32).astype(np.int64)
        place, part = (bits >> 18) - int(self.first[0]), (bits >> 2) & 65535
        last = len(self.profile) - 1
        inside = np.clip(place, 0, last - 1)
        between = interpolated(self.profile[inside], self.profile[inside + 1], part, UNIT_FRACTION)
        ends = np.where(place < 0, self.profile[0], self.profile[last]).astype(np.int64)
        return np.where((place < 0) | (place >= last), ends, between)

    def c_unit(self) -> str:
        """As in ``Features``."""
        sizes = f"GPX_FIRST = {int(self.first[0])}, GPX_ENTRIES = {len(self.profile)}"
        return f"enum {{ {sizes} }};\n\n{UNIT}"


def height(form: Radial) -> Tensor:
    """h(0) as a tensor ()."""
    return form.profile(form.centres.new_zeros(1, 1)).squeeze()
