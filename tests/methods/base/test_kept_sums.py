"""Sums that a module keeps: they come back, stay in float64 and finite, and reset what follows."""

from dataclasses import replace

import pytest
import torch

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import DataError
from gpx.methods.base.kept_sums import KeptSums


class Kept(KeptSums):
    """Nothing but sums, with one further total."""

    data_sized = ("gram", "projected")
    derived = ("factor",)

    def __init__(self):
        super().__init__()
        self.register_data_sized()
        self.register_buffer("totals", torch.tensor([0.0, 0.0, 0.7], dtype=torch.float64))
        self.factor = None


def statistics(n=12, m=5):
    draws = torch.Generator().manual_seed(0)
    phi = torch.randn(n, m, generator=draws, dtype=torch.float64)
    y = torch.randn(n, generator=draws, dtype=torch.float64)
    return SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


@pytest.mark.parametrize("cast", [lambda kept: kept, KeptSums.float])
def test_statistics_come_back_and_leave_further_totals(cast):
    kept, sums = Kept(), statistics()
    kept.statistics = sums
    found = cast(kept).statistics
    for part in ("gram", "projected", "squared"):
        assert torch.equal(getattr(found, part), getattr(sums, part))
    assert found.num_data == 12
    assert float(kept.totals[2]) == 0.7


def test_new_statistics_reset_what_is_derived_from_them():
    kept = Kept()
    kept.factor = torch.ones(5, 5)
    kept.statistics = statistics()
    assert kept.factor is None


@pytest.mark.parametrize("part", ["gram", "projected", "squared"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_statistics_of_nan_are_refused(part, value):
    kept = Kept()
    kept.statistics = before = statistics()
    with pytest.raises(DataError, match="NaN or infinite"):
        kept.statistics = replace(before, **{part: torch.full_like(getattr(before, part), value)})
    assert torch.equal(kept.gram, before.gram)
