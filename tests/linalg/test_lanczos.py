"""Lanczos: orthonormality, T = U^T K U, Ritz values, breakdown, agreement with CG."""

import pytest
import torch
from draws import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import DidNotConverge, ShapeError
from gpx.linalg import (
    Lanczos,
    RelativeResidual,
    conjugate_gradients,
    lanczos,
    nystrom_preconditioner,
    tridiagonal_of_cg,
)


def covariance(n, lengthscale=1.0, noise=0.1, seed=0):
    x = draw(n, 2, seed=seed)
    eye = torch.eye(n, dtype=torch.float64)
    return torch.exp(-0.5 * torch.cdist(x, x).square() / lengthscale**2) + noise * eye


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 60),
    columns=st.integers(1, 4),
    steps=st.integers(1, 40),
    noise=st.floats(1e-3, 1.0),
    seed=st.integers(0, 50),
)
def test_orthonormal_basis_of_the_projection(n, columns, steps, noise, seed):
    matrix = covariance(n, noise=noise, seed=seed)
    found = lanczos(matrix.matmul, draw(n, columns, seed=seed + 1), steps)
    norms = torch.linalg.vector_norm(found.basis, dim=-1)
    made = norms > 0.5  # rows after the end of a column's Krylov space are zero
    eye = torch.diag_embed(made.double())
    torch.testing.assert_close(found.basis @ found.basis.mT, eye, rtol=0, atol=1e-10)
    both = (made.unsqueeze(-1) & made.unsqueeze(-2)).double()
    projected = found.basis @ matrix @ found.basis.mT
    torch.testing.assert_close(
        projected, found.tridiagonal() * both, rtol=0, atol=1e-9 * float(matrix.trace())
    )


def test_ritz_values_stay_inside_the_spectrum_and_converge_to_its_ends():
    matrix = covariance(120, lengthscale=0.5, noise=0.01)
    values = torch.linalg.eigvalsh(matrix)
    start, previous = draw(120), -torch.inf
    for steps in (1, 3, 6, 12, 24):
        ritz = torch.linalg.eigvalsh(lanczos(matrix.matmul, start, steps).tridiagonal())[0]
        assert values[0] - 1e-10 <= ritz[0]
        assert ritz[-1] <= values[-1] + 1e-10
        assert ritz[-1] >= previous - 1e-12
        previous = ritz[-1]
    torch.testing.assert_close(previous, values[-1], rtol=1e-10, atol=0)


def test_growing_step_by_step_is_the_same_process():
    matrix, start = covariance(40, lengthscale=0.3), draw(40, 2)
    whole = lanczos(matrix.matmul, start, 12)
    parts = Lanczos(matrix.matmul, start, 12).extend(5).extend(7)
    assert torch.equal(whole.alphas, parts.alphas)
    assert torch.equal(whole.basis, parts.basis)
    assert parts.extend(3).steps == 12


def test_breakdown_of_low_rank_plus_identity():
    factor = draw(50, 4)
    matrix = factor @ factor.mT + torch.eye(50, dtype=torch.float64)
    calls = []

    def matmul(vectors):
        calls.append(vectors.shape[-1])
        return matrix @ vectors

    found = lanczos(matmul, draw(50, 3, seed=1), 30)
    assert found.steps == len(calls) == 5  # five distinct eigenvalues
    assert bool(found.exhausted.all())
    ends = found.betas[:, -1] / found.alphas.amax(-1)
    assert bool((ends < 1e-12).all())  # the rounding that ended it, kept for Gauss-Radau
    expected = torch.linalg.eigvalsh(matrix)[-5:].expand(3, 5)
    torch.testing.assert_close(torch.linalg.eigvalsh(found.tridiagonal()), expected)


