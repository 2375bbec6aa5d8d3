import pytest
import torch

from gpx.kernels import RBF
from gpx.methods.sparse.variational import collapsed_statistics


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    y = x.sum(1).sin() + 0.2 * torch.randn(50, generator=generator, dtype=torch.float64)
    return RBF(lengthscale=0.8, outputscale=1.4).double(), x[:9].clone(), x, y


def _dense(kernel, z, x):
    k_zx = kernel.evaluate(z, x).detach()
    return k_zx.mT @ torch.linalg.solve(kernel.evaluate(z).detach(), k_zx)


def test_statistics_do_not_depend_on_the_chunk(problem):
    (one,) = collapsed_statistics(*problem, jitter=0.0)
    (many,) = collapsed_statistics(*problem, jitter=0.0, chunk=7)
    for name in ("gram", "moment", "residual_square", "trace"):
        torch.testing.assert_close(getattr(one, name), getattr(many, name))


def test_optimal_q_is_the_posterior_of_the_nystrom_model(problem):
    kernel, z, x, y = problem
    noise = torch.tensor(0.1, dtype=torch.float64)
    mean, factor = collapsed_statistics(kernel, z, x, y, jitter=0.0)[0].optimal_q(noise)
    chol = torch.linalg.cholesky(kernel.evaluate(z).detach())
    projection = torch.linalg.solve_triangular(chol, kernel.evaluate(z, x).detach(), upper=False)
    precision = projection @ projection.mT / noise + torch.eye(9, dtype=torch.float64)
    torch.testing.assert_close(factor[0] @ factor[0].mT, torch.linalg.inv(precision))
    torch.testing.assert_close(mean[0], torch.linalg.solve(precision, projection @ y / noise))
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()


def test_best_noise_is_the_peak_of_the_dense_collapsed_bound(problem):
    kernel, z, x, y = problem
    found, bound = collapsed_statistics(*problem, jitter=0.0)[0].best_noise(1e-3, 10.0)
    nystrom = _dense(kernel, z, x)
    trace = (kernel.diagonal(x) - nystrom.diagonal()).sum().detach()
    identity = torch.eye(50, dtype=torch.float64)

    def dense(noise):
        normal = torch.distributions.MultivariateNormal(
            torch.zeros(50, dtype=torch.float64), nystrom + noise * identity
        )
        return normal.log_prob(y) - trace / (2 * noise)

    torch.testing.assert_close(bound, dense(found), rtol=1e-9, atol=1e-9)
    for factor in (0.9, 1.1):
        assert dense(found * factor) < bound


def test_best_noise_stays_within_its_range(problem):
    (statistics,) = collapsed_statistics(*problem, jitter=0.0)
    assert statistics.best_noise(5.0, 10.0)[0].item() == pytest.approx(5.0)
    # the bound still rises at the upper end: the grid reaches it, and no further
    assert statistics.best_noise(1e-6, 1e-3)[0].item() == pytest.approx(1e-3)


def test_trace_at_the_inducing_points_is_rounding_and_never_negative(problem):
    kernel, z, _, y = problem
    trace = collapsed_statistics(kernel, z, z, y[:9], jitter=0.0)[0].trace
    assert 0 <= trace < 1e-12


def test_outputs_have_the_statistics_that_each_has_alone(problem):
    kernel, z, x, y = problem
    both = torch.stack([y, 3.0 * x[:, 0] - y.square()], 1)
    found = collapsed_statistics(kernel, z, x, both, jitter=0.0, chunk=7)
    assert len(found) == 2
    for place, each in enumerate(found):
        (alone,) = collapsed_statistics(kernel, z, x, both[:, place], jitter=0.0)
        for name in ("gram", "moment", "residual_square", "trace"):
            torch.testing.assert_close(getattr(each, name), getattr(alone, name))
