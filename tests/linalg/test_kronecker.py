"""Kronecker algebra against torch.kron, with rectangular factors of different sizes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.linalg.kronecker import (
    kronecker_logdet,
    kronecker_matmul,
    kronecker_product,
    kronecker_solve,
    kronecker_vector,
    matmul_operations,
    split_index,
)
from gpx.operators import Kronecker, KroneckerPlusDiagonal


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def kron(factors):
    out = factors[0]
    for f in factors[1:]:
        out = torch.kron(out, f)
    return out


def spd(n, seed=0):
    a = draw(n, n, seed=seed)
    return a @ a.mT / n + torch.eye(n, dtype=torch.float64)


sizes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4)


def close(found, dense, tolerance, scale=None):
    """Entries within ``tolerance`` of the largest, or of the sums of magnitudes in ``scale``."""
    size = float((dense if scale is None else scale).abs().max())
    assert found.shape == dense.shape
    assert float((found.double() - dense.double()).abs().max()) <= tolerance * size


precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)]
)


@precisions
@settings(max_examples=40, deadline=None, derandomize=True)
@given(sizes, st.integers(1, 3))
def test_products_of_any_shapes(dtype, tolerance, shapes, columns):
    factors = [draw(k, n, seed=i, dtype=dtype) for i, (k, n) in enumerate(shapes)]
    dense = kron(factors)
    right = draw(dense.shape[1], columns, seed=9, dtype=dtype)
    magnitudes = dense.abs() @ right.abs()
    close(kronecker_matmul(factors, right), dense @ right, tolerance, magnitudes)
    close(kronecker_product(factors), dense, tolerance)
    right = draw(dense.shape[0], columns, seed=8, dtype=dtype)
    found = kronecker_matmul([f.mT for f in factors], right)
    close(found, dense.mT @ right, tolerance, dense.abs().mT @ right.abs())


@precisions
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=1, max_size=3),
    st.floats(-2.0, 2.0).filter(lambda v: abs(v) > 1e-2),
)
def test_identities_of_products_sums_and_transposes(dtype, tolerance, shapes, scale):
    """Scalars, bilinearity, associativity, mixed products, vectors: for rectangles."""
    left = [draw(k, n, seed=i, dtype=dtype) for i, (k, n, _) in enumerate(shapes)]
    right = [draw(n, m, seed=9 + i, dtype=dtype) for i, (_, n, m) in enumerate(shapes)]
    dense = kron(left)
    scaled = kronecker_product([scale * left[0], *left[1:]])
    close(scaled, scale * dense, tolerance)
    close(kronecker_product([*left[:-1], scale * left[-1]]), scale * dense, tolerance)
    other = [torch.flip(left[0], (0,)), *left[1:]]
    both = kronecker_product([left[0] + other[0], *left[1:]])
    close(both, dense + kron(other), tolerance, dense.abs().max() + kron(other).abs().max())
    nested = kronecker_product([kronecker_product(left[:2]), *left[2:]])
    close(nested, dense, tolerance)
    mixed = kronecker_product([a @ b for a, b in zip(left, right, strict=True)])
    close(mixed, dense @ kron(right), tolerance, dense.abs() @ kron(right).abs())
    columns = [f[:, 0] for f in left]
    close(kronecker_vector(columns), dense[:, 0], tolerance, dense)


@precisions
@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.floats(1e-2, 1.0))
def test_identities_of_square_factors(dtype, tolerance, sizes, noise):
    """Inverse, Cholesky factor, eigenvalues, trace, determinant, diagonal; and with noise."""
    factors = [spd(m, seed=i).to(dtype) for i, m in enumerate(sizes)]
    dense = kron(factors).double()
    size = len(dense)
    right = draw(size, 2, seed=7, dtype=dtype)
    # well conditioned: eigenvalues of each factor lie within [1, 8]
    close(kronecker_solve(factors, right), torch.linalg.solve(dense, right.double()), tolerance)
    lower = kronecker_product([torch.linalg.cholesky(f) for f in factors])
    close(lower, torch.linalg.cholesky(dense), tolerance)
    pairs = [torch.linalg.eigh(f) for f in factors]
    values, vectors = kronecker_vector([v for v, _ in pairs]), [q for _, q in pairs]
    close(values.sort().values, torch.linalg.eigvalsh(dense), tolerance)
    q = kronecker_product(vectors)
    close((q * values) @ q.mT, dense, tolerance)
    traces = math.prod(float(f.trace()) for f in factors)
    assert traces == pytest.approx(float(dense.trace()), rel=tolerance)
    close(kronecker_vector([f.diagonal() for f in factors]), dense.diagonal(), tolerance)
    want = torch.linalg.slogdet(dense.double()).logabsdet
    found = kronecker_logdet(factors).double()
    assert float((found - want).abs()) <= tolerance * size
    noisy = KroneckerPlusDiagonal(Kronecker(*factors), torch.tensor([noise], dtype=dtype))
    matrix = dense + noise * torch.eye(size, dtype=torch.float64)
    close(noisy.solve(right), torch.linalg.solve(matrix, right.double()), tolerance)
    want = torch.linalg.slogdet(matrix.double()).logabsdet
    assert float((noisy.logdet().double() - want).abs()) <= tolerance * size


def test_gradient_of_the_product_through_unequal_rectangles():
    factors = [draw(k, n, seed=i) for i, (k, n) in enumerate([(2, 3), (4, 2), (3, 2)])]
    leaves = [t.requires_grad_() for t in (draw(12, 2, seed=9), *factors)]
    assert torch.autograd.gradcheck(lambda r, *f: kronecker_matmul(f, r), leaves)


def test_batches_of_three_unequal_rectangles_broadcast():
    factors = [draw(2, 3, 2, seed=1), draw(4, 3, seed=2), draw(1, 2, 5, seed=4)]
    right = draw(5, 1, 30, 2, seed=3)
    out = kronecker_matmul(factors, right)
    assert out.shape == (5, 2, 24, 2)
    for i in range(5):
        for j in range(2):
            dense = kron([factors[0][j], factors[1], factors[2][0]])
            magnitudes = dense.abs() @ right[i, 0].abs()
            close(out[i, j], dense @ right[i, 0], 1e-12, magnitudes)
    leaves = [t.requires_grad_() for t in (draw(2, 1, 30, 1, seed=5), *factors)]
    assert torch.autograd.gradcheck(lambda r, *f: kronecker_matmul(f, r), leaves)


@pytest.mark.parametrize("shapes", [[(5, 5), (7, 7), (3, 3)], [(2, 8), (9, 3)], [(8, 2), (3, 9)]])
def test_operations_are_those_promised(shapes):
    """2 c times the cheaper of the two orders; for squares 2 c M sum m_l."""
    factors = [draw(k, n, seed=i) for i, (k, n) in enumerate(shapes)]
    with FlopCounterMode(display=False) as counter:
        kronecker_matmul(factors, draw(math.prod(n for _, n in shapes), 4))
    assert counter.get_total_flops() == 2 * 4 * min(matmul_operations(factors))
    if shapes[0] == (5, 5):
        assert min(matmul_operations(factors)) == 105 * 15


def test_logdet_is_exact_where_products_of_eigenvalues_underflow():
    """Three factors with noise 1e-3: clamping products at 1e-7 would lose a tenth."""
    x = torch.linspace(0, 1, 30, dtype=torch.float64)
    factors = [
        torch.exp(-0.5 * ((x[:, None] - x) / s).square()) + 1e-3 * torch.eye(30).double()
        for s in (0.1, 0.2, 0.3)
    ]
    logs = [torch.linalg.eigvalsh(f).log() for f in factors]
    exact = (logs[0][:, None, None] + logs[1][:, None] + logs[2]).sum()
    torch.testing.assert_close(kronecker_logdet(factors), exact, rtol=1e-10, atol=0)
    clamped = kronecker_vector([v.exp() for v in logs]).clamp(min=1e-7).log().sum()
    assert abs(clamped / exact - 1) > 0.05


def test_logdet_survives_sizes_beyond_64_bits():
    factors = [2.0 * torch.eye(4, dtype=torch.float64)] * 40
    expected = 40 * 4**40 * math.log(2.0)
    assert kronecker_logdet(factors).item() == pytest.approx(expected, rel=1e-12)


def test_solve_takes_unsymmetric_factors_and_its_gradient_is_right():
    factors = [draw(3, 3, seed=1) + 3 * torch.eye(3), draw(2, 2, seed=2) + 3 * torch.eye(2)]
    right = draw(6, 2, seed=3)
    solution = kronecker_solve(factors, right)
    torch.testing.assert_close(kron(factors) @ solution, right)
    leaves = [t.clone().requires_grad_() for t in (right, *factors)]
    assert torch.autograd.gradcheck(lambda r, *f: kronecker_solve(f, r), leaves)
    assert torch.autograd.gradgradcheck(lambda r, *f: kronecker_solve(f, r), leaves)


def test_errors_name_the_factor():
    bad = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    with pytest.raises(NotPositiveDefinite, match=r"factor 2 of 2 .*smallest eigenvalue -1"):
        kronecker_logdet([spd(3), bad])
    with pytest.raises(NotPositiveDefinite, match=r"factor 1 of 2 .*singular"):
        kronecker_solve([torch.zeros(2, 2).double(), spd(3)], draw(6, 1))
    with pytest.raises(ShapeError, match=r"factor 2 of 2 is .*square"):
        kronecker_solve([spd(2), draw(2, 3)], draw(6, 1))
    with pytest.raises(ShapeError, match="6 columns cannot be multiplied"):
        kronecker_matmul([spd(2), spd(3)], draw(5, 1))


def test_an_index_is_split_row_major():
    index = torch.arange(30)
    parts = split_index(index, (3, 5, 2))
    torch.testing.assert_close((parts[0] * 5 + parts[1]) * 2 + parts[2], index)


def test_an_empty_factor_has_the_determinant_one():
    empty, other = torch.ones(0, 0, dtype=torch.float64), 2 * torch.eye(2, dtype=torch.float64)
    assert kronecker_logdet([empty, other]).item() == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e-150])
def test_a_pivot_lost_to_rounding_is_an_error_and_bad_scales_are_not(scale):
    near = torch.ones(3, 3, dtype=torch.float64)
    near.diagonal()[1:] += 2.0**-52  # one rounding unit
    other = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 3.0]]).double()
    right = torch.ones(9, 1, dtype=torch.float64)
    for lost in (near, near * float("nan")):
        with pytest.raises(NotPositiveDefinite, match=r"factor 2 of 2 .* singular or not finite"):
            kronecker_solve([other, scale * lost], right)
    weights = torch.tensor([1.0, 1e-20, 1e10], dtype=torch.float64)
    inverse = torch.linalg.inv(other)
    for skewed, undone in (
        (weights[:, None] * other, inverse / weights),
        (other * weights, inverse / weights[:, None]),
    ):
        found = kronecker_solve([other, scale * skewed], right)
        expected = torch.kron(inverse, undone / scale) @ right
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("rows", [(2, 3), (1, 1)])
def test_no_columns_give_no_columns(rows):
    factors = [torch.ones(rows[0], 2), torch.ones(rows[1], 3)]
    assert kronecker_matmul(factors, torch.zeros(4, 6, 0)).shape == (4, rows[0] * rows[1], 0)
    assert kronecker_matmul(factors[::-1], torch.zeros(6, 0)).shape == (rows[0] * rows[1], 0)
