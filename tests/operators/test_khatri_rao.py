"""Khatri-Rao products at the cost the GRIEF literature promises."""

import pytest
import torch
from draws import draw
from torch.utils.flop_counter import FlopCounterMode

from gpx.errors import DTypeError, ShapeError
from gpx.operators import KhatriRao


def factors(n=11, sizes=(4, 3, 5)):
    return [draw(n, m, seed=i) for i, m in enumerate(sizes)]


@pytest.mark.parametrize("columnwise", [False, True])
def test_chunks_change_nothing_but_memory(columnwise):
    parts = factors()
    whole = KhatriRao(*parts, columnwise=columnwise)
    small = KhatriRao(*parts, columnwise=columnwise, memory_budget=900)
    assert len(small._chunks(2, torch.Size())) > 3
    right = draw(whole.shape[1], 2)
    torch.testing.assert_close(small @ right, whole @ right)
    leaves = [f.clone().requires_grad_() for f in (right, *parts)]

    def product(right, *parts):
        return KhatriRao(*parts, columnwise=columnwise, memory_budget=900) @ right

    assert torch.autograd.gradcheck(product, leaves)


def test_operations_of_both_products():
    """One large product of 2 n m c operations, and a small one with the shorter half."""
    operator, n, m, c = KhatriRao(*factors()), 11, 60, 3
    for op, rows in ((operator, m), (operator.mT, n)):
        with FlopCounterMode(display=False) as counter:
            op @ draw(rows, c)
        assert 2 * n * m * c <= counter.get_total_flops() <= 2 * n * m * c + 2 * n * 15 * c


def test_more_columns_than_a_shape_can_state():
    rows = KhatriRao(*[draw(6, 10, seed=i) for i in range(40)])
    assert rows.grid_size == 10**40
    with pytest.raises(ShapeError, match=r"10\^40 columns.*khatri_rao_columns"):
        _ = rows.shape


def test_rows_stay_and_columns_are_dense_without_the_rest():
    operator = KhatriRao(*factors())
    dense = operator.to_dense()
    assert isinstance(operator[2:5], KhatriRao)
    assert isinstance(operator.mT[:, 2:5], KhatriRao)
    where = torch.tensor([59, 0, 7])
    torch.testing.assert_close(operator[:, where].to_dense(), dense[:, where])
    torch.testing.assert_close(operator.mT[where].to_dense(), dense.mT[where])
    torch.testing.assert_close(operator._diagonal(), dense.diagonal())
    torch.testing.assert_close(operator.mT._diagonal(), dense.diagonal())


def test_sums_and_multiples():
    a, b = KhatriRao(*factors()), KhatriRao(*[f + 1 for f in factors()])
    assert isinstance(2.0 * a, KhatriRao)
    torch.testing.assert_close((2.0 * a).to_dense(), 2 * a.to_dense())
    torch.testing.assert_close((a + b).to_dense(), a.to_dense() + b.to_dense())


def test_errors():
    with pytest.raises(ShapeError, match="equal numbers of rows"):
        KhatriRao(draw(3, 2), draw(4, 2))
    with pytest.raises(ShapeError, match="at least one factor"):
        KhatriRao()
    with pytest.raises(DTypeError, match="convert"):
        KhatriRao(draw(3, 2), draw(3, 2).float())
