"""Blocks as cells of centres."""

import itertools

import pytest
import torch

from gpx.errors import DataError, ShapeError
from gpx.inference.partition import Partition
from gpx.kernels import RBF


def inputs(n=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, generator=generator, dtype=torch.float64)


def test_every_point_belongs_to_its_nearest_centre_in_the_units_given():
    x, centres = inputs(), inputs(6, seed=1)
    unit = torch.tensor([0.2, 3.0], dtype=torch.float64)
    partition = Partition()
    partition.place(centres, unit)
    assert torch.equal(partition.labels(x), torch.cdist(x / unit, centres / unit).argmin(1))


def test_the_order_brings_blocks_together_and_keeps_rows_within():
    x = inputs()
    partition = Partition()
    partition.place(
        torch.cat([inputs(4, seed=1), torch.full((1, 2), 90.0).double()]), torch.ones(2)
    )
    order, bounds = partition.order(x)
    labels = partition.labels(x)
    assert sorted(order.tolist()) == list(range(50))
    assert bounds[0] == 0
    assert bounds[-2:] == [50, 50]  # the last block is empty
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        rows = order[start:stop]
        assert (labels[rows] == number).all()
        assert (rows.diff() > 0).all()


def test_clusters_are_taken_at_the_lengthscales_of_the_kernel():
    x = inputs(200)
    kernel = RBF(2, lengthscale=[1e-2, 1e2]).double()
    partition = Partition()
    partition.place_by_kmeans(x, kernel, 4, generator=torch.Generator().manual_seed(0))
    labels = partition.labels(x)
    # only the first input counts: blocks are intervals of it
    ranges = sorted(
        (float(x[labels == k, 0].min()), float(x[labels == k, 0].max())) for k in range(4)
    )
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))


def test_what_does_not_fit_is_said():
    partition = Partition()
    kernel = RBF(2).double()
    with pytest.raises(DataError, match="51"):
        partition.place_by_kmeans(inputs(), kernel, 51)
    partition.place_by_kmeans(inputs(), kernel, 3)
    with pytest.raises(ShapeError, match="inputs have 3 columns and the blocks were made for 2"):
        partition.labels(torch.zeros(4, 3).double())
