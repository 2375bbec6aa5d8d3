"""Partitions: every row in one block, sizes, nearest blocks, and what cannot be partitioned."""

import itertools

import pytest
import torch
from draws import draws

from gpx.errors import ConfigError, DataError, ShapeError
from gpx.inducing import Blocks, ClusterBlocks, ColumnBlocks, Given, RandomBlocks, require_partition
from gpx.inducing.partition import Regions
from gpx.kernels import RBF


def inputs(n=103, d=3):
    return torch.randn(n, d, generator=draws(4), dtype=torch.float64)


def regions(blocks):
    made = Regions()
    made.place(blocks.centres, blocks.weights)
    return made


KERNEL = RBF(3, [0.5, 1.0, 2.0]).double()


@pytest.mark.parametrize("partition", [RandomBlocks(), ClusterBlocks()])
@pytest.mark.parametrize(("n", "count"), [(103, 7), (96, 8), (9, 9), (20, 1)])
def test_sizes_are_equal_up_to_one_row(partition, n, count):
    x = inputs(n)
    blocks = partition(x, KERNEL, count, generator=draws())
    sizes = blocks.sizes
    assert len(sizes) == count
    assert int(sizes.sum()) == n
    assert int(sizes.max() - sizes.min()) <= 1
    assert torch.equal(blocks.labels[blocks.order], torch.arange(count).repeat_interleave(sizes))
    for block in range(count):
        torch.testing.assert_close(blocks.centres[block], x[blocks.labels == block].mean(0))


def test_cells_hold_the_rows_nearest_to_their_centre():
    x = inputs(400)
    blocks = ClusterBlocks(balanced=False)(x, KERNEL, 6, generator=draws())
    z, centres = x / KERNEL.lengthscale, blocks.centres / KERNEL.lengthscale
    want = torch.cdist(z, centres).argmin(1)
    # k-means has settled: the centres are the means of their rows
    assert torch.equal(regions(blocks).nearest(x), want)
    assert torch.equal(blocks.labels, want)


def test_balanced_blocks_are_nearly_as_compact_as_cells():
    x = inputs(500)

    def spread(partition):
        blocks = partition(x, RBF(3).double(), 10, generator=draws())
        return float((x - blocks.centres[blocks.labels]).square().mean())

    cells = spread(ClusterBlocks(balanced=False))
    assert spread(ClusterBlocks()) < 1.25 * cells < 0.5 * spread(RandomBlocks())


def test_two_balanced_blocks_are_the_nearest_of_their_size():
    """No exchange of two rows brings them nearer to the centres."""
    x = inputs(31)
    blocks = ClusterBlocks()(x, KERNEL, 2)
    assert blocks.sizes.tolist() == [16, 15]
    gaps = torch.cdist(x / KERNEL.lengthscale, blocks.centres / KERNEL.lengthscale).square()
    first, second = (gaps[blocks.labels == k] for k in (0, 1))
    now = first[:, 0].unsqueeze(1) + second[:, 1].unsqueeze(0)
    swapped = first[:, 1].unsqueeze(1) + second[:, 0].unsqueeze(0)
    assert (swapped >= now - 1e-12).all()


def test_the_same_generator_gives_the_same_blocks():
    x = inputs()
    for partition in (RandomBlocks(), ClusterBlocks()):
        first, again = (partition(x, KERNEL, 5, generator=draws(2)).labels for _ in range(2))
        assert torch.equal(first, again)


def test_a_block_for_every_value_of_a_column():
    x = inputs()
    x[:, 1] = (torch.arange(103) % 4).double()
    partition = ColumnBlocks(1)
    assert partition.num_blocks(x) == 4
    blocks = partition(x, KERNEL, 4)
    assert torch.equal(blocks.labels, torch.arange(103) % 4)
    new = inputs(8)
    new[:, 1] = torch.tensor([3.0, 2.1, 1.0, 0.2, -5.0, 9.0, 2.0, 0.0]).double()
    assert regions(blocks).nearest(new).tolist() == [3, 2, 1, 0, 0, 3, 2, 0]


def test_clusters_are_taken_at_the_lengthscales_of_the_kernel():
    x, kernel = inputs(200, 2), RBF(2, lengthscale=[1e-2, 1e2]).double()
    labels = ClusterBlocks(balanced=False)(x, kernel, 4, generator=draws()).labels
    # only the first input counts: blocks are intervals of it
    ranges = sorted(
        (float(x[labels == k, 0].min()), float(x[labels == k, 0].max())) for k in range(4)
    )
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))


def test_inputs_of_another_width_are_said():
    blocks = ClusterBlocks()(inputs(), KERNEL, 3)
    with pytest.raises(ShapeError, match="inputs have 2 columns and the blocks were made for 3"):
        regions(blocks).nearest(inputs(4, 2))


def test_repeated_rows_make_balanced_blocks_and_no_cells():
    x = torch.zeros(30, 3, dtype=torch.float64)
    assert ClusterBlocks()(x, KERNEL, 4, generator=draws()).sizes.tolist() == [8, 8, 7, 7]
    with pytest.raises(DataError, match="3 of 4 blocks have no training rows"):
        ClusterBlocks(balanced=False)(x, KERNEL, 4, generator=draws())


@pytest.mark.parametrize("count", [4, 9])
def test_another_number_of_blocks_than_of_given_centres_is_refused(count):
    partition = ClusterBlocks(balanced=False, selector=Given(inputs(7)))
    with pytest.raises(ConfigError, match=f"Given gives 7 centres and {count} blocks .* ask for 7"):
        partition(inputs(), KERNEL, count)


def test_what_cannot_be_partitioned_is_said():
    x = inputs(5)
    for partition in (RandomBlocks(), ClusterBlocks()):
        with pytest.raises(DataError, match="6 blocks were asked for but there are only 5"):
            partition(x, KERNEL, 6, generator=draws())
        with pytest.raises(ConfigError, match="num_blocks=0 must be at least 1"):
            partition(x, KERNEL, 0, generator=draws())
    with pytest.raises(DataError, match="NaN"):
        RandomBlocks()(x * torch.nan, KERNEL, 2)
    with pytest.raises(ConfigError, match="column=7 is not there: the inputs have 3 columns"):
        ColumnBlocks(7)(x, KERNEL, 2)
    with pytest.raises(ConfigError, match="5 different values and 2 blocks"):
        ColumnBlocks(0)(x, KERNEL, 2)
    with pytest.raises(ConfigError, match="column=-1"):
        ColumnBlocks(-1)
    with pytest.raises(ConfigError, match="random partition has no nearest block"):
        regions(RandomBlocks()(x, KERNEL, 2, generator=draws())).nearest(x)
    with pytest.raises(DataError, match="block 0 of 2 has no training rows"):
        Blocks.of(torch.ones(5, dtype=torch.long), x, torch.ones(3))
    with pytest.raises(
        ConfigError, match=r"partition='kmeans' is no partition.*partition=ClusterBlocks"
    ):
        require_partition("kmeans")
