import pytest
import torch
from draws import draw

from gpx.errors import ShapeError
from gpx.linalg.triangular import (
    PANEL,
    inverse_lower,
    inverse_root,
    lower_lower_matmul,
    lower_matmul,
    lower_of_product,
    lower_transpose_matmul,
)

# below two panels the plain product runs; 3 * PANEL + 7 leaves a ragged last panel
SIZES = [1, 5, PANEL, 2 * PANEL, 3 * PANEL + 7]


@pytest.mark.parametrize("size", SIZES)
def test_products_equal_dense_ones(size):
    left, other = draw(size, size).tril(), draw(size, size, seed=1).tril()
    right, third = draw(size, 33, seed=2), draw(size, 33, seed=3)
    close = {"rtol": 1e-12, "atol": 1e-11}
    torch.testing.assert_close(lower_matmul(left, right), left @ right, **close)
    torch.testing.assert_close(lower_transpose_matmul(left, right), left.mT @ right, **close)
    torch.testing.assert_close(lower_of_product(right, third), (right @ third.mT).tril(), **close)
    torch.testing.assert_close(lower_lower_matmul(left, other), left @ other, **close)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("column_major", [False, True])
def test_inverse(size, column_major):
    root = draw(size, size)
    lower = torch.linalg.cholesky(root @ root.mT / size + torch.eye(size, dtype=torch.float64))
    lower = lower.mT.contiguous().mT if column_major else lower.contiguous()
    inverse = inverse_lower(lower)
    identity = torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(inverse @ lower, identity, rtol=0, atol=1e-11)
    assert torch.equal(inverse, inverse.tril())


def test_inverse_wants_a_square_matrix():
    with pytest.raises(ShapeError, match="one square triangular matrix"):
        inverse_lower(torch.zeros(3, 4))


def test_the_root_of_an_inverse_is_lower_triangular():
    part = draw(7, 7)
    precision = part @ part.mT + torch.eye(7, dtype=part.dtype)
    root = inverse_root(precision, name="a precision")
    assert torch.equal(root, root.tril())
    assert bool((root.diagonal() > 0.0).all())
    torch.testing.assert_close(root @ root.mT, torch.linalg.inv(precision))
