"""Log-determinants by quadrature: bracket, standard error, early stop, preconditioning."""

import itertools

import golden_g1 as g1
import pytest
import torch

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.linalg import (
    conjugate_gradients,
    logdet_quadrature,
    nystrom_preconditioner,
    probe_vectors,
    quadrature_of_solve,
    stochastic_lanczos_quadrature,
)


def preconditioner():
    return nystrom_preconditioner(g1.K_zz, g1.K_zx, g1.NOISE)


@pytest.mark.parametrize("kind", ["rademacher", "gaussian"])
@pytest.mark.parametrize("with_q", [False, True])
def test_unbiased_once_the_bracket_is_closed(kind, with_q):
    probes = probe_vectors(200, 100, kind=kind, generator=torch.Generator().manual_seed(0))
    found = logdet_quadrature(
        g1.K.matmul,
        probes,
        steps=6 if with_q else 30,
        node=None if with_q else g1.NOISE,
        preconditioner=preconditioner() if with_q else None,
    )
    assert float(found.bracket[1] - found.bracket[0]) < 1e-3
    assert abs(float(found.value) - g1.LOGDET) < 4 * float(found.standard_error)


def test_a_preconditioner_reduces_the_scatter():
    probes = probe_vectors(200, 30, generator=torch.Generator().manual_seed(0))
    plain = logdet_quadrature(g1.K.matmul, probes, steps=20, node=g1.NOISE)
    better = logdet_quadrature(g1.K.matmul, probes, steps=20, preconditioner=preconditioner())
    assert float(better.standard_error) < 0.05 * float(plain.standard_error)


def test_all_signs_enumerated_bracket_the_exact_determinant_at_every_step():
    matrix = g1.K[:160:20, :160:20]
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=8)), dtype=torch.float64).mT
    exact = float(torch.logdet(matrix))
    for steps in range(1, 9):
        found = logdet_quadrature(matrix.matmul, signs, steps=steps, node=g1.NOISE)
        assert float(found.bracket[0]) - 1e-9 <= exact <= float(found.bracket[1]) + 1e-9
        assert bool((found.radau <= found.gauss + 1e-9).all())
    assert float(found.value) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("node", [None, 0.5])
def test_with_a_preconditioner_the_node_is_one_or_the_one_given(node):
    probes = probe_vectors(200, 3, generator=torch.Generator().manual_seed(0))
    q = preconditioner()
    found = logdet_quadrature(g1.K.matmul, probes, steps=2, node=node, preconditioner=q)
    left = q.inverse_root_matmul(torch.eye(200, dtype=torch.float64))
    whitened = left @ g1.K @ left.mT
    want = stochastic_lanczos_quadrature(
        whitened.matmul, torch.log, probes, steps=2, node=node or 1.0
    )
    torch.testing.assert_close(found.radau, want.radau, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.gauss, want.gauss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.value, want.value + q.logdet(), rtol=1e-9, atol=0)


def test_it_stops_once_the_bracket_is_narrow_and_says_when_it_never_was():
    probes = probe_vectors(200, 5, generator=torch.Generator().manual_seed(0))
    calls = []

    def matmul(vectors):
        calls.append(vectors.shape[1])
        return g1.K @ vectors

    found = logdet_quadrature(matmul, probes, steps=100, node=g1.NOISE, width=0.5)
    assert found.converged
    assert len(calls) == found.steps < 40
    assert float(found.bracket[1] - found.bracket[0]) <= 0.5
    short = logdet_quadrature(matmul, probes, steps=5, node=g1.NOISE, width=1e-6)
    assert not short.converged
    assert logdet_quadrature(matmul, probes, steps=5, node=g1.NOISE).converged  # nothing asked for
    with pytest.raises(ConfigError, match="width without a node"):
        logdet_quadrature(matmul, probes, width=0.1)


def test_other_functions_than_the_logarithm():
    probes = probe_vectors(200, 100, generator=torch.Generator().manual_seed(1))
    found = stochastic_lanczos_quadrature(g1.K.matmul, torch.reciprocal, probes, steps=40)
    exact = float(torch.linalg.inv(g1.K).trace())
    assert abs(float(found.value) - exact) < 4 * float(found.standard_error)
    assert torch.equal(found.gauss, found.radau)


def test_a_logarithm_of_a_matrix_that_is_not_positive_definite_is_refused():
    matrix = torch.diag(torch.linspace(-1.0, 5.0, 20, dtype=torch.float64))
    probes = probe_vectors(20, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(NotPositiveDefinite, match="Ritz values, which range from -"):
        logdet_quadrature(matrix.matmul, probes, steps=10)


def test_intervals_cover_and_brackets_hold_probe_by_probe():
    x = torch.linspace(0, 1, 30, dtype=torch.float64)
    matrix = torch.exp(-((x.unsqueeze(-1) - x) ** 2) / 0.02) + 0.1 * torch.eye(30).double()
    values, vectors = torch.linalg.eigh(matrix)
    logarithm = (vectors * values.log()) @ vectors.mT
    exact, generator, covered = float(values.log().sum()), torch.Generator().manual_seed(1), 0
    for _ in range(60):
        probes = probe_vectors(30, 20, kind="gaussian", generator=generator)
        for steps in (2, 8):
            found = logdet_quadrature(matrix.matmul, probes, steps=steps, node=0.1)
            each = (probes * (logarithm @ probes)).sum(0)
            assert bool((found.radau <= each + 1e-8).all())
            assert bool((each <= found.gauss + 1e-8).all())
        low, high = found.interval(2.0)
        covered += bool(low <= exact <= high)
    assert covered >= 50  # 2 standard errors of 20 probes cover 94 %: 50 of 60 or fewer is 1 in 500


@pytest.mark.parametrize("with_q", [False, True])
@pytest.mark.parametrize("node", [None, 0.5])
def test_a_solve_of_probes_gives_the_same_quadrature(with_q, node):
    probes = probe_vectors(200, 3, generator=torch.Generator().manual_seed(1))
    q = preconditioner() if with_q else None
    node = g1.NOISE / 2 if node and not with_q else node
    whole = probes if q is None else q.root_matmul(probes)
    solved = conjugate_gradients(
        g1.K.matmul,
        torch.cat([g1.y.unsqueeze(1), whole], 1),
        preconditioner=q,
        max_iterations=2,
        on_failure="return",
    )
    end = 1.0 if with_q and node is None else node
    lower, upper = quadrature_of_solve(solved, probes.square().sum(0), columns=1, node=end)
    want = logdet_quadrature(g1.K.matmul, probes, steps=2, node=node, preconditioner=q)
    torch.testing.assert_close(lower, want.radau, rtol=1e-7, atol=0)
    torch.testing.assert_close(upper, want.gauss, rtol=1e-7, atol=0)
    assert bool(want.bracket[0] < want.bracket[1]) == (with_q or node is not None)


def test_one_large_eigenvalue_in_float32_does_not_end_the_process():
    small = torch.logspace(-2.0, -0.3, 2999, dtype=torch.float64)
    eigenvalues = torch.cat([torch.tensor([2000.0], dtype=torch.float64), small])
    probes = probe_vectors(3000, 1, generator=torch.Generator().manual_seed(0)).float()
    narrow = eigenvalues.float().unsqueeze(-1)
    found = logdet_quadrature(lambda v: narrow * v, probes, steps=40, node=0.0099, width=2.0)
    assert found.converged
    assert float(found.value) == pytest.approx(float(eigenvalues.log().sum()), abs=2.0)
