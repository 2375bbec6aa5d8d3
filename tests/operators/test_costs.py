"""Costs that docstrings state, counted: operations, transforms, products of the parts, memory."""

import pytest
import torch
from draws import draw, spd
from largest_tensor import Largest
from torch.utils.flop_counter import FlopCounterMode

from gpx.kernels import RBF
from gpx.operators import (
    BlockCirculant,
    BlockToeplitz,
    Circulant,
    Interpolated,
    Interpolation,
    KhatriRao,
    Kronecker,
    KroneckerPlusDiagonal,
    LowRankPlusDiagonal,
    Scaled,
    Selection,
    Sum,
    Toeplitz,
)

N = 1_024
"""Rows of the operators whose memory is watched: n x n would be 2^20 numbers."""


class Counted:
    """Counts the products that an operator is asked for."""

    def __init__(self, operator, monkeypatch):
        self.calls = 0
        original = operator._matmul

        def counting(rhs):
            self.calls += 1
            return original(rhs)

        monkeypatch.setattr(operator, "_matmul", counting)


def decay(n):
    return torch.exp(-torch.arange(n, dtype=torch.float64) / 20)


def wrapped(n):
    lag = torch.arange(n, dtype=torch.float64)
    return torch.exp(-torch.minimum(lag, n - lag) / 20)


def interpolation(n, m, q=4):
    place = (torch.arange(n)[:, None] + torch.arange(q)) % m
    return Interpolation(draw(n, q), place, num_columns=m)


# numbers allowed in one temporary of a product with two columns, beside the operator's own tensors
SMALL = {
    "Kronecker": (lambda: Kronecker(spd(32), spd(32)), 2 * N),
    "KroneckerPlusDiagonal": (
        lambda: KroneckerPlusDiagonal(Kronecker(spd(32), spd(32)), draw(N).abs() + 1.0),
        2 * N,
    ),
    # n sqrt(m) c for the m = N columns
    "KhatriRao": (lambda: KhatriRao(draw(N, 8), draw(N, 8), draw(N, 16)), N * 32 * 2),
    "LowRankPlusDiagonal": (lambda: LowRankPlusDiagonal(draw(N, 3), draw(N).abs()), 3 * N),
    "Toeplitz": (lambda: Toeplitz(decay(N)), 2 * 2 * 2.2 * N),
    "Circulant": (lambda: Circulant(wrapped(N)), 2 * 2 * 1.1 * N),
    "BlockCirculant": (lambda: BlockCirculant(draw(32, 32), levels=2), 2 * 2 * 1.1 * N),
    "BlockToeplitz": (
        lambda: BlockToeplitz(torch.outer(decay(32), decay(32)), grid=(32, 32)),
        2 * 2 * 4.5 * N,
    ),
    "Interpolated": (lambda: Interpolated(interpolation(N, 256), Toeplitz(decay(256))), 4 * N + 1),
    "Selection": (
        lambda: Selection(Toeplitz(decay(N)), rows=torch.arange(5), columns=torch.arange(7)),
        2 * 2 * 2.2 * N,
    ),
    "Scaled": (lambda: Scaled(Toeplitz(decay(N)), torch.tensor(2.0).double()), 2 * 2 * 2.2 * N),
    "Sum": (
        lambda: Sum(Toeplitz(decay(N)), LowRankPlusDiagonal(draw(N, 3), draw(N).abs())),
        2 * 2 * 2.2 * N,
    ),
    "Product": (lambda: Toeplitz(decay(N)) @ Kronecker(spd(32), spd(32)), 2 * 2 * 2.2 * N),
    "KernelMatrix": (
        lambda: RBF(2).double()(draw(N, 2), memory_budget=2**18, backend="chunked"),
        2**18 // 8,
    ),
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_product_holds_no_square_array(name):
    build, allowed = SMALL[name]
    operator = build()
    right = draw(operator.shape[-1], 2)
    with Largest() as watch:
        operator @ right
    assert watch.bytes <= 8 * allowed
    assert allowed < N * N / 8


def test_kronecker_plus_constant_noise():
    m, c = (6, 7), 3
    size, each = 42, 2 * 3 * 42 * 13
    operator = KroneckerPlusDiagonal(Kronecker(spd(6), spd(7)), torch.ones(1).double())
    counts = []
    for work in (
        lambda: operator @ draw(size, c),
        operator.logdet,  # decomposes, with no product of the grid's size
        lambda: operator.solve(draw(size, c)),
        operator.logdet,
    ):
        with FlopCounterMode(display=False) as counter:
            work()
        counts.append(counter.get_total_flops())
    assert sum(m) == 13
    assert counts == [each, 0, 2 * each, 0]


def test_a_circulant_costs_two_transforms_and_its_spectrum_one(monkeypatch):
    calls = []
    for name in ("rfft", "irfft", "rfftn", "irfftn", "fftn"):
        original = getattr(torch.fft, name)

        def counting(*args, _original=original, _name=name, **kwargs):
            calls.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(torch.fft, name, counting)
    operator = Circulant(wrapped(600))
    right = draw(600, 3)
    operator @ right
    assert len(calls) == 3  # the spectrum, there and back
    for work in (lambda: operator @ right, lambda: operator.solve(right)):
        calls.clear()
        work()
        assert len(calls) == 2


@pytest.mark.parametrize("kind", ["selection", "interpolated", "scaled", "sum", "product"])
def test_every_part_is_asked_once(kind, monkeypatch):
    base, other = Toeplitz(decay(60)), Toeplitz(decay(60) ** 2, decay(60))
    build = {
        "selection": lambda: Selection(base, rows=torch.tensor([3, 1]), columns=torch.tensor([7])),
        "interpolated": lambda: Interpolated(interpolation(90, 60), base),
        "scaled": lambda: Scaled(base, torch.tensor(2.0).double()),
        "sum": lambda: Sum(base, other),
        "product": lambda: base @ other,
    }
    operator = build[kind]()
    counted = [Counted(base, monkeypatch), Counted(other, monkeypatch)]
    operator @ draw(operator.shape[-1], 2)
    assert [c.calls for c in counted] == [1, int(kind in ("sum", "product"))]


def test_a_diagonal_of_interpolated_entries_looks_up_q_squared_each(monkeypatch):
    n, q, seen = 50, 4, []
    operator = Interpolated(interpolation(n, 30, q), Toeplitz(decay(30)))
    original = Toeplitz._get_indices

    def watched(self, row_index, col_index, *batch):
        seen.append(row_index.numel())
        return original(self, row_index, col_index, *batch)

    monkeypatch.setattr(Toeplitz, "_get_indices", watched)
    operator.diagonal()
    assert sum(seen) == n * q * q
