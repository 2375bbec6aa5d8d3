"""Square roots without factorisation against eigendecompositions."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError, DidNotConverge, NotPositiveDefinite, ShapeError
from gpx.linalg import (
    UnconvergedWarning,
    contour_root,
    lanczos_root,
    shifted_conjugate_gradients,
    square_root,
)
from gpx.linalg.square_root import contour_nodes


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(n, noise=0.05, seed=0):
    x = randn(n, 2, seed=seed)
    eye = torch.eye(n, dtype=torch.float64)
    return torch.exp(-0.5 * torch.cdist(x, x).square() / 0.5**2) + noise * eye


def exact(matrix, block, power):
    values, vectors = torch.linalg.eigh(matrix)
    image = values.sqrt() if power == "root" else values.rsqrt()
    return vectors @ (image[:, None] * (vectors.mT @ block))


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(3, 60),
    columns=st.integers(1, 3),
    noise=st.floats(1e-3, 1.0),
    power=st.sampled_from(["root", "inverse_root"]),
    seed=st.integers(0, 50),
)
def test_both_ways_against_the_eigendecomposition(n, columns, noise, power, seed):
    matrix, block = covariance(n, noise, seed), randn(n, columns, seed=seed + 1)
    expected = exact(matrix, block, power)
    krylov = lanczos_root(matrix.matmul, block, power=power, tolerance=1e-9)
    rational = contour_root(matrix.matmul, block, power=power, smallest=0.9 * noise, tolerance=1e-8)
    for found, tolerance in ((krylov, 1e-7), (rational, 1e-6)):
        assert found.report.converged
        gap = torch.linalg.vector_norm(found.value - expected, dim=0)
        assert float((gap / torch.linalg.vector_norm(expected, dim=0)).max()) < tolerance


def test_without_bounds_the_spectrum_is_estimated_and_vectors_stay_vectors():
    matrix, vector = covariance(80), randn(80)
    for method in (lanczos_root, contour_root):
        found = method(matrix.matmul, vector)
        assert found.value.shape == (80,)
        expected = exact(matrix, vector[:, None], "root")[:, 0]
        torch.testing.assert_close(found.value, expected, rtol=0, atol=1e-4)


def test_samples_have_the_covariance():
    matrix, count = covariance(8, noise=0.2), 4_000
    draws = lanczos_root(matrix.matmul, randn(8, count), tolerance=1e-8).value
    found = draws @ draws.mT / count
    diagonal = matrix.diagonal()
    deviation = ((matrix.square() + diagonal.outer(diagonal)) / count).sqrt()
    assert float(((found - matrix) / deviation).abs().max()) < 5.0


def test_the_rational_approximation_converges_at_the_published_rate():
    x = torch.logspace(-4, 1, 200, dtype=torch.float64)
    errors = []
    for nodes in (4, 8, 12, 16):
        shifts, weights = contour_nodes(1e-4, 10.0, nodes)
        value = sum(w / (x + s) for s, w in zip(shifts, weights, strict=True))
        errors.append(float((value * x.sqrt() - 1).abs().max()))
        assert all(w > 0 for w in weights)
        assert all(s > 0 for s in shifts)
    for coarse, fine in itertools.pairwise(errors):
        assert fine < coarse * 0.01  # exp(-2 pi^2 4 / (log 1e5 + 3)) = 0.004


def test_the_number_of_nodes_is_the_one_given_or_that_of_the_rate(monkeypatch):
    used, known = [], {"smallest": 0.01, "largest": 100.0}

    def recorded(smallest, largest, nodes):
        used.append((smallest, largest, nodes))
        return contour_nodes(smallest, largest, nodes)

    monkeypatch.setattr(square_root, "contour_nodes", recorded)
    matrix = torch.diag(torch.logspace(-2, 2, 20, dtype=torch.float64))
    contour_root(matrix.matmul, randn(20), nodes=7, **known)
    contour_root(matrix.matmul, randn(20), tolerance=1e-6, **known)
    # log(10 / 1e-6) (log 1e4 + 3) / (2 pi^2) = 9.97
    assert used == [(0.01, 100.0, 7), (0.01, 100.0, 10)]


def test_shifted_systems_share_the_products():
    matrix, block = covariance(60), randn(60, 2)
    shifts = [0.3, 0.0, 10.0, 1e6]
    calls = []

    def matmul(vectors):
        calls.append(vectors.shape)
        return matrix @ vectors

    found = shifted_conjugate_gradients(matmul, block, shifts, tolerance=1e-10)
    assert found.report.converged
    assert len(calls) == found.report.iterations + 1
    eye = torch.eye(60, dtype=torch.float64)
    for shift, solution in zip(shifts, found.solutions, strict=True):
        expected = torch.linalg.solve(matrix + shift * eye, block)
        torch.testing.assert_close(
            solution, expected, rtol=1e-6, atol=1e-8 * float(expected.abs().max())
        )


@pytest.mark.parametrize("power", ["root", "inverse_root"])
def test_the_error_reported_is_the_relative_change_over_five_steps(power):
    matrix, block = covariance(60), randn(60, 3) * torch.tensor([1.0, 30.0, 0.01])
    before, after = (
        lanczos_root(
            matrix.matmul, block, power=power, tolerance=0.0, max_steps=steps, on_failure="return"
        )
        for steps in (10, 15)
    )
    norm = torch.linalg.vector_norm
    change = norm(after.value - before.value, dim=0) / norm(after.value, dim=0)
    assert after.report.residual == pytest.approx(float(change.max()), rel=1e-9)
    assert not after.report.converged


def test_failures_are_reported():
    matrix, block = covariance(100, noise=1e-4), randn(100, 2)
    with pytest.raises(DidNotConverge, match="Lanczos square root after 5 steps"):
        lanczos_root(matrix.matmul, block, max_steps=5)
    with pytest.raises(DidNotConverge, match="contour-integral square root after 5 steps"):
        contour_root(matrix.matmul, block, smallest=1e-4, max_iterations=5)
    with pytest.warns(UnconvergedWarning, match="not converged"):
        lanczos_root(matrix.matmul, block, max_steps=5, on_failure="warn")
    found = contour_root(matrix.matmul, block, smallest=1e-4, max_iterations=5, on_failure="return")
    assert not found.report.converged


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_rounding_of_zero_eigenvalues_is_told_from_negative_ones_at_any_scale(scale):
    basis, _ = torch.linalg.qr(randn(30, 30))
    spectrum = torch.cat([torch.zeros(20), torch.linspace(0.5, 2.0, 10)]).double()
    for seed in range(5):  # whether zero is rounded up or down is chance
        vector = randn(30, seed=seed)
        found = lanczos_root(((basis * scale * spectrum) @ basis.mT).matmul, vector).value
        want = basis @ (spectrum.sqrt() * (basis.mT @ vector)) * scale**0.5
        torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6 * scale**0.5)
    spectrum[0] = -0.01
    with pytest.raises(NotPositiveDefinite, match="Ritz value"):
        lanczos_root(((basis * scale * spectrum) @ basis.mT).matmul, randn(30), max_steps=30)


def test_indefinite_and_bad_arguments():
    matrix = covariance(20) - 0.5 * torch.eye(20, dtype=torch.float64)
    block = randn(20)
    with pytest.raises(NotPositiveDefinite, match="Ritz value -"):
        lanczos_root(matrix.matmul, block)
    with pytest.raises(NotPositiveDefinite, match="Ritz value -"):
        contour_root(matrix.matmul, block)
    with pytest.raises(NotPositiveDefinite, match="curvature -"):
        shifted_conjugate_gradients(matrix.matmul, block, [0.0])
    with pytest.raises(DidNotConverge, match="NaN"):
        shifted_conjugate_gradients((matrix * torch.nan).matmul, block, [0.0])
    with pytest.raises(ConfigError, match="non-negative"):
        shifted_conjugate_gradients(matrix.matmul, block, [-1.0])
    with pytest.raises(ConfigError, match="power"):
        lanczos_root(matrix.matmul, block, power="cube")
    with pytest.raises(ConfigError, match="0 < smallest < largest"):
        contour_root(covariance(20).matmul, block, smallest=5.0, largest=1.0)


def test_columns_of_zeros_and_of_any_scale():
    matrix, column = covariance(30), randn(30)
    block = torch.stack([torch.zeros_like(column), column, 1e-200 * column, 1e200 * column], -1)
    for root in (lanczos_root, contour_root):
        found = root(matrix.matmul, block, tolerance=1e-8).value
        expected = exact(matrix, column.unsqueeze(-1), "root").squeeze(-1)
        assert bool((found[:, 0] == 0).all())
        for place, scale in ((1, 1.0), (2, 1e-200), (3, 1e200)):
            torch.testing.assert_close(found[:, place] / scale, expected, rtol=1e-5, atol=1e-5)
        assert bool((root(matrix.matmul, block[:, 0]).value == 0).all())
        with pytest.raises(ShapeError, match="square roots take"):
            root(matrix.matmul, block.expand(2, -1, -1))
    small = shifted_conjugate_gradients(matrix.matmul, 1e-200 * column, [0.0, 2.0])
    assert small.report.iterations > 5
    torch.testing.assert_close(
        (matrix @ small.solutions[0]) / 1e-200, column, rtol=0, atol=1e-5 * float(column.norm())
    )


@pytest.mark.parametrize("power", ["root", "inverse_root"])
def test_no_vectors_at_all(power):
    none, matrix = torch.ones(6, 0, dtype=torch.float64), covariance(6)
    for root in (lanczos_root, contour_root):
        found = root(matrix.matmul, none, power=power)
        assert found.value.shape == (6, 0)
        assert found.report.converged
    assert shifted_conjugate_gradients(matrix.matmul, none, [0.0, 1.0]).solutions.shape == (2, 6, 0)


@pytest.mark.parametrize("power", ["root", "inverse_root"])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e-200), (torch.float32, 1e-26)])
def test_matrices_of_any_scale(power, dtype, scale):
    """Squares of such entries leave the range: a Krylov space must not look exhausted."""
    matrix, block = covariance(8, noise=0.5), randn(8, 2)
    expected = exact(matrix, block, power)
    accuracy = 1e-6 if dtype == torch.float64 else 1e-3
    for factor in (scale, 1.0 / scale):
        scaled = (factor * matrix).to(dtype)
        for root in (lanczos_root, contour_root):
            found = root(scaled.matmul, block.to(dtype), power=power, tolerance=accuracy / 10)
            unit = factor**0.5 if power == "root" else factor**-0.5
            torch.testing.assert_close(
                found.value.double() / unit, expected, rtol=0, atol=10 * accuracy
            )
