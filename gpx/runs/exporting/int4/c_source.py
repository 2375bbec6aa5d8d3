"""The C function of an integer predictor: C99, without headers or libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEAD = """\
/* Predictions of a model of discrete weights: {samples} draws, {kept} {what}.
   {signature}
   {inputs_are}
   mean, variance: of the target, {outcome}.
   C99; nothing to include or link. int must have 32 bits. Compile without -ffast-math and with
   -ffp-contract=off for the same bits on every machine. */

enum {{ GPX_SAMPLES = {samples}, GPX_FUNCTIONS = {kept}, GPX_INPUTS = {inputs},
       GPX_ROW = {row}, GPX_ZERO = {zero} }};

/* two weights to a byte, the first in the low half; weight = code - GPX_ZERO */
#define GPX_CODE(s, j) ((gpx_codes[(s) * GPX_ROW + (j) / 2] >> ((j) % 2 ? 4 : 0)) & 15)
"""

STANDARDISED = """
    float standard[GPX_INPUTS];

    for (i = 0; i < GPX_INPUTS; i++)
        standard[i] = (x[i] - gpx_input_mean[i]) * gpx_input_rate[i];
    gpx_draws(standard, draws);
"""

REAL = """
{signature}
{{
    float draws[GPX_SAMPLES], total = 0.0f, spread = 0.0f;
    int {counters};
{begin}
    for (s = 0; s < GPX_SAMPLES; s++)
        total += {offset} + draws[s];
    *mean = total / (float)GPX_SAMPLES;
    for (s = 0; s < GPX_SAMPLES; s++) {{
        float draw = {offset} + draws[s] - *mean;
        spread += draw * draw;
    }}
    *variance = spread / (float)GPX_SAMPLES + {noise};
}}
"""

CLASSES = """
static float gpx_probability(float value)
{{
    float at = (value < 0.0f ? -value : value) * (float)GPX_PER_UNIT;
    int place = at < (float)GPX_LINK ? (int)at : GPX_LINK;
    float found = gpx_link[place];
    if (place < GPX_LINK)
        found += (gpx_link[place + 1] - found) * (at - (float)place);
    return value < 0.0f ? 1.0f - found : found;
}}

{signature}
{{
    float draws[GPX_SAMPLES], total = 0.0f;
    int {counters};
{begin}
    for (s = 0; s < GPX_SAMPLES; s++)
        total += gpx_probability({offset} + draws[s]);
    *mean = total / (float)GPX_SAMPLES;
    *variance = *mean * (1.0f - *mean);
}}
"""


def array(kind: str, name: str, values: NDArray[Any]) -> str:
    """An array in C. Nine digits reproduce a float32; an empty array becomes a single 0."""
    flat = values.ravel()
    words = [number(v) for v in flat] if kind == "float" else [str(int(v)) for v in flat]
    lines = ",\n".join("    " + ", ".join(words[i : i + 12]) for i in range(0, len(words), 12))
    return f"static const {kind} {name}[{max(1, len(words))}] = {{\n{lines or '    0'}\n}};\n"


def number(value: np.float32) -> str:
    """A float32 constant in C."""
    return f"{float(value):.8e}f"


def signature(given: bool) -> str:
    """Signature of the C function; ``given``: it takes values of basis functions."""
    if given:
        return "void gpx_predict_features(const float *features, float *mean, float *variance)"
    return "void gpx_predict(const float *x, float *mean, float *variance)"


def ending(
    *,
    given: bool,
    offset: np.float32,
    noise: np.float32,
    link: NDArray[np.float32] | None,
    per_unit: int,
) -> str:
    """The C function that turns the draws of ``gpx_draws`` into mean and variance.

    Args:
        given: whether it takes values of basis functions instead of inputs.
        offset, noise: mean offset and noise variance, in units of the target.
        link: table of the logistic function from 0 on; None without classes.
        per_unit: entries of that table per unit.
    """
    begin = "\n    gpx_draws(features, draws);\n" if given else STANDARDISED
    counters = "s" if given else "i, s"
    words = {"signature": signature(given), "counters": counters, "begin": begin.rstrip("\n")}
    words["offset"] = f"({number(offset)})"
    if link is None:
        return REAL.format(**words, noise=number(noise))
    sizes = f"enum {{ GPX_LINK = {len(link) - 1}, GPX_PER_UNIT = {per_unit} }};\n"
    return f"\n{sizes}{array('float', 'gpx_link', link)}{CLASSES.format(**words)}"
