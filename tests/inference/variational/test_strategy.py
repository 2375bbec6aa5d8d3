import pytest
import torch

from gpx.errors import NotPositiveDefinite
from gpx.inference.variational import FullCholesky, InducingVariables, Unwhitened, Whitened
from gpx.kernels import RBF, Matern32, Stationary


def _inputs(n, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def test_marginals_equal_the_dense_formula():
    kernel = Matern32(lengthscale=1.3, outputscale=0.7).double()
    z, x = _inputs(8), _inputs(15, seed=1)
    q = FullCholesky().start(8, 2).double()
    with torch.no_grad():
        q.mean.normal_(generator=torch.Generator().manual_seed(2))
        q.raw_factor.normal_(std=0.3, generator=torch.Generator().manual_seed(3))
    mean, variance, _, report = Whitened().terms(InducingVariables(kernel, z, 0.0), q, x)
    k_zz, k_zx, k_xx = kernel.evaluate(z), kernel.evaluate(z, x), kernel.evaluate(x)
    chol = torch.linalg.cholesky(k_zz)
    inverse = torch.linalg.inv(k_zz)
    u_mean = q.mean @ chol.mT
    u_cov = chol @ q.factor() @ q.factor().mT @ chol.mT
    weights = inverse @ k_zx
    torch.testing.assert_close(mean, u_mean @ weights)
    for latent in range(2):
        dense = k_xx - k_zx.mT @ weights + weights.mT @ u_cov[latent] @ weights
        torch.testing.assert_close(variance[latent], dense.diagonal())
    assert report.jitter == 0.0


def test_unwhitened_is_the_same_law_seen_from_the_values():
    variables = InducingVariables(Matern32(lengthscale=1.3).double(), _inputs(8), 1e-6)
    q, x, draws = FullCholesky().start(8, 2).double(), _inputs(15, seed=1), torch.Generator()
    with torch.no_grad():
        q.mean.normal_(generator=draws.manual_seed(2))
        q.raw_factor.normal_(std=0.3, generator=draws.manual_seed(3))
    mean, factor = q.mean.detach().clone(), q.factor().detach()
    cholesky = variables.whitening().cholesky
    white = Whitened().terms(variables, q, x)
    Unwhitened().from_whitened(q, mean, factor, cholesky)
    torch.testing.assert_close(q.mean.data, mean @ cholesky.mT)
    values = Unwhitened().terms(variables, q, x)
    for found, expected in zip(values[:3], white[:3], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(Unwhitened().kl(variables, q), white.kl)
    for found, expected in zip(Unwhitened().to_whitened(q, cholesky), (mean, factor), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("strategy", [Whitened(), Unwhitened()])
@pytest.mark.parametrize("jitter", [0.0, 1e-6, 1e-4, 1e-2])
def test_gradients_reach_kernel_inducing_points_and_inputs(jitter, strategy):
    # a large jitter as well: it is a share of the diagonal, which the outputscale moves
    kernel = RBF(ard_num_dims=2, lengthscale=1.3).double()
    q = FullCholesky().start(5, 1).double()
    with torch.no_grad():
        q.mean.normal_(generator=torch.Generator().manual_seed(2))
        q.raw_factor.normal_(std=0.3, generator=torch.Generator().manual_seed(3))
    names = [name for name, _ in kernel.named_parameters()]

    def moments(z, x, *values):
        module = torch.nn.Module()
        module.kernel = kernel
        module.forward = lambda: strategy.terms(InducingVariables(kernel, z, jitter), q, x)[:3]
        state = {f"kernel.{n}": v for n, v in zip(names, values, strict=True)}
        return torch.func.functional_call(module, state, ())

    leaves = [_inputs(5), _inputs(4, seed=1), *(p.detach().clone() for p in kernel.parameters())]
    assert torch.autograd.gradcheck(
        moments, [t.requires_grad_(True) for t in leaves], rtol=1e-5, atol=1e-7
    )


def test_float32_models_factorise_in_float64():
    kernel = RBF(lengthscale=4.0)  # smooth: K_zz is numerically singular in float32
    z = _inputs(60, 1).float()
    white = InducingVariables(kernel, z, 1e-6).whitening()
    assert white.k_zz.dtype == torch.float64
    assert len(white.report.tried) == 1
    q = FullCholesky().start(60, 1)
    mean, variance, *_ = Whitened().terms(InducingVariables(kernel, z, 1e-6), q, z)
    assert mean.dtype == torch.float32
    # at the prior, q(f) is the prior
    torch.testing.assert_close(variance[0], torch.ones(60), rtol=0, atol=1e-3)


def test_jitter_is_relative_escalates_and_is_reported():
    kernel = RBF(outputscale=3.0).double()
    white = InducingVariables(kernel, _inputs(4), 1e-6).whitening()
    assert white.report.jitter == pytest.approx(3e-6, rel=1e-5)
    twins = torch.cat([_inputs(20, 1)] * 3)
    report = InducingVariables(kernel, twins, 0.0).whitening().report
    assert 0 < report.jitter <= 3e-4
    assert len(report.tried) > 1


def test_jitter_grows_up_to_1e_4_before_it_is_given_up():
    class Parabola(Stationary):  # no covariance function
        def of_squared_distance(self, r2):
            return 1.0 - r2

    with pytest.raises(NotPositiveDefinite, match=r"tried: 1\.0e-06, 1\.0e-05, 1\.0e-04\. Try"):
        InducingVariables(Parabola().double(), _inputs(4), 1e-6).whitening()
    with pytest.raises(NotPositiveDefinite, match=r"1\.0e-05, 1\.0e-04\. Try"):
        InducingVariables(Parabola().double(), _inputs(4), 1e-5).whitening()
    with pytest.raises(NotPositiveDefinite, match=r"tried: 0\.0e\+00, 1\.0e-12, 1\.0e-10,"):
        InducingVariables(Parabola().double(), _inputs(4), 0.0).whitening()


def test_hopeless_matrix_is_an_error_that_names_it():
    kernel = RBF().double()
    z = _inputs(4)
    z[0] = float("nan")
    with pytest.raises(NotPositiveDefinite, match="K_zz of 4 inducing points"):
        InducingVariables(kernel, z, 1e-6).whitening()
