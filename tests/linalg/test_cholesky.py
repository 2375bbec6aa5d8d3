"""Cholesky: the ladder of jitters, in place, and errors that help."""

import pytest
import torch
from claimed_cuda import claimed_cuda

from gpx.errors import DTypeError, NotPositiveDefinite, ShapeError
from gpx.linalg import cholesky, cholesky_in_place, upper_solve
from gpx.linalg.cholesky import checks_deferred


def positive(n=12, dtype=torch.float64):
    root = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (root @ root.mT + torch.eye(n, dtype=torch.float64)).to(dtype)


def filler(matrix):
    calls = []

    def fill(buffer):
        calls.append(1)
        buffer.copy_(matrix.tril())

    return fill, calls


def test_factor_without_jitter():
    matrix = positive()
    factor, report = cholesky(matrix)
    torch.testing.assert_close(factor @ factor.mT, matrix)
    assert report.jitter == report.relative == 0.0
    assert report.tried == (0.0,)


def test_in_place_factor_uses_only_the_buffer_and_the_lower_triangle():
    matrix = positive()
    fill, calls = filler(matrix)
    buffer = torch.full((12, 12), float("nan"), dtype=torch.float64)
    upper, report = cholesky_in_place(fill, buffer)
    assert upper.data_ptr() == buffer.data_ptr()
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.mT @ upper, matrix)
    assert len(calls) == 1
    assert report.jitter == 0.0
    right = torch.randn(12, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(matrix @ upper_solve(upper, right), right)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_smallest_sufficient_jitter_is_used_and_reported(in_place):
    matrix = 4.0 * torch.eye(6, dtype=torch.float64)
    matrix[5, 5] = -1e-7  # mean diagonal 20/6: a relative jitter of 1e-8 is too small, 1e-6 is not
    fill, calls = filler(matrix)
    if in_place:
        upper, report = cholesky_in_place(fill, torch.empty_like(matrix))
        factor = upper.mT
        assert len(calls) == 5
    else:
        factor, report = cholesky(matrix)
    assert report.relative == 1e-6
    assert report.jitter == pytest.approx(1e-6 * float(matrix.diagonal().mean()))
    assert len(report.tried) == 5
    want = matrix + report.jitter * torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(factor @ factor.mT, want, rtol=1e-9, atol=1e-12)


def test_a_failure_names_matrix_eigenvalue_duplicates_and_remedies():
    matrix = -torch.ones(3, 3, dtype=torch.float32)
    expected = (
        r"the Gram matrix \(3 x 3, float32\) is not positive definite: smallest eigenvalue "
        r"-3.00e\+00, 2 duplicate rows; jitters tried: .*dtype=float64.*fewer points"
    )
    texts = {"name": "the Gram matrix", "hint": "fewer points"}
    with pytest.raises(NotPositiveDefinite, match=expected):
        cholesky(matrix, **texts)
    with pytest.raises(NotPositiveDefinite, match=expected):
        cholesky_in_place(filler(matrix)[0], torch.empty_like(matrix), **texts)


def test_a_matrix_of_zeros_is_said_to_be_one():
    """No jitter is relative to it, so that none is of use."""
    with pytest.raises(NotPositiveDefinite, match=r"K_zz .*: all of its entries are zero"):
        cholesky(torch.zeros(3, 3, dtype=torch.float64), name="K_zz")


def test_nan_is_named_and_rectangles_are_refused():
    matrix = positive()
    matrix[3, 2] = float("nan")
    with pytest.raises(NotPositiveDefinite, match="NaN or infinite"):
        cholesky(matrix)
    with pytest.raises(ShapeError, match="must be square"):
        cholesky(matrix[:3])


def test_each_matrix_of_a_batch_has_jitter_on_its_own_scale():
    flat = torch.ones(6, 6, dtype=torch.float64)
    batch = torch.stack([1e6 * torch.eye(6, dtype=torch.float64), 1e-3 * flat])
    factor, report = cholesky(batch)
    gap = factor @ factor.mT - batch
    assert report.relative > 0.0
    assert report.jitter == pytest.approx(1e6 * report.relative)
    assert float(gap[1].abs().max()) <= 2e-3 * report.relative


def test_an_empty_matrix_needs_no_jitter():
    factor, report = cholesky(torch.zeros(0, 0, dtype=torch.float64))
    assert factor.shape == (0, 0)
    assert (report.jitter, report.tried) == (0.0, (0.0,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_types_without_factorisations_are_named(dtype):
    with pytest.raises(DTypeError, match="exist in float32 and float64"):
        cholesky(torch.eye(2, dtype=dtype))


def test_a_factor_in_place_does_not_wait_where_checks_are_deferred():
    matrix = positive()
    with claimed_cuda() as waits, checks_deferred() as failed:
        buffer = torch.empty_like(matrix).cuda()
        upper, report = cholesky_in_place(filler(matrix.cuda())[0], buffer)
        _, bad = cholesky_in_place(filler(-matrix.cuda())[0], buffer.clone(), ladder=(0.0,))
        assert not waits
        assert [bool(each) for each in failed] == [False, True]
        torch.testing.assert_close((upper.mT @ upper).cpu(), matrix)
    assert report.jitter == bad.jitter == 0.0


@pytest.mark.parametrize("shape", [(128, 128), (2, 3, 128, 128)])
def test_rows_that_share_sets_of_the_cache_are_factorised_beside_an_identity(monkeypatch, shape):
    """LAPACK takes twice the time at such sizes; the buffer holds the factors all the same."""
    root = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(128, dtype=torch.float64)
    sizes, factorise = [], torch.linalg.cholesky_ex

    def noted(given, **options):
        sizes.append(given.shape[-1])
        return factorise(given, **options)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", noted)
    fill, _ = filler(matrix)
    buffer = torch.full(shape, float("nan"), dtype=torch.float64)
    upper, report = cholesky_in_place(fill, buffer)
    assert set(sizes) == {136}
    assert upper.data_ptr() == buffer.data_ptr()
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.mT @ upper, matrix)
    assert report.jitter == 0.0


def test_one_matrix_of_such_a_batch_that_is_not_positive_definite_is_an_error():
    matrix = torch.eye(192, dtype=torch.float64).repeat(3, 1, 1)
    matrix[1, 5, 5] = -1.0
    fill, _ = filler(matrix)
    with pytest.raises(NotPositiveDefinite, match="192 x 192"):
        cholesky_in_place(fill, torch.empty_like(matrix), ladder=(0.0,))
