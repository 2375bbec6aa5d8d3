"""What a Kronecker product keeps, beyond the conformance suite."""

import pytest
import torch
from draws import draw, spd
from linear_operator.operators import KroneckerProductTriangularLinearOperator
from torch.utils.flop_counter import FlopCounterMode

from gpx.errors import DTypeError, NotPositiveDefinite, ShapeError
from gpx.kernels import RBF, Matern32
from gpx.operators import (
    Interpolated,
    Interpolation,
    KhatriRao,
    Kronecker,
    KroneckerPlusDiagonal,
    Selection,
    Sum,
    Toeplitz,
)


def product(*sizes):
    return Kronecker(*[spd(n, i) for i, n in enumerate(sizes)])


def test_a_toeplitz_factor_keeps_its_fast_product(monkeypatch):
    column = torch.exp(-torch.arange(6).double())
    toeplitz = Toeplitz(column)
    operator = Kronecker(toeplitz, spd(4))
    calls, original = [], Toeplitz._product
    monkeypatch.setattr(
        Toeplitz, "_product", lambda self, v: (calls.append(v.shape), original(self, v))[1]
    )
    dense = torch.kron(column[(torch.arange(6)[:, None] - torch.arange(6)).abs()], spd(4))
    right = draw(24, 2)
    torch.testing.assert_close(operator @ right, dense @ right)
    assert len(calls) == 1  # its own product, on the unfolded grid
    assert isinstance((3.0 * operator).mT @ right, torch.Tensor)
    torch.testing.assert_close(operator.logdet(), torch.logdet(dense))
    torch.testing.assert_close(operator.solve(right), torch.linalg.solve(dense, right))


@pytest.mark.parametrize("interpolated", [False, True])
def test_gradients_of_several_columns_pass_factors_that_are_operators(interpolated):
    """A kernel matrix has no derivative by its inputs, a selection none by its positions."""
    u = torch.linspace(0.0, 1.0, 3, dtype=torch.float64).unsqueeze(1)
    kernels = [kind(lengthscale=0.5).double() for kind in (RBF, Matern32)]
    parameters = [p for kernel in kernels for p in kernel.parameters()]
    weights = Interpolation(draw(5, 2), torch.tensor([[0, 3]] * 5), num_columns=9)

    def gradient(factors):
        whole = Kronecker(*factors)
        if interpolated:
            value = Interpolated(weights, whole) @ draw(5, 2)
        else:
            value = whole.add_jitter(0.1).solve(draw(9, 2))
        return torch.autograd.grad(value.square().sum(), parameters)

    found = gradient([kernel(u) for kernel in kernels])
    want = gradient([kernel.evaluate(u) for kernel in kernels])
    for ours, dense in zip(found, want, strict=True):
        torch.testing.assert_close(ours, dense)


def test_eigendecomposition_and_cholesky_stay_kronecker():
    operator = product(3, 4)
    values, vectors = operator.diagonalization()
    assert isinstance(vectors, Kronecker)
    q = vectors.to_dense()
    torch.testing.assert_close(q * values @ q.mT, operator.to_dense())
    lower = operator.cholesky()
    assert isinstance(lower, KroneckerProductTriangularLinearOperator)
    torch.testing.assert_close(lower.to_dense(), torch.linalg.cholesky(operator.to_dense()))
    assert isinstance(operator.root_decomposition().root, Kronecker)


def test_algebra_keeps_structure():
    a, b = product(3, 4), Kronecker(spd(3, 7), spd(4, 8))
    for found, kind, expected in [
        (2.0 * a, Kronecker, 2 * a.to_dense()),
        (a / 4.0, Kronecker, a.to_dense() / 4),
        (a + b, Sum, a.to_dense() + b.to_dense()),
        (a - b, Sum, a.to_dense() - b.to_dense()),
        (
            (a + b).add_diagonal(torch.ones(12).double()),
            Sum,
            a.to_dense() + b.to_dense() + torch.eye(12),
        ),
    ]:
        assert type(found) is kind
        torch.testing.assert_close(found.to_dense(), expected)
    joined = (a + b).add_diagonal(torch.ones(12).double())
    assert [type(t) for t in joined.terms] == [KroneckerPlusDiagonal, Kronecker]


def test_few_rows_are_khatri_rao_and_many_a_selection():
    operator = product(6, 8)
    few, many = operator[torch.tensor([5, 1]), :], operator[:40]
    assert isinstance(few, KhatriRao)
    assert isinstance(operator[:, :3], KhatriRao)
    assert isinstance(many, Selection)
    torch.testing.assert_close(many.to_dense(), operator.to_dense()[:40])
    rectangular = Kronecker(draw(3, 2), draw(2, 5, seed=1))
    torch.testing.assert_close(rectangular._diagonal(), rectangular.to_dense().diagonal())


def test_a_single_entry_or_row_never_costs_a_product():
    operator = product(20, 30, 10)
    with FlopCounterMode(display=False) as counter:
        operator[torch.tensor([5999]), torch.tensor([17])]
        operator[1234]
        operator.diagonal()
    small = product(6, 7)
    with FlopCounterMode(display=False) as entries:
        small.to_dense()  # entries are products of entries
    assert entries.get_total_flops() == 0
    assert counter.get_total_flops() == 0


def test_construction_does_no_work():
    with FlopCounterMode(display=False) as counter:
        operator = product(3, 4)
        before = counter.get_total_flops()
        rebuilt = operator.representation_tree()(*operator.representation())
        assert rebuilt.mT.shape == (12, 12)
    assert counter.get_total_flops() == before


def test_errors():
    with pytest.raises(ShapeError, match="at least one factor"):
        Kronecker()
    with pytest.raises(ShapeError, match=r"factor 2 of 2"):
        Kronecker(spd(2), draw(3))
    with pytest.raises(DTypeError, match=r"float64 on cpu, float32 on cpu; convert"):
        Kronecker(spd(2), spd(2).float())
    with pytest.raises(NotPositiveDefinite, match=r"factor 1 of 2"):
        Kronecker(-spd(2), spd(3)).logdet()
    with pytest.raises(ShapeError, match="cannot be added"):
        product(2, 3) + product(2, 2)
