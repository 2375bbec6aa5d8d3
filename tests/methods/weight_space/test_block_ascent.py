"""Exact block solves of the mean: monotone ascent, limits."""

import itertools

import pytest
import torch
from block_problems import features, waves
from draws import draws

from gpx.bases import RandomFourier
from gpx.methods.weight_space.block_ascent import ascend
from gpx.methods.weight_space.group_solves import FLOAT32_SAFETY

NOISE = 0.05


pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(n=90, m=48):
    return features(m), *waves(n, draws())


def exact_mean(basis, x, y, m):
    phi = basis(x)[:, :m]
    return torch.linalg.solve(phi.T @ phi + NOISE * torch.eye(m), phi.T @ y)


def objective(basis, mean, x, y):
    """Minus the part of the ELBO that the mean moves, times two: L_mu + constant."""
    mu = mean.reshape(-1)
    return float((y - basis(x).detach() @ mu).square().sum() / NOISE + mu.square().sum())


def run(basis, mean, x, y, **options):
    with torch.no_grad():
        return ascend(basis, mean, x, y, torch.tensor(NOISE), **options)


def test_one_group_of_everything_gives_the_exact_posterior_mean():
    basis, x, y = problem()
    for warm, solves in ((True, 0), (False, 1)):
        mean = torch.zeros(8, 6)
        report = run(basis, mean, x, y, group=8, warm_start=warm, solves=solves)
        want = exact_mean(basis, x, y, 48).detach()
        torch.testing.assert_close(mean.reshape(-1), want, rtol=1e-9, atol=1e-9)
        assert (report.solves, report.visited, report.float64_products) == (1, 8, True)


def test_warm_start_is_the_exact_posterior_of_the_smaller_basis():
    # a basis of b functions whose prior carries the whole variance: S = (m / b)^-1 I
    basis, x, y = problem()
    mean = torch.zeros(8, 6)
    report = run(basis, mean, x, y, group=2, warm_start=True, solves=0)
    phi = basis(x)[:, :12].detach()
    want = torch.linalg.solve(phi.T @ phi + NOISE * 12 / 48 * torch.eye(12), phi.T @ y)
    torch.testing.assert_close(mean[:2].reshape(-1), want, rtol=1e-9, atol=1e-9)
    assert not mean[2:].any()
    assert report.visited == 2
    residual = (y - phi @ want).square().mean()
    assert report.residual_variance == pytest.approx(float(residual), rel=1e-9)


def test_every_solve_raises_the_bound():
    basis, x, y = problem()
    mean = torch.zeros(8, 6)
    run(basis, mean, x, y, group=2, warm_start=True, solves=0)
    values = [objective(basis, mean, x, y)]
    first = mean.clone()
    for solves in range(1, 9):
        mean = first.clone()
        # from the warm-started weights, the first `solves` solves of the same sequence
        report = run(basis, mean, x, y, group=2, warm_start=False, solves=solves)
        values.append(objective(basis, mean, x, y))
        assert report.solves == solves
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(values))


def test_sweeps_converge_to_the_exact_posterior_mean():
    # a large noise keeps the condition number, hence the number of sweeps, small
    basis, x, y = problem()
    mean, noise = torch.zeros(8, 6), torch.tensor(5.0)
    with torch.no_grad():
        ascend(basis, mean, x, y, noise, group=4, warm_start=True, solves=2 * 60)
    phi = basis(x).detach()
    want = torch.linalg.solve(phi.T @ phi + 5.0 * torch.eye(48), phi.T @ y)
    assert (mean.reshape(-1) - want).norm() < 1e-6 * want.norm()


def test_order_after_a_warm_start():
    basis, x, y = problem()
    mean = torch.zeros(8, 6)
    report = run(basis, mean, x, y, group=2, warm_start=True, solves=2)
    assert report.visited == 6
    assert mean[:6].abs().min(1).values.gt(0).all()
    assert not mean[6:].any()


def test_float32_products_are_close():
    basis, x, y = problem(n=500)
    double, single = torch.zeros(8, 6), torch.zeros(8, 6, dtype=torch.float32)
    run(basis, double, x, y, group=4, warm_start=True, solves=3)
    report = run(basis, single, x.float(), y.float(), group=4, warm_start=True, solves=3)
    assert not report.float64_products
    fit = basis(x).detach()
    error = (fit @ (double - single.double()).reshape(-1)).norm() / (
        fit @ double.reshape(-1)
    ).norm()
    assert error < 1e-3


def test_small_prior_precisions_ask_for_float64():
    # the ridge is noise times the least of them: between the two bases the products change dtype
    plain, x, y = problem()
    wide = RandomFourier(plain.kernel, plain.num_basis, 0, 3, 1.7).float()
    plain, x, y = plain.float(), x.float(), y.float()
    least = float(wide.precision_diagonal().min())
    assert least < 0.5
    square = float(plain.mean_column_square().detach()) * x.shape[0]
    rounding = torch.finfo(torch.float32).eps * square * plain.num_basis**0.5
    noise = torch.tensor(FLOAT32_SAFETY * rounding / least**0.5)
    for basis, float64 in ((plain, False), (wide, True)):
        mean = torch.zeros(basis.num_blocks, basis.block_size)
        options = {"group": basis.num_blocks, "warm_start": False, "solves": 1}
        assert ascend(basis, mean, x, y, noise, **options).float64_products is float64
