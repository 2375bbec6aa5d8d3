"""Rounding of certificates: each of its parts alone."""

import torch

from gpx.inference.rounding import EPS, entry_rounding, evidence_rounding
from gpx.kernels import RBF
from gpx.kernels.over_axes import MultiOutput


def test_parts_of_the_evidences_rounding():
    """0.5 (matrix + logarithms + sum of y^T K^{-1} y), a part at a time; n = 16."""

    def found(**given):
        values = {"size": 0.0, "noise": 1.0, "quadratic": 0.0, "entry": 0.0, "factor": 0.0}
        values |= given
        return float(evidence_rounding(16, **{k: torch.tensor(v) for k, v in values.items()}))

    logs = 0.5 * EPS * 16 * 2.0
    assert abs(found() / logs - 1.0) < 1e-6
    assert abs((found(quadratic=1e3) - logs) / (0.5 * EPS * 1e3) - 1.0) < 1e-5
    assert abs((found(factor=1e-3, noise=1.0) - logs) / (0.5 * 1e-3) - 1.0) < 1e-5
    assert abs((found(entry=1e-3) - logs) / (0.5 * 4.0 * 1e-3 * 4.0) - 1.0) < 1e-5
    assert abs((found(size=1e3) - logs) / (0.5 * EPS * 1e3 * 4.0) - 1.0) < 1e-5


@torch.no_grad()
def test_numbers_of_outputs_are_not_shifted():
    """Rounding of the other columns is measured as without the outputs."""
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e3
    numbers = torch.arange(30.0, dtype=torch.float64) % 3
    kernel = MultiOutput("rbf", 3, 3).double()
    found = entry_rounding(kernel, torch.cat([x, numbers[:, None]], 1))
    assert float(found) >= 0.5 * float(entry_rounding(RBF(2).double(), x)) > 0.0


@torch.no_grad()
def test_rows_are_sampled_from_more_than_float32_can_count():
    x = torch.zeros(1, 1, dtype=torch.float64).expand(2**24 + 4, 1)
    assert float(entry_rounding(RBF().double(), x)) == 0.0
