"""Block solves of mean and covariance: exact limits, monotone ascent."""

import itertools
import math
import sys

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.errors import NotPositiveDefinite
from gpx.kernels import RBF
from gpx.methods.weight_space import cell_ascent
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cell_ascent import (
    diagonal_terms,
    evidence_terms,
    group_mean,
    group_products,
    solve_group,
)
from gpx.methods.weight_space.cells import Cells

NOISE, N, M = 1.0, 90, 48


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def problem(size, n=N):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(n, generator=generator)
    basis = RandomFourier(RBF(ard_num_dims=2, lengthscale=0.8, outputscale=1.5), M, 0, 3)
    basis.requires_grad_(False)
    family = BlockDiagonalWeights(Cells.of(basis, size), "float64")
    family.requires_grad_(False)
    return basis, family, x, y


def solve(basis, family, group, x, y, phi, **options):
    residual = y - phi @ family.mean.reshape(-1)
    return solve_group(basis, family, group, x, residual, noise=torch.tensor(NOISE), **options)


def columns_of(family, group):
    return torch.cat([family.cells.columns(cell) for cell in family.cells.group(group)])


def dense_covariance(basis, family):
    """Sigma (m, m) by its definition."""
    sigma = torch.zeros(M, M)
    for cell in range(family.cells.num_cells):
        columns = family.cells.columns(cell)
        root = family.covariance.root(cell, torch.float64)
        if root is None:
            square = N * basis.mean_column_square() / NOISE + 1.0
            block = torch.eye(len(columns)) / square
        else:
            block = root.T @ root
        sigma[columns[:, None], columns] = block
    return sigma


def dense_elbo(mean, sigma, phi, y):
    n, m = phi.shape
    misfit = (y - phi @ mean).square().sum() + (phi @ sigma @ phi.T).trace()
    kl = 0.5 * (sigma.trace() + mean.square().sum() - m - sigma.logdet())
    return float(-0.5 * (misfit / NOISE + n * math.log(2 * math.pi * NOISE)) - kl)


def tracked_elbo(family, phi, y):
    misfit = float((y - phi @ family.mean.reshape(-1)).square().sum())
    return sum(evidence_terms(family, misfit, NOISE, N, 0.0).values())


def test_products_do_not_depend_on_chunks(monkeypatch):
    basis, family, x, y = problem(12)
    phi = basis(x)[:, columns_of(family, 2)]
    for rows, panel in ((4096, 1024), (7, 5)):
        monkeypatch.setattr(cell_ascent, "ROW_CHUNK", rows)
        monkeypatch.setattr(cell_ascent, "COLUMN_PANEL", panel)
        gram, moment = group_products(basis, family.cells, 2, x, y, dtype=torch.float64)
        torch.testing.assert_close(gram, torch.tril(phi.T @ phi))
        torch.testing.assert_close(moment, phi.T @ y)


def test_one_cell_of_everything_is_the_exact_posterior_and_the_evidence_is_exact():
    basis, _, x, y = problem(M)
    basis.parts = 1  # one cell of cosines and sines together
    family = BlockDiagonalWeights(Cells.of(basis, M), "float64").requires_grad_(False)
    assert family.cells.num_cells == 1
    phi = basis(x)
    solve(basis, family, 0, x, y, phi)
    precision = phi.T @ phi / NOISE + torch.eye(M)
    torch.testing.assert_close(
        family.mean.reshape(-1), torch.linalg.solve(precision, phi.T @ y / NOISE)
    )
    root = family.covariance.root(0, torch.float64)
    torch.testing.assert_close(root.T @ root, precision.inverse())
    kernel = phi @ phi.T + NOISE * torch.eye(N)
    want = torch.distributions.MultivariateNormal(torch.zeros(N), kernel).log_prob(y)
    assert tracked_elbo(family, phi, y) == pytest.approx(float(want), abs=1e-8)


