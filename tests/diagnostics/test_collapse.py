"""A model that explains all of the data as noise is named; one that does not is left alone."""

import pytest
import torch

from gpx.diagnostics.collapse import collapse_reason

TARGET = torch.tensor([-2.0, 0.0, 1.0, 1.0, 5.0], dtype=torch.float64)
VARIANCE = float(TARGET.var(correction=0))


@pytest.mark.parametrize(
    ("noise", "share", "message"),
    [
        (0.81, 1.0, "more than 80 % of the targets'"),
        (0.79, 0.04, "less than 5 % of the targets'"),
        (0.79, 0.06, ""),
    ],
)
def test_either_too_much_noise_or_too_little_signal(noise, share, message):
    fitted = share**0.5 * TARGET + 3.0  # an offset explains nothing
    found = collapse_reason(noise * VARIANCE, TARGET, fitted)
    assert message in found
    assert bool(found) == bool(message)
