"""Exact Gaussian process: posterior against dense algebra, golden values, memory, serialisation."""

import math
import warnings
from functools import partial

import dense_gaussian_process as dense
import golden_g1 as g1
import numpy as np
import pytest
import torch

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.inference import dense_factor
from gpx.kernels import RBF, Matern32
from gpx.kernels import Linear as LinearKernel
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Linear, Zero
from gpx.models import ExactGP
from gpx.objectives import ExactMLL, LeaveOneOut


def random_problem(seed=0, n=60, dtype=torch.float64):
    torch.manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, dtype=torch.float64)
    model = ExactGP(
        kernel=Matern32(ard_num_dims=3, lengthscale=[0.8, 1.5, 2.0], outputscale=1.4),
        mean=Linear(3, bias=0.3),
        likelihood=Gaussian(0.07),
    ).to(dtype)
    return model, x.to(dtype), y.to(dtype)


def test_golden_posterior():
    model, x, y = g1.exact_model(ExactGP), g1.x[:, None], g1.y
    at = torch.tensor([[5.03], [10.4]], dtype=torch.float64)
    mean, variance = model.condition(x, y).predict(at)
    expected_mean = torch.tensor([-0.5932219766, 1.683908528], dtype=torch.float64)
    expected_variance = torch.tensor([0.004174594885, 0.2107382847], dtype=torch.float64)
    torch.testing.assert_close(mean, expected_mean, rtol=1e-8, atol=0)
    torch.testing.assert_close(variance, expected_variance, rtol=1e-8, atol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_posterior_equals_dense_algebra(dtype, tolerance):
    model, x, y = random_problem(dtype=dtype)
    at = torch.randn(17, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    at = at.to(dtype)
    mean, variance = model.condition(x, y).predict(at)
    wide = model.double()
    with torch.no_grad():
        kernel = wide.kernel.evaluate(x.double(), x.double()).numpy()
        cross = wide.kernel.evaluate(x.double(), at.double()).numpy()
        prior = wide.kernel.diagonal(at.double()).numpy()
        residual = (y.double() - wide.mean(x.double())).numpy()
        noise = float(wide.likelihood.noise_variance)
        shift = wide.mean(at.double()).numpy()
    want_mean, want_variance = dense.exact_posterior(kernel, cross, prior, residual, noise)
    assert mean.dtype == dtype
    np.testing.assert_allclose(mean.numpy(), want_mean + shift, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(variance.numpy(), want_variance, rtol=tolerance, atol=tolerance)


def test_repeated_observations_equal_their_average_with_less_noise():
    model, x, y = random_problem(n=20)
    at = x[:5] + 0.1
    noise = model.likelihood.noise_variance.detach().clone()
    thrice = model.condition(x.repeat(3, 1), torch.cat([y - 0.2, y, y + 0.2])).predict(at)
    model.likelihood.noise_variance = noise / 3
    once = model.condition(x, y).predict(at)
    torch.testing.assert_close(thrice.mean, once.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(thrice.variance, once.variance, rtol=1e-8, atol=1e-10)


def test_stored_state_is_linear_in_the_data():
    model, x, y = random_problem()
    state = model.condition(x, y).state_dict()
    assert max(value.numel() for value in state.values()) == x.numel()


def test_prediction_does_not_depend_on_the_block_size(monkeypatch):
    model, x, y = random_problem()
    at = x + 0.2
    want = model.condition(x, y).predict(at)
    monkeypatch.setitem(dense_factor.BLOCK_BYTES, "cpu", 7 * len(x) * 8)
    got = model.condition(x, y).predict(at)
    torch.testing.assert_close(got.mean, want.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.variance, want.variance, rtol=1e-10, atol=1e-12)


def test_a_linear_kernel_is_bayesian_linear_regression():
    """Weights N(0, diag(v)), their posterior by the normal equations."""
    _, x, y = random_problem()
    at, variances = x[:9] + 0.4, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    model = ExactGP(
        kernel=LinearKernel(3, variances.tolist()), mean=Zero(), likelihood=Gaussian(0.07)
    ).double()
    with torch.no_grad():
        noise = model.likelihood.noise_variance
        precision = x.mT @ x / noise + (1.0 / model.kernel.slope_variance).diag()
    weights = torch.linalg.solve(precision, x.mT @ y / noise)
    found = model.condition(x, y).predict(at)
    torch.testing.assert_close(found.mean, at @ weights, rtol=1e-8, atol=1e-10)
    variance = (at * torch.linalg.solve(precision, at.mT).mT).sum(1)
    torch.testing.assert_close(found.variance, variance, rtol=1e-8, atol=1e-10)


def test_noise_free_interpolation_passes_through_the_data():
    x = torch.linspace(0, 3, 8, dtype=torch.float64)[:, None]
    y = x.squeeze(1).cos()
    model = ExactGP(
        kernel=Matern32(), mean=Constant(), likelihood=Gaussian(2e-13, noise_floor=1e-13)
    ).double()
    found = model.condition(x, y).predict(x)
    torch.testing.assert_close(found.mean, y, rtol=0, atol=1e-6)
    assert float(found.variance.max()) < 1e-6
    assert float(found.variance.min()) >= 0.0


def test_too_much_data_is_refused_before_anything_is_allocated(monkeypatch):
    model, x, y = random_problem()
    monkeypatch.setattr("gpx.linalg.memory.ASKED_FROM", 0)
    monkeypatch.setattr("gpx.linalg.memory.available_memory", lambda device: 1000)
    with pytest.raises(
        ConfigError, match=r"60 training points .* model=SGPR\(\), SVGP\(\) or QSGP\(\)"
    ):
        model.condition(x, y)


def test_a_kernel_matrix_that_is_not_positive_definite_is_explained():
    class Indefinite(RBF):
        def covariance(self, x1, x2):
            return -super().covariance(x1, x2)

        def variance(self, x):
            return -super().variance(x)

    model = ExactGP(kernel=Indefinite(), mean=Zero(), likelihood=Gaussian(0.1)).double()
    x = torch.zeros(4, 1, dtype=torch.float64)
    with pytest.raises(
        NotPositiveDefinite, match=r"kernel matrix of 4 training points .*smallest eigenvalue -3.90"
    ):
        model.condition(x, torch.zeros(4, dtype=torch.float64))


def test_nan_hyperparameters_are_named():
    model, x, y = random_problem(n=10)
    with torch.no_grad():
        for parameter in model.kernel.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(NotPositiveDefinite, match="NaN or infinite"):
        model.condition(x, y)


@pytest.mark.parametrize("repeated", [0, 3])
def test_an_error_says_how_many_rows_repeat_others(repeated):
    x = torch.arange(6.0, dtype=torch.float64).unsqueeze(1)
    x[6 - repeated :] = x[: min(repeated, 1)]
    with pytest.raises(NotPositiveDefinite) as caught:
        dense_factor.noisy_cholesky(RBF().double(), x, torch.tensor(-3.0).double())
    told = "3 of the 6 rows have the inputs of another row: give one row of the mean target"
    assert (told in str(caught.value)) == bool(repeated)
    assert ("of another row" in str(caught.value)) == bool(repeated)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu():
    model, x, y = random_problem()
    want = model.condition(x, y).predict(x + 0.1)
    got = model.cuda().condition(x.cuda(), y.cuda()).predict(x.cuda() + 0.1)
    torch.testing.assert_close(got.mean.cpu(), want.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(got.variance.cpu(), want.variance, rtol=1e-6, atol=1e-9)


def test_predictive_intervals_have_their_nominal_coverage():
    """200 functions from the prior with noise; observations at new points in the 95 % interval."""
    generator = torch.Generator().manual_seed(0)
    model, x = g1.exact_model(ExactGP), g1.x[:, None]
    x, at = x[::5], torch.linspace(0.1, 9.9, 20, dtype=torch.float64)[:, None]
    both = torch.cat([x, at])
    with torch.no_grad():
        noise = model.likelihood.noise_variance
        prior = model.kernel.evaluate(both, both) + noise * torch.eye(60, dtype=torch.float64)
        white = torch.randn(60, 200, generator=generator, dtype=torch.float64)
        values = torch.linalg.cholesky(prior) @ white
        inside = []
        for y in values.mT:
            found = model.condition(x, y[:40]).predict(at)
            width = 1.959964 * (found.variance + noise).sqrt()
            inside.append((y[40:] - found.mean).abs() <= width)
    assert 0.93 <= float(torch.cat(inside).double().mean()) <= 0.97


def smooth_problem(noise, dtype):
    x = torch.linspace(0.0, 3.0, 60, dtype=dtype)[:, None]
    model = ExactGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(noise, 0.0)).to(dtype)
    return model, x, x[:, 0].sin()


@pytest.mark.parametrize(
    ("noise", "dtype", "told"),
    [
        (1e-2, torch.float32, []),
        (1e-5, torch.float32, ["float32 has too few digits"]),
        (1e-6, torch.float64, []),
        (1e-8, torch.float32, ["float32 has too few digits", "added to the noise variance"]),
    ],
)
def test_evidences_and_posteriors_warn_of_float32_and_of_jitter(noise, dtype, told):
    model, x, y = smooth_problem(noise, dtype)
    objectives = (ExactMLL(), LeaveOneOut())
    for compute in (*(partial(each.evidence, model) for each in objectives), model.condition):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            compute(x, y)
        texts = [str(each.message) for each in found]
        assert len(texts) == len(told)
        assert all(part in text for part, text in zip(told, texts, strict=True))
    if len(told) > 1:
        assert "take dtype=float64 or a larger noise variance" in texts[1]


def test_a_jitter_that_is_large_beside_the_noise_is_a_warning_in_float64_too():
    model, x, y = smooth_problem(1.0, torch.float64)
    model.likelihood = Gaussian(1e-15, noise_floor=0.0).double()
    with pytest.warns(
        UserWarning, match=r"only with a jitter added .* above 1% of it, .*: take a larger"
    ):
        model.condition(x, y)


def test_jitters_of_several_hyperparameters_are_one_warning():
    model, x, y = smooth_problem(1.0, torch.float64)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for noise in (1e-15, 2e-15):
            model.likelihood = Gaussian(noise, noise_floor=0.0).double()
            ExactMLL().evidence(model, x, y)
    assert len(found) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("of_rows", [False, True])
def test_without_rows_the_posterior_is_the_prior(dtype, of_rows):
    model, x, y = smooth_problem(0.1, dtype)
    none, at = slice(0, 0), x[:3]
    if of_rows:
        model.know_noise(torch.zeros(0, dtype=dtype))
    assert float(ExactMLL().evidence(model, x[none], y[none]).value.detach()) == 0.0
    mean, variance = model.condition(x[none], y[none]).predict(at)
    assert torch.equal(mean, torch.zeros_like(mean))
    assert torch.equal(variance, model.kernel.diagonal(at).detach())
