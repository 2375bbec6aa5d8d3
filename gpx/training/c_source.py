"""The C function of a predictor in integers: C99, no header, no library."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

TEMPLATE = """\
/* Predictions of a Gaussian process with discrete weights: {samples} draws, {kept} functions.
   void gpx_predict(const float *x, float *mean, float *variance)
   x: {inputs} inputs in their own units; mean, variance: of the target, noise included.
   C99; nothing to include or link. int must have 32 bits. Compile without -ffast-math and with
   -ffp-contract=off for the same bits on every machine. */

enum {{ GPX_SAMPLES = {samples}, GPX_FUNCTIONS = {kept}, GPX_INPUTS = {inputs},
       GPX_ROW = {row}, GPX_ZERO = {zero} }};

static const short gpx_wave[{waves}] = {{
{wave}
}};
static const float gpx_input_mean[GPX_INPUTS] = {{
{input_mean}
}};
static const float gpx_input_rate[GPX_INPUTS] = {{
{input_rate}
}};
static const float gpx_turns[{num_turns}] = {{
{turns}
}};
static const unsigned char gpx_sine[{num_sines}] = {{
{sine}
}};
/* two weights to a byte, the first in the low half; weight = code - GPX_ZERO */
static const unsigned char gpx_codes[{num_codes}] = {{
{codes}
}};

void gpx_predict(const float *x, float *mean, float *variance)
{{
    float standard[GPX_INPUTS];
    int sums[GPX_SAMPLES] = {{0}};
    float draw, total = 0.0f, spread = 0.0f;
    int i, j, s;

    for (i = 0; i < GPX_INPUTS; i++)
        standard[i] = (x[i] - gpx_input_mean[i]) * gpx_input_rate[i];
    for (j = 0; j < GPX_FUNCTIONS; j++) {{
        float turned = gpx_sine[j] ? 0.75f : 0.0f;
        int phase, place, part, cosine;
        for (i = 0; i < GPX_INPUTS; i++)
            turned += standard[i] * gpx_turns[j * GPX_INPUTS + i];
        /* beyond 2^31 turns a float knows no phase */
        turned = turned > -2.0e9f && turned < 2.0e9f ? turned - (float)(int)turned : 0.0f;
        phase = (int)((unsigned)(int)(turned * 65536.0f) & 65535u);
        place = phase >> 8;
        part = phase & 255;
        cosine = (gpx_wave[place] * (256 - part) + gpx_wave[place + 1] * part) / 256;
        for (s = 0; s < GPX_SAMPLES; s++) {{
            int code = (gpx_codes[s * GPX_ROW + j / 2] >> (j % 2 ? 4 : 0)) & 15;
            if (code != GPX_ZERO)
                sums[s] += (code - GPX_ZERO) * cosine;
        }}
    }}
    for (s = 0; s < GPX_SAMPLES; s++)
        total += {offset}f + {scale}f * (float)sums[s];
    *mean = total / (float)GPX_SAMPLES;
    for (s = 0; s < GPX_SAMPLES; s++) {{
        draw = {offset}f + {scale}f * (float)sums[s] - *mean;
        spread += draw * draw;
    }}
    *variance = spread / (float)GPX_SAMPLES + {noise}f;
}}
"""


def c_source(
    *,
    packed: NDArray[np.uint8],
    zero: int,
    turns: NDArray[np.float32],
    sine: NDArray[np.bool_],
    wave: NDArray[np.int16],
    input_mean: NDArray[np.float32],
    input_rate: NDArray[np.float32],
    constants: Mapping[str, np.float32],
) -> str:
    """Tables and the function ``gpx_predict``; the arguments are as ``Int4Predictor`` has them.

    Floats are written with nine digits, which give the same float32 again.
    """
    kept, inputs = turns.shape
    return TEMPLATE.format(
        samples=len(packed),
        kept=kept,
        inputs=inputs,
        row=packed.shape[1],
        zero=zero,
        waves=len(wave),
        wave=_lines(str(v) for v in wave),
        input_mean=_lines(map(_float, input_mean)),
        input_rate=_lines(map(_float, input_rate)),
        # C has no arrays of nothing
        num_turns=max(1, turns.size),
        turns=_lines(map(_float, turns.ravel())) or "0",
        num_sines=max(1, kept),
        sine=_lines(str(int(v)) for v in sine) or "0",
        num_codes=max(1, packed.size),
        codes=_lines(str(v) for v in packed.ravel()) or "0",
        **{name.lower(): _float(value, suffix="") for name, value in constants.items()},
    )


def _float(value: np.float32, suffix: str = "f") -> str:
    return f"{float(value):.8e}{suffix}"


def _lines(words: object) -> str:
    made = list(words)  # type: ignore[call-overload]
    return ",\n".join("    " + ", ".join(made[i : i + 12]) for i in range(0, len(made), 12))