def test_every_solve_raises_the_bound_and_the_tracked_bound_is_the_dense_one():
    basis, family, x, y = problem(12)
    phi = basis(x)
    diagonal_terms(basis, family, torch.tensor(NOISE), N)
    values = []
    for step in range(12):
        solve(basis, family, step % family.cells.num_groups, x, y, phi)
        value = dense_elbo(family.mean.reshape(-1), dense_covariance(basis, family), phi, y)
        if step >= family.cells.num_groups - 1:  # mean-field columns count by expected squares
            assert tracked_elbo(family, phi, y) == pytest.approx(value, abs=1e-7)
        values.append(value)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))
    assert values[4] > values[3]


def converged(size):
    basis, family, x, y = problem(size)
    phi = basis(x)
    for step in range(60 * family.cells.num_groups):
        solve(basis, family, step % family.cells.num_groups, x, y, phi)
    return basis, family, phi, y


def test_sweeps_converge_to_the_exact_mean_and_the_bound_grows_with_the_cells(monkeypatch):
    # a large noise keeps the condition number, hence the number of sweeps, small
    monkeypatch.setattr(sys.modules[__name__], "NOISE", 5.0)
    want, values = None, []
    for size in (6, 12, 24):
        basis, family, phi, y = converged(size)
        if want is None:
            want = torch.linalg.solve(phi.T @ phi + NOISE * torch.eye(M), phi.T @ y)
            scales = torch.diag(1.0 / (phi.square().sum(0) / NOISE + 1.0))
            values.append(dense_elbo(want, scales, phi, y))
            kernel = phi @ phi.T + NOISE * torch.eye(N)
            evidence = torch.distributions.MultivariateNormal(torch.zeros(N), kernel).log_prob(y)
        assert (phi @ (family.mean.reshape(-1) - want)).norm() < 1e-5 * (phi @ want).norm()
        values.append(dense_elbo(want, dense_covariance(basis, family), phi, y))
    values.append(float(evidence))
    assert all(b > a for a, b in itertools.pairwise(values))  # mean-field < 6 < 12 < 24 < full


def test_the_order_of_rows_does_not_matter():
    found = []
    for order in (torch.arange(N), torch.randperm(N, generator=torch.Generator().manual_seed(1))):
        basis, family, x, y = problem(12)
        solve(basis, family, 2, x[order], y[order], basis(x[order]))
        found.append(family)
    torch.testing.assert_close(found[0].mean, found[1].mean)
    torch.testing.assert_close(found[0].terms, found[1].terms)


def test_stand_in_is_the_exact_posterior_of_the_smaller_basis():
    basis, family, x, y = problem(12)
    phi = basis(x)[:, columns_of(family, 0)]
    solve(basis, family, 0, x, y, basis(x), prior_scale=12 / M)
    want = torch.linalg.solve(phi.T @ phi + NOISE * 12 / M * torch.eye(12), phi.T @ y)
    torch.testing.assert_close(group_mean(family, 0), want)


def test_float32_that_is_too_coarse_is_redone_in_float64(monkeypatch):
    basis, family, x, y = problem(12)
    tried = []
    original = cell_ascent.group_products

    def products(*args, dtype):
        tried.append(dtype)
        gram, moment = original(*args, dtype=dtype)
        if dtype == torch.float32:
            gram.diagonal().sub_(100.0)  # what rounding may do to a small eigenvalue
        return gram, moment

    monkeypatch.setattr(cell_ascent, "group_products", products)
    single = BlockDiagonalWeights(family.cells, "float64").float()
    report = solve_group(basis.float(), single, 0, x.float(), y, noise=torch.tensor(NOISE))
    assert tried == [torch.float32, torch.float64]
    assert report.float64_products
    with pytest.raises(NotPositiveDefinite, match="precision of 12 basis functions"):
        solve_group(basis, family, 0, x * float("nan"), y, noise=torch.tensor(NOISE))
