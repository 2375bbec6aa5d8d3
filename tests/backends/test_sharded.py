"""Rows of a kernel matrix divided among processes, which are played one after the other."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from gpx.backends import Chunked, Dense, Entries, Sharded, is_shared, own_rows
from gpx.kernels import RBF, Matern12
from gpx.linalg.processes import ALONE, Processes, sharing, work_shared


@dataclass(frozen=True)
class Played(Processes):
    """A process that keeps what it would send, and goes on with its own part."""

    sent: list[Tensor] = field(default_factory=list)

    def all_sum(self, *tensors: Tensor) -> None:
        self.sent.extend(tensors)

    def all_gather(self, part: Tensor, total: int) -> Tensor:
        self.sent.append(part)
        return part


def entries_of(kernel, x1, x2=None):
    names, parameters = zip(*kernel.named_parameters(), strict=True)
    return Entries(kernel, names, parameters, x1, x1 if x2 is None else x2, x2 is None)


@pytest.fixture
def draws():
    return torch.Generator().manual_seed(0)


def played(entries, count, make):
    return [Sharded(entries, Played(number, count), make) for number in range(count)]


@pytest.mark.parametrize("make", [lambda: Chunked(2**16), lambda: Dense(2**16)])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_products_of_a_square_matrix_are_its_rows(draws, make, count):
    x = torch.randn(101, 2, generator=draws, dtype=torch.float64)
    right = torch.randn(101, 3, generator=draws, dtype=torch.float64)
    entries = entries_of(Matern12(lengthscale=0.7, outputscale=2.0).double(), x)
    whole = entries.evaluate().detach() @ right
    for transposed in (False, True):
        parts = []
        for engine in played(entries, count, make):
            engine.product(entries, right, transposed=transposed)
            parts += engine.processes.sent
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [lambda: Chunked(2**16), lambda: Dense(2**16)])
def test_products_of_a_rectangle(draws, make):
    x1 = torch.randn(40, 2, generator=draws, dtype=torch.float64)
    x2 = torch.randn(23, 2, generator=draws, dtype=torch.float64)
    entries = entries_of(RBF(lengthscale=0.7).double(), x1, x2)
    matrix = entries.evaluate().detach()
    engines = played(entries, 3, make)
    right = torch.randn(23, 2, generator=draws, dtype=torch.float64)
    rows = [engine.product(entries, right, transposed=False) for engine in engines]
    torch.testing.assert_close(torch.cat(rows), matrix @ right, rtol=1e-12, atol=1e-12)
    left = torch.randn(40, 2, generator=draws, dtype=torch.float64)
    sums = [engine.product(entries, left, transposed=True) for engine in engines]
    torch.testing.assert_close(sum(sums), matrix.mT @ left, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("square", [True, False])
@pytest.mark.parametrize("with_inputs", [True, False])
def test_gradients_add_up_to_those_of_one_process(draws, square, with_inputs):
    x1 = torch.randn(41, 2, generator=draws, dtype=torch.float64).requires_grad_(with_inputs)
    x2 = None if square else torch.randn(23, 2, generator=draws, dtype=torch.float64)
    entries = entries_of(RBF(lengthscale=[0.7, 1.1], ard_num_dims=2).double(), x1, x2)
    left = torch.randn(41, 3, generator=draws, dtype=torch.float64)
    right = torch.randn(entries.shape[1], 3, generator=draws, dtype=torch.float64)
    expected = Chunked(2**16).derivative(entries, left, right)
    found = [e.derivative(entries, left, right) for e in played(entries, 4, lambda: Chunked(2**16))]
    for place, wanted in enumerate(expected):
        if wanted is None:
            assert all(part[place] is None for part in found)
        else:
            total = sum(part[place] for part in found)
            torch.testing.assert_close(total, wanted, rtol=1e-11, atol=1e-11)


def test_more_processes_than_rows(draws):
    x = torch.randn(3, 2, generator=draws, dtype=torch.float64)
    entries = entries_of(RBF().double(), x)
    right = torch.ones(3, 1, dtype=torch.float64)
    engines = played(entries, 5, lambda: Chunked(2**16))
    parts = [engine.product(entries, right, transposed=False) for engine in engines]
    torch.testing.assert_close(torch.cat(parts), entries.evaluate().detach() @ right)
    assert sorted(len(part) for part in parts) == [0, 0, 1, 1, 1]


def test_small_matrices_and_single_processes_are_not_divided(draws):
    x = torch.randn(600, 2, generator=draws)
    entries = entries_of(RBF(), x)
    assert is_shared(entries, Processes(0, 2))
    assert not is_shared(entries, ALONE)
    assert not is_shared(entries_of(RBF(), x[:100]), Processes(0, 2))
    assert own_rows(entries, Processes(1, 2)).shape == (300, 600)


def test_an_operator_forgets_its_engine_where_the_work_is_shared_no_more(draws):
    x = torch.randn(600, 2, generator=draws, dtype=torch.float64)
    operator = RBF(lengthscale=0.5).double()(x)
    right = torch.randn(600, 1, generator=draws, dtype=torch.float64)
    whole = operator @ right
    mine = Played(1, 2)
    with work_shared(mine):
        assert sharing() is mine
        assert isinstance(operator.engine, Sharded)
        part = operator.engine.product(operator.entries, right, transposed=False)
    torch.testing.assert_close(part, whole[300:], rtol=1e-12, atol=1e-12)
    assert sharing() is ALONE
    torch.testing.assert_close(operator @ right, whole, rtol=1e-12, atol=1e-12)
