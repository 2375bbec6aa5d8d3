"""Woodbury with kept factors, and what it costs."""

import pytest
import torch
from draws import draw
from torch.utils.flop_counter import FlopCounterMode

import gpx.linalg.preconditioners.low_rank as core
import gpx.operators.low_rank_plus_diagonal as module
from gpx.errors import DTypeError, NotPositiveDefinite, ShapeError
from gpx.operators import LowRankPlusDiagonal, Scaled


def make(n=40, k=5):
    return LowRankPlusDiagonal(draw(n, k), draw(n, seed=1).square() + 0.1)


@pytest.fixture
def factorisations(monkeypatch):
    calls, original = [], core.cholesky
    monkeypatch.setattr(
        core, "cholesky", lambda *a, **k: (calls.append(a[0].dtype), original(*a, **k))[1]
    )
    return calls


def test_one_factorisation_serves_everything_until_a_tensor_changes(factorisations):
    operator = make()
    operator.factor.requires_grad_()
    quad, logdet = operator.inv_quad_logdet(draw(40, 2), logdet=True)
    (quad + logdet).backward()
    operator.solve(draw(40))
    assert factorisations == [torch.float64]
    with torch.no_grad():
        operator.diagonal_values += 1.0
    torch.testing.assert_close(operator.logdet(), torch.logdet(operator.to_dense()))
    assert len(factorisations) == 2


def test_float32_is_factorised_in_float64(factorisations):
    single = make().float()
    exact = make().logdet()
    torch.testing.assert_close(single.logdet().double(), exact, rtol=1e-5, atol=0)
    assert factorisations[0] == torch.float64


def test_operations():
    """The first solve n k^2 (2 multiply-adds) at most, then four thin products."""
    n, k = 600, 8
    operator = make(n, k)
    with FlopCounterMode(display=False) as counter:
        operator.logdet()
    assert counter.get_total_flops() <= 2 * n * k * k
    with FlopCounterMode(display=False) as counter:
        operator.solve(draw(n, 3))
    assert counter.get_total_flops() == 4 * n * k * 3
    with FlopCounterMode(display=False) as counter:
        operator.logdet()
        operator.diagonal()
        operator[3, 4]
    assert counter.get_total_flops() == 0


def test_chunks_change_nothing(monkeypatch):
    expected = make().logdet()
    monkeypatch.setattr(module, "CHUNK_BYTES", 8 * 5 * 7)
    torch.testing.assert_close(make().logdet(), expected, rtol=1e-13, atol=0)


def test_roots_and_samples():
    operator = make()
    dense = operator.to_dense()
    wide = operator.root_decomposition().root
    assert wide.shape == wide.mT.shape[::-1] == (40, 45)
    generator = torch.Generator().manual_seed(3)
    first = operator.zero_mean_mvn_samples(4, generator)
    again = operator.zero_mean_mvn_samples(4, generator.manual_seed(3))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    draws = torch.randn(45, 4, generator=generator.manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(first, (wide.to_dense() @ draws).mT)
    torch.testing.assert_close(wide @ draws, wide.to_dense() @ draws)
    torch.testing.assert_close(wide.to_dense() @ wide.to_dense().mT, dense)
    # without a diagonal there is a root, and no inverse
    bare = LowRankPlusDiagonal(operator.factor, torch.zeros(1).double())
    torch.testing.assert_close(
        bare.root_decomposition().to_dense(), operator.factor @ operator.factor.mT
    )


def test_algebra_keeps_woodbury():
    a, b = make(), LowRankPlusDiagonal(draw(40, 2, seed=5), torch.ones(1).double())
    joined = a + b
    assert isinstance(joined, LowRankPlusDiagonal)
    assert joined.factor.shape == (40, 7)
    torch.testing.assert_close(joined.to_dense(), a.to_dense() + b.to_dense())
    noisy = (3.0 * a).add_diagonal(torch.tensor(0.5, dtype=torch.float64))
    assert isinstance(noisy, Scaled)
    assert isinstance(noisy.base, LowRankPlusDiagonal)
    negative = -1.0 * a
    torch.testing.assert_close(negative.to_dense(), -a.to_dense())
    extended = a + b.root_decomposition()
    assert isinstance(extended, LowRankPlusDiagonal)
    torch.testing.assert_close(extended.to_dense(), joined.to_dense())


def test_second_derivatives_are_refused_and_not_silently_wrong():
    operator = make()
    operator.factor.requires_grad_()
    (grad,) = torch.autograd.grad(operator.logdet(), operator.factor, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()


def test_errors():
    with pytest.raises(ShapeError, match=r"expected \(..., n, k\)"):
        LowRankPlusDiagonal(draw(4, 2), torch.ones(3).double())
    with pytest.raises(DTypeError, match="float32"):
        LowRankPlusDiagonal(draw(4, 2), torch.ones(4))
    bad = LowRankPlusDiagonal(draw(4, 2), torch.tensor([1.0, -0.5, 1.0, 1.0]).double())
    for call in (bad.logdet, lambda: bad.solve(draw(4))):
        with pytest.raises(NotPositiveDefinite, match=r"-5.00e-01.*Raise the noise"):
            call()


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_roots_and_samples_need_a_diagonal_that_has_a_root(value):
    operator = LowRankPlusDiagonal(
        torch.ones(4, 2, dtype=torch.float64), torch.tensor([value], dtype=torch.float64)
    )
    for refused in (
        operator.root_decomposition,
        lambda: operator.zero_mean_mvn_samples(2),
    ):
        with pytest.raises(NotPositiveDefinite, match="expected positive, finite"):
            refused()