def test_the_coupling_that_ended_a_column_stays_the_last_one():
    matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0, 7.0, 9.0], dtype=torch.float64))
    start = torch.tensor([[1.0, 1e-14, 0.0, 0.0, 0.0], [1.0] * 5], dtype=torch.float64).mT
    found = lanczos(matrix.matmul, start, 3)
    assert found.exhausted.tolist() == [True, False]
    assert found.betas[0].tolist() == pytest.approx([0.0, 0.0, 1e-14], rel=1e-6, abs=1e-30)
    assert bool((found.betas[1] > 0.1).all())


def test_columns_that_end_early_are_padded_without_weight():
    matrix = torch.diag(torch.linspace(1, 30, 30, dtype=torch.float64))
    start = draw(30, 2)
    start[:, 0] = 0.0
    start[6, 0] = 2.0
    found = lanczos(matrix.matmul, start, 10)
    assert found.exhausted.tolist() == [True, False]
    assert found.alphas[0].tolist() == [7.0] * 10
    assert bool((found.betas[0] == 0).all())
    assert bool((found.basis[0, 1:] == 0).all())


def test_the_full_krylov_space_reproduces_the_spectrum():
    matrix = covariance(25, lengthscale=0.2)
    found = lanczos(matrix.matmul, draw(25), 100)
    assert found.steps == 25
    torch.testing.assert_close(
        torch.linalg.eigvalsh(found.tridiagonal())[0], torch.linalg.eigvalsh(matrix)
    )


def test_both_routes_to_the_tridiagonal_agree():
    matrix = covariance(60, noise=0.05)
    kernel = matrix - 0.05 * torch.eye(60, dtype=torch.float64)
    q = nystrom_preconditioner(kernel[:6, :6], kernel[:6], 0.05)
    xi = draw(60, 3, seed=4)
    solved = conjugate_gradients(
        matrix.matmul,
        q.root_matmul(xi),
        preconditioner=q,
        max_iterations=10,
        stop=RelativeResidual(1e-15),
        on_failure="return",
    )
    alphas, betas = tridiagonal_of_cg(solved)

    def whitened(v):
        return q.inverse_root_matmul(matrix @ q.inverse_root_matmul(v, transpose=True))

    direct = lanczos(whitened, xi, 10)
    torch.testing.assert_close(alphas, direct.alphas, rtol=1e-6, atol=0)
    torch.testing.assert_close(betas, direct.betas, rtol=1e-6, atol=1e-9)


def test_coefficients_stop_at_the_first_disturbance_and_at_frozen_columns():
    matrix = torch.diag(torch.linspace(1, 30, 30, dtype=torch.float64))
    rhs = torch.ones(30, 3, dtype=torch.float64)
    rhs[:, ::2] = 0.0
    rhs[3, 0] = 1.0
    solved = conjugate_gradients(matrix.matmul, rhs, refresh_every=8)
    alphas, betas = tridiagonal_of_cg(solved)
    assert alphas.shape == betas.shape == (3, 8)
    assert bool((betas >= 0).all())
    assert alphas[2].tolist() == [1.0] * 8  # never moved: T = 1, whose logarithm is nothing
    assert alphas[0].tolist() == pytest.approx([4.0] * 8)
    assert bool((betas[0] == 0).all())


def test_values_that_are_not_finite_and_shapes():
    matrix = covariance(10)
    with pytest.raises(DidNotConverge, match="zero or not finite"):
        lanczos(matrix.matmul, torch.zeros(10, dtype=torch.float64), 3)
    with pytest.raises(DidNotConverge, match="NaN or infinite"):
        lanczos((matrix * torch.nan).matmul, draw(10), 3)
    with pytest.raises(ShapeError, match="at least one step"):
        lanczos(matrix.matmul, draw(10), 0)


def test_an_early_end_is_noticed_at_the_steps_that_are_checked():
    matrix = torch.diag(torch.tensor([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], dtype=torch.float64))
    start = torch.ones(8, dtype=torch.float64)  # two distinct eigenvalues: two Krylov vectors
    for every, steps in ((1, 2), (5, 5)):
        process = Lanczos(matrix.matmul, start, 8, check_every=every)
        process.extend(8)
        assert bool(process.exhausted.all())
        assert process.steps == steps
