"""Natural-gradient steps from mini-batches: unbiased, Bayesian updating, exact limits."""

import itertools

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.errors import NotPositiveDefinite
from gpx.kernels import RBF
from gpx.methods.weight_space import stochastic_ascent
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cell_ascent import group_mean, solve_group
from gpx.methods.weight_space.cells import Cells
from gpx.methods.weight_space.stochastic_ascent import Averaging, natural_step

NOISE = 0.5


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def problem(m, size, n, parts=1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(n, generator=generator)
    basis = RandomFourier(RBF(ard_num_dims=2, lengthscale=0.8, outputscale=1.5), m, 0, 2)
    basis.parts = parts  # one: a cell is the group, so that its precision can be read
    family = BlockDiagonalWeights(Cells.of(basis, size), "float64").requires_grad_(False)
    return basis.requires_grad_(False), family, x, y


def advance(basis, family, group, x, y, averaging, num_data):
    residual = y - basis(x) @ family.mean.reshape(-1)
    return natural_step(
        basis,
        family,
        group,
        x,
        residual,
        noise=torch.tensor(NOISE),
        num_data=num_data,
        averaging=averaging,
    )


def natural(family, group):
    """Precision P and linear term P mu of a group."""
    root = family.covariance.root(group, torch.float64)
    precision = (root.T @ root).inverse()
    return precision, precision @ group_mean(family, group)


def test_natural_parameters_are_unbiased_over_all_batches():
    n = 5
    first = Averaging(1.0, n, 0.5, n, 0.5)
    averaging = Averaging(step=0.3, points=4, prior_scale=1.0, last_points=n, last_prior_scale=0.5)
    found = []
    for batch in itertools.combinations(range(n), 2):
        basis, family, x, y = problem(8, 4, n)
        advance(basis, family, 0, x, y, first, n)
        advance(basis, family, 1, x, y, first, n)
        old_precision, old_linear = natural(family, 1)
        others = basis(x)[:, :4] @ group_mean(family, 0)
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
    basis, family, x, y = problem(16, 16, n)
    for k in range(3):
        own = slice(k * rows, (k + 1) * rows)
        averaging = Averaging(1.0 / (k + 1), (k + 1) * rows, 1.0, max(1, k) * rows, 1.0)
        advance(basis, family, 0, x[own], y[own], averaging, n)
    phi = basis(x)
    want = phi.T @ phi / NOISE + torch.eye(16)
    precision, linear = natural(family, 0)
    torch.testing.assert_close(precision, want)
    torch.testing.assert_close(linear, phi.T @ y / NOISE)


def test_all_rows_and_a_full_step_are_the_exact_solve():
    n = 50
    tables = []
    for stochastic in (True, False):
        basis, family, x, y = problem(24, 8, n, parts=2)
        family.mean.normal_(generator=torch.Generator().manual_seed(1))
        if stochastic:
            advance(basis, family, 1, x, y, Averaging(1.0, n, 0.4, n, 0.4), n)
        else:
            residual = y - basis(x) @ family.mean.reshape(-1)
            noise = torch.tensor(NOISE)
            solve_group(basis, family, 1, x, residual, noise=noise, prior_scale=0.4)
        tables.append((family.mean, family.terms))
    torch.testing.assert_close(tables[0][0], tables[1][0])
    torch.testing.assert_close(tables[0][1], tables[1][1])


def test_a_step_never_raises_the_loss_of_its_batch_by_more_than_the_prior_takes():
    # far more weights than rows, and every row counts for fifty points
    n, rows = 1000, 20
    basis, family, x, y = problem(64, 32, n)
    for k in range(1, 7):
        own = torch.arange((k - 1) * rows, k * rows)
        averaging = Averaging(k**-0.6, n, 1e-6, n, 1e-6)
        for group in range(2):
            before = (y[own] - basis(x[own]) @ family.mean.reshape(-1)).square().sum()
            advance(basis, family, group, x[own], y[own], averaging, n)
            after = (y[own] - basis(x[own]) @ family.mean.reshape(-1)).square().sum()
            assert after < before


def test_float32_that_is_too_coarse_is_redone_in_float64(monkeypatch):
    basis, family, x, y = problem(24, 8, 50, parts=2)
    tried, original = [], stochastic_ascent.group_products

    def products(*args, dtype):
        tried.append(dtype)
        gram, moment = original(*args, dtype=dtype)
        if dtype == torch.float32:
            gram.diagonal().sub_(100.0)
        return gram, moment

    monkeypatch.setattr(stochastic_ascent, "group_products", products)
    averaging = Averaging(1.0, 50, 1.0, 50, 1.0)
    single = BlockDiagonalWeights(family.cells, "float64").float().requires_grad_(False)
    advance(basis.float(), single, 0, x.float(), y.float(), averaging, 50)
    assert tried == [torch.float32, torch.float64]
    with pytest.raises(NotPositiveDefinite, match="precision of 8 basis functions"):
        advance(basis.double(), family, 0, x * float("nan"), y, averaging, 50)
