"""The points at which a run is certified."""

from types import SimpleNamespace

import torch

from gpx.runs.certification import NUM_POINTS, chosen_points


def test_points_are_chosen_from_more_rows_than_float32_can_count():
    rows = torch.zeros(1, 2).expand(2**24 + 4, 2)
    data = SimpleNamespace(test_x=rows, num_test=len(rows), train_x=rows)
    assert chosen_points(data).shape == (NUM_POINTS, 2)
