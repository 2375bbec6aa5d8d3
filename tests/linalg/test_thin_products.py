"""Thin products against plain ones: padding and the order of reading change no result."""

import pytest
import torch

from gpx.linalg.thin_products import DenseProduct, as_rows, row_count, thin_product


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("columns", [0, 1, 2, 3, 4, 5, 11, 33])
def test_rows_are_whole_tiles_that_end_in_zeros(columns):
    vectors = randn(7, columns)
    for given in (vectors, vectors.mT.contiguous().mT):
        rows = as_rows(given)
        assert rows.is_contiguous()
        assert len(rows) == row_count(given)
        assert len(rows) - columns in range(4)
        assert columns < 3 or len(rows) % 4 == 0
        assert torch.equal(rows[:columns], vectors.mT)
        assert not rows[columns:].any()


@pytest.mark.parametrize("columns", [1, 2, 3, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rectangular_matrix(columns, dtype):
    matrix, vectors = randn(6, 9, dtype=dtype), randn(9, columns, dtype=dtype, seed=1)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
    for given in (matrix, matrix.mT.contiguous().mT):
        found = thin_product(given, vectors)
        torch.testing.assert_close(found, matrix @ vectors, **close)
        assert found.mT.is_contiguous()


@pytest.mark.parametrize("columns", [1, 2, 3, 11])
def test_a_symmetric_matrix_may_be_read_in_either_order(columns):
    half, vectors = randn(9, 9), randn(9, columns, seed=1)
    matrix = half + half.mT
    for given in (matrix, matrix.mT):
        torch.testing.assert_close(thin_product(given, vectors, symmetric=True), matrix @ vectors)
        product = DenseProduct(given)
        first = product(vectors)
        torch.testing.assert_close(first, matrix @ vectors)
        again = product(2.0 * vectors)
        assert again.data_ptr() == first.data_ptr()
        torch.testing.assert_close(again, 2.0 * (matrix @ vectors))


def test_a_dense_product_in_the_dtype_of_its_vectors():
    half, vectors = randn(9, 9), randn(9, 3, seed=1)
    product = DenseProduct(half + half.mT)
    for given in (vectors, vectors.float(), vectors):
        found = product(given)
        assert found.dtype == given.dtype
        want = (half + half.mT).to(given.dtype) @ given
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    alone = product(vectors[:, 0])
    torch.testing.assert_close(alone, (half + half.mT) @ vectors[:, 0])
