"""Kernels that learn tied targets by heart."""

import math

import torch

from gpx.runs.choosing.kernel_fit import Fit
from gpx.runs.choosing.learned_ties import without_learned_ties


def test_kernels_that_learn_tied_targets_by_heart_are_left_out():
    def fit(name, score, error):
        return Fit(name, {}, {}, 0.0, 0.0, score, 3, error=error)

    fits = [fit("heart", 50.0, 0.9), fit("sound", 10.0, 0.55), fit("near", 9.0, 0.6)]
    fits += [fit("without", -math.inf, None)]
    y = torch.randn(100, generator=torch.Generator().manual_seed(0)).double()
    assert without_learned_ties(fits, y) == fits
    y[:20] = -0.7  # incomes of zero
    assert [fit.name for fit in without_learned_ties(fits, y)] == ["sound", "near", "without"]
    both = torch.stack([torch.linspace(0, 1, 100).double(), y], 1)
    both[40:, 1] = torch.nan  # 20 of the 40 values that are there
    assert len(without_learned_ties(fits, both)) == 3
    assert without_learned_ties(fits[3:], y) == fits[3:]
