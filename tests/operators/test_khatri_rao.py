"""Khatri-Rao products at the cost the GRIEF literature promises."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpx.errors import DTypeError, ShapeError
from gpx.operators import KhatriRao, Kronecker


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def test_mixed_product_with_selected_columns_is_linear_in_the_dimension():
    """K_XU Q S^T of 40 dimensions of 10 points: 10^40 grid points, d n m_l^2 operations."""
    d, n, m, p = 40, 6, 10, 8
    rows = KhatriRao(*[draw(n, m, seed=i) / m**0.5 for i in range(d)])
    rotation = Kronecker(*[torch.linalg.qr(draw(m, m, seed=i)).Q for i in range(3)])
    few = KhatriRao(*rows.factors[:3])
    index = torch.randint(m, (p, d), generator=torch.Generator().manual_seed(0))
    dense = few.to_dense() @ rotation.to_dense()
    flat = (index[:, 0] * m + index[:, 1]) * m + index[:, 2]
    rotated = few @ rotation
    assert isinstance(rotated, KhatriRao)
    torch.testing.assert_close(rotated.select_columns(index[:, :3]), dense[:, flat])
    assert rows.grid_size == 10**40
    direct = torch.ones(n, p, dtype=torch.float64)
    for i, f in enumerate(rows.factors):
        direct = direct * f[:, index[:, i]]
    torch.testing.assert_close(rows.select_columns(index), direct, rtol=1e-10, atol=0)
    with FlopCounterMode(display=False) as counter:
        gram = rows.gram()
    assert counter.get_total_flops() == 2 * n * n * d * m
    assert gram.shape == (n, n)
    with pytest.raises(ShapeError, match=r"10\^40 columns.*select_columns"):
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


def test_algebra_keeps_structure():
    from linear_operator.operators import DiagLinearOperator

    a, b = KhatriRao(*factors()), KhatriRao(*[f + 1 for f in factors()])
    weights = draw(11, seed=9)
    for found, expected in [
        (2.0 * a, 2 * a.to_dense()),
        (a * b, a.to_dense() * b.to_dense()),
        (a.mT @ DiagLinearOperator(weights), a.mT.to_dense() * weights),
    ]:
        assert isinstance(found, KhatriRao)
        torch.testing.assert_close(found.to_dense(), expected)
    summed = a + b
    torch.testing.assert_close(summed.to_dense(), a.to_dense() + b.to_dense())


def test_errors():
    with pytest.raises(ShapeError, match=r"equal numbers of rows.*KhatriRao.columns"):
        KhatriRao(draw(3, 2), draw(4, 2))
    with pytest.raises(ShapeError, match="at least one factor"):
        KhatriRao()
    with pytest.raises(DTypeError, match="convert"):
        KhatriRao(draw(3, 2), draw(3, 2).float())
