"""The sparse interpolation matrix and its transpose."""

import pytest
import torch
from draws import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import DTypeError, ShapeError
from gpx.linalg import RegularAxis
from gpx.operators import Interpolation


def make(*batch, n=7, q=3, m=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, m, (*batch, n, q), generator=generator)  # repeats included
    return Interpolation(draw(*batch, n, q, seed=seed), indices, num_columns=m)


def dense(operator):
    out = torch.zeros(operator.shape, dtype=torch.float64)
    for place in torch.cartesian_prod(*[torch.arange(s) for s in operator.values.shape]):
        *where, k = place.tolist()
        out[(*where, operator.indices[(*where, k)])] += operator.values[(*where, k)]
    return out


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(), (2,), (3, 2)]),
    st.sampled_from([(), (2,), (1,), (3, 2), (4, 1, 1)]),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 6),
)
def test_products_of_any_batch(batch, right_batch, n, q, m):
    operator = make(*batch, n=n, q=q, m=m)
    matrix = dense(operator)
    right, left = draw(*right_batch, m, 2, seed=1), draw(*right_batch, n, 2, seed=2)
    torch.testing.assert_close(operator @ right, matrix @ right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator.mT @ left, matrix.mT @ left, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator.to_dense(), matrix)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients(batch):
    base = make(*batch)
    values, right = base.values.clone().requires_grad_(), draw(5, 2, seed=1).requires_grad_()
    left = draw(7, 2, seed=2).requires_grad_()

    def build(values):
        return Interpolation(values, base.indices, num_columns=5)

    assert torch.autograd.gradcheck(lambda v, r: build(v) @ r, (values, right))
    assert torch.autograd.gradcheck(lambda v, r: build(v).mT @ r, (values, left))
    assert torch.autograd.gradcheck(lambda v: build(v).to_dense(), (values,))


def test_rows_stay_interpolations_and_nothing_is_multiplied(monkeypatch):
    operator = make()
    matrix = dense(operator)
    rows = operator[torch.tensor([5, 0, 0])]
    assert isinstance(rows, Interpolation)
    torch.testing.assert_close(rows.to_dense(), matrix[[5, 0, 0]])
    torch.testing.assert_close(operator[:, 1:4].to_dense(), matrix[:, 1:4])
    where = torch.tensor([0, 6, 3]), torch.tensor([4, 0, 2])
    torch.testing.assert_close(operator[where], matrix[where])


def test_compressed_forms_are_made_once_and_follow_changes():
    operator, right = make(), draw(5, 1)
    made = []
    for name in ("_rows", "_columns"):
        original = getattr(operator, name)
        setattr(operator, name, lambda o=original, n=name: made.append(n) or o())
    for _ in range(3):
        operator._multiply(right)
        operator._t_multiply(draw(7, 1))
    assert made == ["_rows", "_columns"]
    operator.values.mul_(2.0)
    torch.testing.assert_close(operator @ right, dense(operator) @ right)


def test_from_inputs_on_a_grid():
    axes = [RegularAxis.covering(0.0, 1.0, 9), RegularAxis.covering(0.0, 2.0, 8)]
    x = torch.rand(20, 2, dtype=torch.float64) * torch.tensor([1.0, 2.0])
    operator = Interpolation.of(x, axes)
    assert operator.shape == (20, 72)
    a, b = (axis.points(x) for axis in axes)
    plane = (1 + 2 * a[:, None] - b + a[:, None] * b).reshape(-1)
    expected = 1 + 2 * x[:, 0] - x[:, 1] + x[:, 0] * x[:, 1]
    torch.testing.assert_close(operator @ plane, expected, rtol=0, atol=1e-12)


def test_axes_that_are_not_regular():
    axes = [torch.tensor([0.0, 0.1, 0.4, 1.0]).double(), RegularAxis.covering(0.0, 2.0, 8)]
    x = torch.rand(20, 2, dtype=torch.float64) * torch.tensor([1.0, 2.0])
    operator = Interpolation.of(x, axes, method="linear")
    assert operator.shape == (20, 32)
    plane = (1 + 2 * axes[0][:, None] - axes[1].points(x)).reshape(-1)
    torch.testing.assert_close(operator @ plane, 1 + 2 * x[:, 0] - x[:, 1], rtol=0, atol=1e-12)


def test_types_are_checked():
    values, indices = draw(4, 2), torch.zeros(4, 2, dtype=torch.long)
    for pair in ((indices, indices), (values, indices.int())):
        with pytest.raises(DTypeError, match="floating values and int64 indices"):
            Interpolation(*pair, num_columns=5)


def test_conversion_keeps_integers():
    single = make().to(torch.float32)
    assert single.values.dtype == torch.float32
    assert single.indices.dtype == torch.int64


def test_shapes_must_agree():
    with pytest.raises(ShapeError, match="n, q"):
        Interpolation(draw(4, 2), torch.zeros(4, 3, dtype=torch.long), num_columns=5)
