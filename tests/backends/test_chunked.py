"""What a chunked kernel matrix may not do: store the matrix, evaluate twice, depend on threads."""

import pytest
import torch
from composed_kernels import KERNELS, make_kernel
from draws import draw
from largest_tensor import Largest

from gpx.kernels import RBF
from gpx.kernels.tiles import StationaryTiles

pytestmark = pytest.mark.usefixtures("float64_by_default")


@pytest.fixture(params=["square", "rectangular"])
def inputs(request):
    x = draw(23, 2)
    return (x, None) if request.param == "square" else (draw(17, 2, seed=1), x)


@pytest.mark.parametrize("make_kernel", KERNELS)
def test_nothing_of_the_size_of_the_matrix_is_made(inputs, make_kernel):
    x1, x2 = (None if t is None else t.repeat(20, 1).requires_grad_() for t in inputs)
    right = draw(460, 2, seed=1)
    with Largest() as largest:
        operator = make_kernel()(x1, x2, memory_budget=8 * 8 * 900)
        assert operator.backend == "chunked"
        product = operator @ right
        product.sum().backward()
    # tiles of at most 60 x 60, and thin blocks of (460, d + 2), those of both sides in one
    assert largest.entries <= 2 * 460 * 4 < 340 * 460


def test_a_square_matrix_evaluates_one_triangle(monkeypatch):
    entries = []
    original = StationaryTiles.fill_

    def recording(self, rows, columns, out, scratch):
        entries.append(out.numel())
        original(self, rows, columns, out, scratch)

    monkeypatch.setattr(StationaryTiles, "fill_", recording)
    x = draw(240, 2)
    RBF(2)(x, memory_budget=1 << 14, backend="chunked") @ draw(240, 1)
    assert 240 * 240 / 2 < sum(entries) < 0.6 * 240 * 240  # whole tiles on the diagonal
    entries.clear()
    RBF(2)(x, x.clone(), memory_budget=1 << 14, backend="chunked") @ draw(240, 1)
    assert sum(entries) == 240 * 240


def test_many_columns_give_up_symmetry_rather_than_memory(monkeypatch):
    kernel, x, right = make_kernel(), draw(120, 2), draw(120, 50)
    operator = kernel(x, memory_budget=2 * 8 * 120 * 50, backend="chunked")
    assert operator.engine._product_plan(operator.entries, 50).disjoint_rows
    assert not operator.engine._product_plan(operator.entries, 1).disjoint_rows
    torch.testing.assert_close(operator @ right, kernel.evaluate(x) @ right, rtol=1e-12, atol=1e-12)


def test_results_do_not_depend_on_the_number_of_threads():
    """More entries than one thread keeps to itself; same bits with one, two and five threads."""
    kernel, x, right = make_kernel(), draw(400, 2), draw(400, 3)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for part in kernel.parameters():
                part.grad = None
            # a budget in proportion keeps the tiles the same
            operator = kernel(x, memory_budget=threads * 8 * 8 * 4000, backend="chunked")
            product = operator @ right
            product.square().sum().backward()
            found.append([product.detach(), *(p.grad for p in kernel.parameters())])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(
        found[0][0], kernel.evaluate(x).detach() @ right, rtol=1e-11, atol=1e-11
    )
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
