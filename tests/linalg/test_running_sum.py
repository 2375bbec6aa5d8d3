"""Running sums by products with a triangle of ones, where a device's own come in any order."""

import pytest
import torch
from claimed_cuda import NotDeterministic, claimed_cuda

from gpx.linalg import kth_smallest, running_sum
from gpx.linalg.running_sum import _in_order


@pytest.fixture
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before, warn_only=True)


@pytest.mark.parametrize("shape", [(1,), (5,), (256,), (257,), (70_000,), (3, 600)])
def test_in_order_is_cumsum(shape):
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(_in_order(values), values.cumsum(-1), rtol=1e-13, atol=0.0)


def test_a_gpu_asked_for_the_same_bits_has_no_unordered_sums(deterministic):
    values = torch.rand(300, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with claimed_cuda() as waits:
        there = values.cuda()
        for refused in (
            there.cumsum,
            there.kthvalue,
            there.median,
            lambda _: torch.median(there, 0),
        ):
            with pytest.raises(NotDeterministic):
                refused(1)
        assert float(there.median()) == float(values.median())  # of all: its place is not asked
        assert (there > 0).cumsum(0).shape == there.shape  # whole numbers: any order will do
        waits.clear()
        found, third = running_sum(there), kth_smallest(there.mT, 3)
        assert not waits
        found, third = found.cpu(), third.cpu()
    torch.testing.assert_close(found, values.cumsum(0), rtol=1e-13, atol=0.0)
    assert torch.equal(third, values.kthvalue(3, 0).values)


def test_gradients_pass_and_nothing_stays_nothing(deterministic):
    weights = torch.rand(600, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = torch.zeros(600, dtype=torch.float64, requires_grad=True)
    (_in_order(values) * weights).sum().backward()
    torch.testing.assert_close(values.grad, weights.flip(0).cumsum(0).flip(0))
    with claimed_cuda():
        assert running_sum(torch.zeros(0, device="cuda")).shape == (0,)


def test_on_a_cpu_it_is_torchs_own():
    values = torch.rand(500, generator=torch.Generator().manual_seed(2))
    assert torch.equal(running_sum(values), values.cumsum(0))
