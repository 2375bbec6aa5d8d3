"""Chebyshev log-determinants against dense ones."""

import itertools

import pytest
import torch

from gpx.errors import ConfigError
from gpx.linalg import chebyshev_logdet, enough_degree, largest_eigenvalue, log_error


def spd(n=60, condition=500.0):
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    values = torch.logspace(0.0, 1.0, n, base=condition, dtype=torch.float64)
    return basis @ (values.unsqueeze(1) * basis.mT)


@pytest.mark.parametrize(("degree", "allowed"), [(25, 2e-1), (100, 1e-4)])
def test_unit_vectors_as_probes_give_the_log_determinant(degree, allowed):
    matrix = spd()
    eye = torch.eye(60, dtype=torch.float64)
    found = chebyshev_logdet(matrix.matmul, 60**0.5 * eye, low=1.0, high=500.0, degree=degree)
    want = torch.logdet(matrix)
    torch.testing.assert_close(found.value, want, rtol=allowed / 60, atol=0.0)
    assert abs(float(found.value - want)) <= 60 * log_error(1.0, 500.0, degree)


def test_all_signs_average_to_the_log_determinant():
    matrix = spd(5, 20.0)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=5)), dtype=torch.float64).mT
    found = chebyshev_logdet(matrix.matmul, signs, low=1.0, high=20.0)
    torch.testing.assert_close(found.value, torch.logdet(matrix), rtol=1e-10, atol=0.0)


def test_the_degree_that_is_enough_has_the_error_it_says():
    for condition in (10.0, 500.0, 20_000.0):
        assert log_error(1.0, condition, enough_degree(1.0, condition)) < 5e-4


def test_power_steps_end_above_the_largest_eigenvalue():
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    assert 500.0 < largest_eigenvalue(spd().matmul, start) < 560.0


def test_an_interval_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="0 < low < high"):
        chebyshev_logdet(spd().matmul, torch.ones(60, 1).double(), low=0.0, high=1.0)
