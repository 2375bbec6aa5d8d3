"""Products in kept buffers equal those that allocate; nothing is overwritten too early."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ShapeError
from gpx.linalg import kronecker_matmul
from gpx.linalg.kronecker_workspace import KroneckerWorkspace


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 99))
def test_products_in_a_row_equal_allocating_ones(sizes, count, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    first, second = ([draw(m, m) for m in sizes] for _ in range(2))
    space = KroneckerWorkspace(sizes)
    x = draw(space.cells, count)
    found = space.product(second, space.product(first, x.mT)).mT
    want = kronecker_matmul(second, kronecker_matmul(first, x))
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_scatter_and_gather_are_selections_and_survive_the_next_call(shape):
    space = KroneckerWorkspace((3, 2))
    cells = torch.tensor([5, 0, 2, 3])
    values = torch.arange(1.0, 1.0 + 4 * (shape[1] if len(shape) > 1 else 1)).view(shape)
    grid = space.scatter(cells, values)
    found = space.gather(grid, cells, values)
    assert float(grid.sum()) == float(values.sum())
    space.scatter(cells, torch.zeros(shape))
    torch.testing.assert_close(found, values, rtol=0, atol=0)


def test_wrong_sizes_are_refused():
    space = KroneckerWorkspace((3, 2))
    with pytest.raises(ShapeError, match=r"\(c, 6\)"):
        space.product([torch.eye(3), torch.eye(2)], torch.zeros(1, 5))
    with pytest.raises(ShapeError, match="2 rows for 1 cells"):
        space.scatter(torch.tensor([0]), torch.zeros(2))
