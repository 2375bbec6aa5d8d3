"""Products in kept buffers equal those that allocate; nothing is overwritten too early."""

import copy
import pickle
from threading import Thread

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


@pytest.mark.parametrize("columns", [1, 2])
def test_scattered_values_lie_at_their_cells_and_nothing_elsewhere(columns):
    space = KroneckerWorkspace((3, 2))
    cells = torch.tensor([5, 0, 2, 3])
    space.scatter(cells.flip(0), torch.ones(4, columns))
    values = torch.arange(1.0, 1.0 + 4 * columns).view(4, columns)
    grid = space.scatter(cells, values)
    torch.testing.assert_close(grid[:, cells].mT, values, rtol=0, atol=0)
    assert float(grid.sum()) == float(values.sum())


def test_threads_do_not_write_each_others_buffers():
    space = KroneckerWorkspace((3, 2))
    factors = [2.0 * torch.eye(3), torch.eye(2)]
    found = space.product(factors, torch.ones(1, 6))
    other = Thread(target=lambda: space.product(factors, space.product(factors, torch.zeros(1, 6))))
    other.start()
    other.join()
    assert found.tolist() == [[2.0] * 6]
    for copied in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert copied.product(factors, torch.ones(1, 6)).tolist() == [[2.0] * 6]


def test_wrong_sizes_are_refused():
    space = KroneckerWorkspace((3, 2))
    with pytest.raises(ShapeError, match=r"\(c, 6\)"):
        space.product([torch.eye(3), torch.eye(2)], torch.zeros(1, 5))
    with pytest.raises(ShapeError, match="2 rows for 1 cells"):
        space.scatter(torch.tensor([0]), torch.zeros(2, 1))


def test_no_vectors_give_no_vectors():
    factors = [torch.eye(3), torch.eye(2)]
    assert KroneckerWorkspace((3, 2)).product(factors, torch.zeros(0, 6)).shape == (0, 6)


def test_buffers_made_in_inference_mode_can_be_written_afterwards():
    space, factors = KroneckerWorkspace((3, 2)), [torch.eye(3), torch.eye(2)]
    with torch.inference_mode():
        space.product(factors, torch.ones(1, 6))
    assert space.product(factors, torch.ones(1, 6)).tolist() == [[1.0] * 6]
