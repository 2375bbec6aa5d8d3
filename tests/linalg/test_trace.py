"""Trace estimators: unbiased, exact where they must be, errors that mean what they say."""

import itertools

import pytest
import torch

from gpx.errors import ConfigError
from gpx.linalg import hutch_plus_plus_trace, hutchinson_trace, probe_vectors


def symmetric(n, seed=0):
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a + a.mT


def test_all_signs_enumerated_give_the_trace_exactly():
    matrix = symmetric(6)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=6)), dtype=torch.float64).mT
    found = hutchinson_trace(matrix.matmul, signs)
    torch.testing.assert_close(found.value, matrix.trace(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["rademacher", "gaussian"])
def test_unbiased_with_an_honest_standard_error(kind):
    matrix = symmetric(30)
    probes = probe_vectors(30, 2000, kind=kind, generator=torch.Generator().manual_seed(0))
    found = hutchinson_trace(matrix.matmul, probes)
    assert abs(float(found.value - matrix.trace())) < 4 * float(found.standard_error)
    frobenius = float(matrix.square().sum())
    off = frobenius - float(matrix.diagonal().square().sum())
    variance = 2 * (off if kind == "rademacher" else frobenius)
    assert float(found.standard_error) == pytest.approx((variance / 2000) ** 0.5, rel=0.15)


def test_one_sign_probe_is_exact_on_a_diagonal_matrix():
    diagonal = torch.linspace(-1, 3, 20, dtype=torch.float64).diag()
    found = hutchinson_trace(diagonal.matmul, probe_vectors(20, 1))
    torch.testing.assert_close(found.value, diagonal.trace())
    assert float(found.standard_error) == float("inf")


def test_hutch_plus_plus_is_unbiased_and_exact_on_low_rank():
    matrix = symmetric(18)
    generator = torch.Generator().manual_seed(0)
    values = torch.stack(
        [hutch_plus_plus_trace(matrix.matmul, 18, 9, generator=generator).value for _ in range(200)]
    )
    error = float(values.std()) / 200**0.5
    assert abs(float(values.mean() - matrix.trace())) < 4 * error
    factor = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    low = factor @ factor.mT
    found = hutch_plus_plus_trace(low.matmul, 50, 15, generator=generator)
    torch.testing.assert_close(found.value, low.trace(), rtol=1e-10, atol=0)


def test_hutch_plus_plus_beats_hutchinson_for_decaying_spectra_at_equal_products():
    generator = torch.Generator().manual_seed(1)
    q, _ = torch.linalg.qr(torch.randn(80, 80, generator=generator, dtype=torch.float64))
    matrix = (q * torch.arange(1, 81, dtype=torch.float64).pow(-2.0)) @ q.mT
    calls = []

    def matmul(vectors):
        calls.append(vectors.shape[1])
        return matrix @ vectors

    errors = torch.zeros(2, 40, dtype=torch.float64)
    for i in range(40):
        calls.clear()
        errors[0, i] = hutch_plus_plus_trace(matmul, 80, 30, generator=generator).value
        assert sum(calls) == 30
        errors[1, i] = hutchinson_trace(matmul, probe_vectors(80, 30, generator=generator)).value
    spread = (errors - matrix.trace()).square().mean(1).sqrt()
    assert float(spread[0]) < 0.2 * float(spread[1])


def test_seeds_dtypes_and_kinds():
    first = probe_vectors(9, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float32)
    again = probe_vectors(9, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float32)
    assert torch.equal(first, again)
    assert first.dtype == torch.float32
    assert set(first.unique().tolist()) == {-1.0, 1.0}
    with pytest.raises(ConfigError, match="rademacher"):
        probe_vectors(9, 3, kind="uniform")
    with pytest.raises(ConfigError, match="at least 3"):
        hutch_plus_plus_trace(symmetric(4).matmul, 4, 2)


def test_no_probes_are_refused():
    with pytest.raises(ConfigError, match="at least one probe, got 0"):
        probe_vectors(5, 0)


def test_no_probes_estimate_nothing():
    with pytest.raises(ConfigError, match="at least one probe"):
        hutchinson_trace(lambda v: v, torch.ones(4, 0))
