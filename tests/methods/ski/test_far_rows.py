"""A row far from all others makes a grid coarse where they are, which is said."""

import re
import warnings

import numpy as np
import pytest
import torch

import gpx
from gpx.methods.ski.far_rows import first_narrow_axis


def rows(count=200):
    draws = np.random.default_rng(0)
    x = draws.uniform(-1.0, 1.0, (count, 2))
    return x, np.sin(3.0 * x[:, 0]) + 0.1 * draws.normal(size=count)


def fit(x, y, *options):
    quick = ("approx=ski", "kernel=rbf", "trainer.max_steps=1", "trainer.baselines=false")
    return gpx.fit(x, y, *quick, "approx.grid_size=24", *options, keep=False, quiet=True)


def test_the_column_and_the_row_are_named():
    x, y = rows()
    x[17, 1] = 1e4
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit(x, y, "data.test_fraction=0")
    (line,) = [str(each.message) for each in warned if "of the grid along" in str(each.message)]
    assert "of the grid along input column 2, some 1 of its 24 points, as training row" in line
    assert int(re.search(r"training row (\d+)", line)[1]) == 17
    assert "approx.grid=kmeans" in line
    assert "grid_size" in line


@pytest.mark.parametrize("options", [(), ("approx.grid=kmeans", "approx.interpolation=linear")])
def test_nothing_is_said_of_rows_that_use_the_grid_or_of_points_that_follow_them(options):
    x, y = rows()
    if options:
        x[17, 1] = 1e4
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit(x, y, *options)
    assert not [each for each in warned if "of the grid along" in str(each.message)]


def test_shares_of_an_axis():
    line = torch.linspace(0.0, 1.0, 1_001).double()
    both = torch.stack([line, line], 1)
    assert first_narrow_axis(both, both) is None
    wide = torch.tensor([[-1.0, -30.0], [2.0, 30.0]]).double()
    axis, share, row = first_narrow_axis(both, wide)
    assert axis == 1
    assert share == pytest.approx(0.98 / 60.0)
    assert row in (0, 1_000)
    both[400, 0] = -500.0
    axis, share, row = first_narrow_axis(both, both)
    assert (axis, row) == (0, 400)
    assert first_narrow_axis(both[:10], both) is None
    indicator = torch.zeros(1_000, 1).double()
    indicator[3] = 1.0
    assert first_narrow_axis(indicator, indicator) is None  # a column of two values
