"""CGLB posterior: its limits, golden values, variances, checkpoints, paths."""

import io

import golden_g1 as g1
import pytest
import torch
from sparse_problems import sparse_problem

from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import UnconvergedWarning
from gpx.means import Linear, Zero
from gpx.models import CGLB, SGPR, AuxiliarySolver, ExactGP


def parts(outputscale=1.4):
    return {
        "kernel": Matern32(3, lengthscale=[0.8, 1.5, 2.0], outputscale=outputscale),
        "mean": Linear(3, bias=0.3),
        "likelihood": Gaussian(0.07),
    }


def problem(seed=0, n=80, m=15, variance="sgpr", lanczos_rank=100, **solver):
    solver = AuxiliarySolver(**{"epsilon": 1e-16, "max_iterations": 1000, **solver})
    options = {"variance": variance, "lanczos_rank": lanczos_rank}
    return sparse_problem(CGLB, n, m, seed=seed, num_data=n, solver=solver, **options)


def sparse(model, x, y):
    other = SGPR(
        kernel=model.kernel,
        mean=model.mean,
        likelihood=model.likelihood,
        num_inputs=3,
        num_inducing=len(model.inducing_points),
    ).double()
    with torch.no_grad():
        other.inducing_points.copy_(model.inducing_points)
    return other.condition(x, y)


def exact(model, x, y):
    return ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood).condition(
        x, y
    )


def test_mean_is_sparse_at_zero_and_exact_at_the_solution():
    grid = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    model, x, y = problem()
    solved = model.condition(x, y)
    want = exact(model, x, y).predict(grid)
    assert solved.report.converged
    torch.testing.assert_close(solved.predict(grid).mean, want.mean, rtol=0, atol=1e-8)
    loose, _, _ = problem(epsilon=1e9)
    found, want = loose.condition(x, y), sparse(model, x, y).predict(grid)
    assert not found.auxiliary.any()
    torch.testing.assert_close(found.predict(grid).mean, want.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.predict(grid).variance, want.variance)
    torch.testing.assert_close(solved.predict(grid).variance, want.variance)


def test_mean_is_exact_for_every_vector_where_the_inducing_points_are_the_data():
    model, x, y = problem(n=25, m=25, epsilon=1e9)
    with torch.no_grad():
        model.inducing_points.copy_(x)
        model.auxiliary.copy_(torch.randn(25))
    found, want = model.condition(x, y), exact(model, x, y)
    assert torch.equal(found.auxiliary, model.auxiliary)
    torch.testing.assert_close(
        found.predict(x + 0.3).mean, want.predict(x + 0.3).mean, rtol=0, atol=1e-8
    )


def test_mean_is_within_the_certificate():
    model, x, y = problem(epsilon=1e-2)
    grid = torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    posterior = model.condition(x, y)
    with torch.no_grad():  # k_*^T w with w = v + Q^{-1} r, and what the mean differs from it
        truth = exact(model, x, y).predict(grid).mean
        k = model.kernel.evaluate(x) + 0.07 * torch.eye(80, dtype=torch.float64)
        v, z = posterior.auxiliary, model.inducing_points
        cross = model.kernel.evaluate(z, x)
        q = cross.mT @ torch.linalg.solve(model.kernel.evaluate(z), cross)
        q = q + 0.07 * torch.eye(80, dtype=torch.float64)
        target = y - model.mean(x)
        correction = torch.linalg.solve(q, target - k @ v)
        left = target - k @ (v + correction)
        bound = (1.4 * (left @ torch.linalg.solve(q, left))).sqrt()
        at_data = model.kernel.evaluate(grid, x)
        low_rank = model.kernel.evaluate(grid, z) @ torch.linalg.solve(
            model.kernel.evaluate(z), cross
        )
        bound = bound + ((at_data - low_rank) @ correction).abs()
    error = (posterior.predict(grid).mean - truth).abs()
    assert (error <= bound + 1e-9).all()
    assert error.max() > 1e-6


