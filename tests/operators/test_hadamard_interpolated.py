"""Elementwise products of one-dimensional interpolated matrices, beyond the common contract."""

import pytest
import torch
from draws import draw

from gpx.errors import DTypeError, ShapeError
from gpx.operators import HadamardInterpolated


def factors(n=20, m=15, sizes=(3, 4, 2)):
    left = [draw(n, k, seed=i) for i, k in enumerate(sizes)]
    return left, [draw(m, k, seed=9 + i) for i, k in enumerate(sizes)]


@pytest.mark.parametrize("budget", [1, 15 * 8 * 3 * 6, 2**30])
def test_tiles_of_any_size_agree_and_differentiate(budget):
    left, right = factors()
    leaves = [t.requires_grad_() for t in (*left, *right)]
    vectors = draw(15, 2, seed=30).requires_grad_()
    operator = HadamardInterpolated(*leaves, memory_budget=budget)
    dense = torch.ones(20, 15, dtype=torch.float64)
    for a, b in zip(left, right, strict=True):
        dense = dense * (a @ b.mT)
    torch.testing.assert_close(operator @ vectors, dense @ vectors, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad((operator @ vectors).square().sum(), [*leaves, vectors])
    want = torch.autograd.grad((dense @ vectors).square().sum(), [*leaves, vectors])
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-9)


def test_a_product_keeps_no_matrix_of_its_own_size():
    n = 3000
    left, right = factors(n, n)
    operator = HadamardInterpolated(*left, *right, memory_budget=2**20)
    vectors = draw(n, 1)
    with torch.profiler.profile(profile_memory=True) as profile:
        operator @ vectors
    current = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    assert peak < 2**22 < n * n * 8


def test_rows_and_columns_stay_lazy():
    left, right = factors()
    operator = HadamardInterpolated(*left, *right)
    part = operator[torch.tensor([3, 1]), :][:, torch.tensor([0, 2, 5])]
    assert isinstance(part, HadamardInterpolated)
    torch.testing.assert_close(part.to_dense(), operator.to_dense()[[3, 1]][:, [0, 2, 5]])


def test_no_rows():
    left, right = factors(n=0)
    assert (HadamardInterpolated(*left, *right) @ draw(15, 2)).shape == (0, 2)


def test_mistakes_are_explained():
    left, right = factors()
    with pytest.raises(ShapeError, match="equal numbers of columns pairwise"):
        HadamardInterpolated(*left, *right[::-1])
    with pytest.raises(ShapeError, match="expected d factors"):
        HadamardInterpolated(*left)
    with pytest.raises(DTypeError, match="convert them to one"):
        HadamardInterpolated(*left, *[f.float() for f in right])
