"""Trace estimators: unbiased, exact where they must be, errors that mean what they say."""

import itertools

import pytest
import torch

from gpx.errors import ConfigError
from gpx.linalg import probe_vectors
from gpx.linalg.trace import mean_and_error


def symmetric(n, seed=0):
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a + a.mT


def trace(matrix, probes):
    """Mean of w^T A w over the probes, and its standard error."""
    return mean_and_error((probes * (matrix @ probes)).sum(0))


def test_all_signs_enumerated_give_the_trace_exactly():
    matrix = symmetric(6)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=6)), dtype=torch.float64).mT
    found, _ = trace(matrix, signs)
    torch.testing.assert_close(found, matrix.trace(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["rademacher", "gaussian"])
def test_unbiased_with_an_honest_standard_error(kind):
    matrix = symmetric(30)
    probes = probe_vectors(30, 2000, kind=kind, generator=torch.Generator().manual_seed(0))
    found, error = trace(matrix, probes)
    assert abs(float(found - matrix.trace())) < 4 * float(error)
    frobenius = float(matrix.square().sum())
    off = frobenius - float(matrix.diagonal().square().sum())
    variance = 2 * (off if kind == "rademacher" else frobenius)
    assert float(error) == pytest.approx((variance / 2000) ** 0.5, rel=0.15)


def test_one_sign_probe_is_exact_on_a_diagonal_matrix():
    diagonal = torch.linspace(-1, 3, 20, dtype=torch.float64).diag()
    found, error = trace(diagonal, probe_vectors(20, 1))
    torch.testing.assert_close(found, diagonal.trace())
    assert float(error) == float("inf")


def test_seeds_dtypes_and_kinds():
    first = probe_vectors(9, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float32)
    again = probe_vectors(9, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float32)
    assert torch.equal(first, again)
    assert first.dtype == torch.float32
    assert set(first.unique().tolist()) == {-1.0, 1.0}
    with pytest.raises(ConfigError, match="rademacher"):
        probe_vectors(9, 3, kind="uniform")


def test_no_probes_are_refused():
    with pytest.raises(ConfigError, match="at least one probe, got 0"):
        probe_vectors(5, 0)


def test_no_probes_estimate_nothing():
    with pytest.raises(ConfigError, match="at least one probe"):
        mean_and_error(torch.ones(0))
