"""(U^T U)^-1 in the factor's memory, by LAPACK on a CPU and by blocks elsewhere."""

import pytest
import torch
from claimed_cuda import claimed_cuda
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.linalg import (
    blocked_inverse,
    cholesky_in_place,
    inverse_from_factor,
    inverse_of_factor,
)


def definite(n, dtype=torch.float64):
    root = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return (root @ root.mT / n + torch.eye(n, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize(("n", "block"), [(1, 4), (7, 3), (12, 4), (30, 7), (30, 64), (600, None)])
def test_blocks_give_the_dense_inverse(n, block):
    matrix = definite(n)
    found = blocked_inverse(torch.linalg.cholesky(matrix), block)
    expected = torch.linalg.inv(matrix)
    assert (found - expected).abs().max() < 1e-13 * expected.abs().max() * n


def test_float32_is_right_to_its_rounding():
    matrix = definite(500)
    found = blocked_inverse(torch.linalg.cholesky(matrix.float()), 64).double()
    expected = torch.linalg.inv(matrix)
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_what_is_above_the_diagonal_is_never_read():
    lower = torch.linalg.cholesky(definite(20))
    expected = blocked_inverse(lower.clone(), 6)
    filled = lower + torch.full_like(lower, torch.nan).triu(1)
    filled[torch.block_diag(*(torch.ones(6, 6),) * 3, torch.ones(2, 2)).bool()] = lower[
        torch.block_diag(*(torch.ones(6, 6),) * 3, torch.ones(2, 2)).bool()
    ]  # only whole blocks above the diagonal are left alone
    assert torch.equal(blocked_inverse(filled, 6), expected)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_both_devices_take_the_same_door(batch):
    matrix = definite(40)
    if batch:
        matrix = torch.stack([matrix, 2.0 * matrix + 1.0, torch.eye(40).double()])

    def through(buffer):
        upper, _ = cholesky_in_place(lambda b: b.copy_(matrix.to(b.device)), buffer)
        return inverse_from_factor(upper)

    here = through(torch.empty_like(matrix))
    with claimed_cuda() as waits:
        there = through(torch.empty_like(matrix, device="cuda"))
        assert waits.total() == 1  # of the factorisation
        there = there.cpu()
    torch.testing.assert_close(here, torch.linalg.inv(matrix), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(there, here, rtol=1e-11, atol=1e-13)


class Largest(TorchDispatchMode):
    """Numbers in the largest array that is made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and not getattr(function, "is_view", False):
            given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
            if found.untyped_storage().data_ptr() not in given:
                self.numbers = max(self.numbers, found.numel())
        return found


def test_it_holds_blocks_beside_the_matrix():
    lower = torch.linalg.cholesky(definite(200))
    with Largest() as made:
        blocked_inverse(lower, 20)
    assert 0 < made.numbers <= 20 * 20


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_new_inverse_leaves_the_factor_alone(batch):
    lower = torch.linalg.cholesky(definite(40).expand(*batch, 40, 40))
    known, expected = lower.clone(), torch.linalg.inv(lower @ lower.mT)
    assert torch.allclose(inverse_of_factor(lower), expected, rtol=1e-11, atol=1e-12)
    with claimed_cuda() as waits:
        there = lower.cuda()
        waits.clear()
        found = inverse_of_factor(there)
        assert not waits
        assert torch.allclose(found.cpu(), expected, rtol=1e-11, atol=1e-12)
        assert torch.equal(there.cpu(), known)
    assert torch.equal(lower, known)
