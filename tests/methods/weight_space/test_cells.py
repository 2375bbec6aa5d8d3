"""Cells: a partition of the columns, read and written in place."""

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.methods.weight_space.cells import Cells


@pytest.mark.parametrize(("num_basis", "size"), [(48, 6), (48, 18), (48, 30), (40, 1), (48, 1000)])
def test_cells_partition_the_columns_in_the_order_of_their_features(num_basis, size):
    basis = RandomFourier(RBF(ard_num_dims=2), num_basis, 0, 3).double()
    cells = Cells.of(basis, size)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    everything = basis(x)
    table = torch.arange(float(num_basis)).view(basis.num_blocks, -1)
    seen = []
    for cell in range(cells.num_cells):
        columns = cells.columns(cell)
        assert columns.shape[0] == cells.size(cell) <= cells.largest
        assert torch.equal(cells.read(table, cell), columns.float())
        seen += columns.tolist()
        within = columns % basis.block_size
        assert len({bool(w < basis.per_block) for w in within}) == 1  # cosines or sines, not both
    assert sorted(seen) == list(range(num_basis))
    for group in range(cells.num_groups):
        columns = cells.weight_group(basis, group, x.device).columns
        assert torch.equal(columns, torch.cat([cells.columns(cell) for cell in cells.group(group)]))
        torch.testing.assert_close(
            cells.group_source(basis, group, x.device)(x), everything[:, columns].T
        )
        assert torch.equal(cells.read_group(table, group), columns.float())


def test_writing_changes_one_cell_only():
    cells = Cells(num_blocks=5, block_size=4, parts=2, blocks_per_group=2)
    table = torch.zeros(5, 4)
    cells.write(table, 5, torch.ones(cells.size(5)))
    assert cells.size(5) == 2
    assert table.sum() == 2
    assert torch.equal(cells.read(table, 5), torch.ones(2))


def test_a_size_below_one_is_refused():
    with pytest.raises(ConfigError, match="block_columns=0"):
        Cells.of(RandomFourier(RBF(ard_num_dims=2), 8), 0)
