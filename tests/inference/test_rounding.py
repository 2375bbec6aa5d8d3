"""Rounding of certificates: each of its parts alone."""

import torch

from gpx.inference.rounding import EPS, evidence_rounding


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
