"""Products by FFT against scipy's dense Toeplitz matrices."""

import pytest
import scipy.linalg
import torch
from draws import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.linalg import fft_products
from gpx.linalg.fft_products import (
    convolve,
    correlate,
    embed_general,
    embed_symmetric,
    fast_length,
    pad_and_transform,
    spectrum,
)


@given(st.integers(1, 100_000))
def test_fast_lengths_are_even_smooth_and_long_enough(n):
    length = fast_length(n)
    assert length % 2 == 0
    assert n <= length <= 2 * n + 2
    for prime in (2, 3, 5):
        while length % prime == 0:
            length //= prime
    assert length == 1


LENGTHS = [
    (m, a)
    for m in (1, 2, 3, 37, 64)
    for a in (2 * m - 2, 2 * m - 1, 2 * m, fast_length(2 * m - 1))
    if a >= m
]


@pytest.mark.parametrize(("m", "a"), LENGTHS)
def test_symmetric_embeddings_of_every_length(m, a):
    column, right = draw(m), draw(m, 3, seed=1)
    dense = torch.tensor(scipy.linalg.toeplitz(column))
    found = convolve(spectrum(embed_symmetric(column, a)), right, (a,), (m,), (m,))
    torch.testing.assert_close(found, dense @ right, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 5), st.integers(1, 3))
def test_general_products_and_correlations(m, n, spare, c):
    column, row = draw(m), draw(n, seed=1)
    dense = torch.tensor(scipy.linalg.toeplitz(column, row))
    a = m + n - 1 + spare
    values = spectrum(embed_general(column, row, a))
    right, left = draw(n, c, seed=2), draw(m, c, seed=3)
    found = convolve(values, right, (a,), (n,), (m,))
    torch.testing.assert_close(found, dense @ right, rtol=1e-11, atol=1e-11)
    lags = correlate(left, right, (a,), (m,), (n,))
    outer = left @ right.mT
    for lag in range(-(n - 1), m):
        expected = outer.diagonal(-lag).sum()
        torch.testing.assert_close(lags[lag % a], expected, rtol=1e-10, atol=1e-10)


def test_columns_in_turns_give_the_same(monkeypatch):
    column, right, left = draw(20), draw(2, 20, 7, seed=1), draw(2, 20, 7, seed=2)
    values = spectrum(embed_symmetric(column, 40))
    whole = convolve(values, right, (40,), (20,), (20,))
    gradient = correlate(left, right, (40,), (20,), (20,))
    sizes, transform = [], fft_products.pad_and_transform

    def recording(block, lengths):
        sizes.append(block.shape[-2])
        return transform(block, lengths)

    monkeypatch.setattr(fft_products, "pad_and_transform", recording)
    monkeypatch.setattr(fft_products, "COLUMN_BYTES", 3 * 2 * 2 * 8 * 40)
    torch.testing.assert_close(convolve(values, right, (40,), (20,), (20,)), whole)
    torch.testing.assert_close(correlate(left, right, (40,), (20,), (20,)), gradient)
    assert max(sizes) == 3


def test_padding_axis_by_axis_equals_padding_at_once():
    x = draw(2, 3, 4, 5)
    lengths = (6, 8, 10)
    expected = torch.fft.rfftn(x, s=lengths, dim=(-3, -2, -1))
    torch.testing.assert_close(pad_and_transform(x, lengths), expected, rtol=1e-12, atol=1e-12)


def test_float32_products_are_accurate_to_1e_5():
    m = 4096
    column = torch.exp(-torch.arange(m, dtype=torch.float64) / 300.0)
    right = draw(m, 2)
    dense = column[(torch.arange(m)[:, None] - torch.arange(m)).abs()]
    a = fast_length(2 * m - 1)
    values = spectrum(embed_symmetric(column.float(), a))
    found = convolve(values, right.float(), (a,), (m,), (m,)).double()
    expected = dense @ right
    assert (found - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("lengths", [(6,), (6, 4)])
def test_no_columns_give_no_columns_and_a_zero_correlation(lengths):
    grid = tuple(a // 2 for a in lengths)
    none = torch.zeros(2, torch.Size(grid).numel(), 0, dtype=torch.float64)
    eigenvalues = spectrum(torch.ones(lengths, dtype=torch.float64), len(lengths))
    assert convolve(eigenvalues, none, lengths, grid, grid).shape == none.shape
    assert torch.equal(
        correlate(none, none, lengths, grid, grid), torch.zeros(2, *lengths, dtype=torch.float64)
    )
