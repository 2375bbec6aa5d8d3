"""Steps on a group of mean and covariance: exact limits, monotone ascent, batches of rows."""

import itertools
import math
import sys

import pytest
import torch
from block_problems import features, waves
from draws import draws

from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cell_ascent import (
    TRACE,
    Averaging,
    diagonal_terms,
    natural_step,
    tracked_evidence,
)
from gpx.methods.weight_space.cells import Cells

NOISE, N, M = 1.0, 90, 48


pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(size, n=N):
    basis = features(M)
    family = BlockDiagonalWeights(Cells.of(basis, size), "float64").requires_grad_(False)
    return basis, family, *waves(n, draws())


def advance(basis, family, group, x, y, averaging, num_data):
    residual = y - basis(x) @ family.mean.reshape(-1)
    weights, noise = family.cells.weight_group(basis, group, x.device), torch.tensor(NOISE)
    return natural_step(
        family, group, weights, x, residual, noise=noise, num_data=num_data, averaging=averaging
    )


def solve(basis, family, group, x, y, prior_scale=1.0):
    return advance(basis, family, group, x, y, Averaging.exact(len(x), prior_scale), len(x))


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
    return float(tracked_evidence(family, misfit, NOISE, N, 0.0).value)


def test_one_cell_of_everything_is_the_exact_posterior_and_the_evidence_is_exact():
    basis, _, x, y = problem(M)
    basis.parts = 1  # one cell of cosines and sines together
    family = BlockDiagonalWeights(Cells.of(basis, M), "float64").requires_grad_(False)
    assert family.cells.num_cells == 1
    phi = basis(x)
    solve(basis, family, 0, x, y)
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
        solve(basis, family, step % family.cells.num_groups, x, y)
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
        solve(basis, family, step % family.cells.num_groups, x, y)
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
        solve(basis, family, 2, x[order], y[order])
        found.append(family)
    torch.testing.assert_close(found[0].mean, found[1].mean)
    torch.testing.assert_close(found[0].terms, found[1].terms)


def test_stand_in_is_the_exact_posterior_of_the_smaller_basis():
    basis, family, x, y = problem(12)
    phi = basis(x)[:, columns_of(family, 0)]
    solve(basis, family, 0, x, y, prior_scale=12 / M)
    want = torch.linalg.solve(phi.T @ phi + NOISE * 12 / M * torch.eye(12), phi.T @ y)
    torch.testing.assert_close(family.cells.read_group(family.mean, 0), want)


def batch_problem(m, size, n, parts=1):
    basis = features(m, 2)
    basis.parts = parts  # one: a cell is the group, so that its precision can be read
    family = BlockDiagonalWeights(Cells.of(basis, size), "float64").requires_grad_(False)
    return basis, family, *waves(n, draws())


def natural(family, group):
    """Precision P and linear term P mu of a group."""
    root = family.covariance.root(group, torch.float64)
    precision = (root.T @ root).inverse()
    return precision, precision @ family.cells.read_group(family.mean, group)


def test_natural_parameters_are_unbiased_over_all_batches():
    n = 5
    first = Averaging(1.0, n, 0.5, n, 0.5)
    averaging = Averaging(step=0.3, points=4, prior_scale=1.0, last_points=n, last_prior_scale=0.5)
    found = []
    for batch in itertools.combinations(range(n), 2):
        basis, family, x, y = batch_problem(8, 4, n)
        advance(basis, family, 0, x, y, first, n)
        advance(basis, family, 1, x, y, first, n)
        old_precision, old_linear = natural(family, 1)
        others = basis(x)[:, :4] @ family.cells.read_group(family.mean, 0)
        part = basis(x)[:, 4:]
        rows = list(batch)
        advance(basis, family, 1, x[rows], y[rows], averaging, n)
        found.append(natural(family, 1))
    kept = 0.7 * 4 / n
    gram, moment = part.T @ part / NOISE, part.T @ (y - others) / NOISE
    eye = torch.eye(4)
    want = kept * (old_precision - 0.5 * eye) + 0.3 * 4 / n * gram + eye
    torch.testing.assert_close(sum(p for p, _ in found) / len(found), want)
    want = kept * old_linear + 0.3 * 4 / n * moment
    torch.testing.assert_close(sum(h for _, h in found) / len(found), want)


def test_batch_after_batch_is_the_posterior_of_all():
    n, rows = 60, 20
    basis, family, x, y = batch_problem(16, 16, n)
    for k in range(3):
        own = slice(k * rows, (k + 1) * rows)
        averaging = Averaging(1.0 / (k + 1), (k + 1) * rows, 1.0, max(1, k) * rows, 1.0)
        advance(basis, family, 0, x[own], y[own], averaging, n)
    phi = basis(x)
    want = phi.T @ phi / NOISE + torch.eye(16)
    precision, linear = natural(family, 0)
    torch.testing.assert_close(precision, want)
    torch.testing.assert_close(linear, phi.T @ y / NOISE)


def test_a_step_never_raises_the_loss_of_its_batch_by_more_than_the_prior_takes():
    # far more weights than rows, and every row counts for fifty points
    n, rows = 1000, 20
    basis, family, x, y = batch_problem(64, 32, n)
    for k in range(1, 7):
        own = torch.arange((k - 1) * rows, k * rows)
        averaging = Averaging(k**-0.6, n, 1e-6, n, 1e-6)
        for group in range(2):
            before = (y[own] - basis(x[own]) @ family.mean.reshape(-1)).square().sum()
            advance(basis, family, group, x[own], y[own], averaging, n)
            after = (y[own] - basis(x[own]) @ family.mean.reshape(-1)).square().sum()
            assert after < before


def test_the_trace_of_a_batch_is_that_of_its_features_for_all_rows():
    n, rows = 60, 20
    basis, family, x, y = batch_problem(16, 16, n, parts=2)
    advance(basis, family, 0, x[:rows], y[:rows], Averaging(1.0, rows, 0.5, rows, 0.5), n)
    advance(basis, family, 0, x[rows:40], y[rows:40], Averaging(0.4, 40, 1.0, rows, 0.5), n)
    for cell in family.cells.group(0):
        root = family.covariance.root(cell, torch.float64)
        phi = basis(x[rows:40])[:, family.cells.columns(cell)]
        want = (phi @ root.T).square().sum() * n / rows
        torch.testing.assert_close(family.terms[cell, TRACE], want)