@pytest.mark.parametrize("rank", [10, 80])
def test_lanczos_variance_is_never_below_the_exact_one(rank):
    model, x, y = problem(variance="lanczos", lanczos_rank=rank)
    grid = torch.randn(90, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    found, want = model.condition(x, y).predict(grid), exact(model, x, y).predict(grid)
    assert (found.variance >= want.variance - 1e-10).all()
    assert (found.variance <= 1.4 + 1e-6).all()
    if rank == 80:
        torch.testing.assert_close(found.variance, want.variance, rtol=0, atol=1e-6)


def test_exact_variance_by_conjugate_gradients():
    model, x, y = problem(variance="exact", epsilon=1e-8)
    grid = torch.randn(90, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    found, want = model.condition(x, y).predict(grid), exact(model, x, y).predict(grid)
    torch.testing.assert_close(found.variance, want.variance, rtol=0, atol=2e-8 * 0.07 + 1e-12)
    assert (found.variance >= want.variance - 1e-12).all()


def test_exact_variances_of_many_points_take_one_matrix_and_one_preconditioner(monkeypatch):
    made, matrix = [], AuxiliarySolver.matrix

    def counted(self, *given):
        made.append("matrix")
        return matrix(self, *given)

    model, x, y = problem(variance="exact", epsilon=1e-8)
    posterior = model.condition(x, y)
    monkeypatch.setattr(AuxiliarySolver, "matrix", counted)
    nystrom = type(posterior)._nystrom
    monkeypatch.setattr(
        type(posterior), "_nystrom", lambda self: made.append("nystrom") or nystrom(self)
    )
    found = posterior.predict(torch.cat([x, x + 0.1]))  # three chunks
    assert made == ["matrix", "nystrom"]
    torch.testing.assert_close(posterior.predict(x[70:]).variance, found.variance[70:80])


def test_golden_prediction():
    solver = AuxiliarySolver(epsilon=1e-14, max_iterations=1000)
    model = g1.sparse_model(CGLB, num_data=200, solver=solver)
    at = torch.tensor([[5.03], [10.4]], dtype=torch.float64)
    mean, variance = model.condition(g1.x[:, None], g1.y).predict(at)
    want = torch.tensor([-0.5932219766, 1.683908528], dtype=torch.float64)
    torch.testing.assert_close(mean, want, rtol=1e-7, atol=0)
    want = torch.tensor([0.004180522695, 0.3537315899], dtype=torch.float64)
    torch.testing.assert_close(variance, want, rtol=1e-7, atol=0)


@pytest.mark.parametrize("variance", ["sgpr", "lanczos", "exact"])
def test_posterior_survives_a_safe_checkpoint(variance):
    model, x, y = problem(variance=variance, lanczos_rank=20)
    posterior = model.condition(x, y)
    want = posterior.predict(x[:7] + 0.3)
    stream = io.BytesIO()
    torch.save(posterior.state_dict(), stream)
    stream.seek(0)
    fresh, _, _ = problem(seed=3, variance=variance, lanczos_rank=20)
    rebuilt = fresh.new_posterior()
    rebuilt.load_state_dict(torch.load(stream, weights_only=True))
    with torch.no_grad():
        for parameter in (*model.parameters(), *fresh.parameters()):
            parameter.add_(0.5)
    got = rebuilt.predict(x[:7] + 0.3)
    torch.testing.assert_close(got.mean, want.mean, rtol=0, atol=0)
    torch.testing.assert_close(got.variance, want.variance, rtol=1e-9, atol=1e-12)


def test_paths_have_the_corrected_mean_and_are_functions():
    torch.manual_seed(0)
    x = torch.rand(60, 1, dtype=torch.float64) * 4
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(60, dtype=torch.float64)
    model = CGLB(
        kernel=RBF(1, 0.7, 1.3),
        mean=Zero(),
        likelihood=Gaussian(0.02),
        num_inputs=1,
        num_data=60,
        num_inducing=6,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    posterior = model.condition(x, y)
    grid = torch.linspace(-1, 5, 25, dtype=torch.float64)[:, None]
    mean, variance = posterior.predict(grid)
    paths = posterior.sample_paths(2000, generator=torch.Generator().manual_seed(2))
    values = paths(grid)
    # 5.5 standard errors over 25 points: false alarm about 1e-6
    assert ((values.mean(0) - mean).abs() < 5.5 * (variance / 2000).sqrt() + 1e-9).all()
    pieces = torch.cat([paths(grid[:9]), paths(grid[9:])], dim=1)
    torch.testing.assert_close(values, pieces, rtol=0, atol=1e-9)


def test_a_solve_cut_short_warns_and_reports():
    model, x, y = problem(m=2, max_iterations=2)
    with pytest.warns(UnconvergedWarning, match="steps were not enough"):
        posterior = model.condition(x, y)
    assert not posterior.report.converged
    assert torch.isfinite(posterior.predict(x).mean).all()


def test_more_inducing_points_than_data_are_capped():
    model = CGLB(**parts(), num_inputs=3, num_data=12, num_inducing=50)
    assert model.inducing_points.shape == (12, 3)
    assert model.auxiliary.shape == (12,)


def test_invalid_setups_are_refused():
    model, x, y = problem()
    y[4] = float("nan")
    with pytest.raises(DataError, match="1 of 80 targets are not finite"):
        model.initialise(x, y, generator=torch.Generator())
    with pytest.raises(DataError, match="1 of 80 targets are not finite"):
        model.condition(x, y)
    common = {**parts(), "num_inputs": 3, "num_data": 10}
    with pytest.raises(ConfigError, match="variance=none: expected one of sgpr, lanczos, exact"):
        CGLB(**common, variance="none")
    with pytest.raises(ConfigError, match=r"lanczos_rank=\S+ must be at least 1"):
        CGLB(**common, lanczos_rank=0)
    with pytest.raises(ConfigError, match=r"epsilon=-1\.0 must be positive"):
        CGLB(**common, solver=AuxiliarySolver(epsilon=-1.0))
