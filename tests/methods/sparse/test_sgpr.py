"""Sparse regression: posterior against dense algebra, golden values, start, checkpoints."""

import dense_gaussian_process as dense
import golden_g1 as g1
import numpy as np
import pytest
import torch
from sparse_problems import sparse_problem

from gpx.errors import ConfigError, DataError, NotPositiveDefinite
from gpx.inducing import GreedyConditionalVariance, KMeans
from gpx.inference import nystrom
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SGPR, ExactGP
from gpx.objectives import CollapsedELBO


def problem(seed=0, n=80, m=15, dtype=torch.float64, **options):
    return sparse_problem(SGPR, n, m, seed=seed, dtype=dtype, **options)


def test_golden_posterior():
    model = g1.sparse_model(SGPR)
    at = torch.tensor([[5.03], [10.4]], dtype=torch.float64)
    mean, variance = model.condition(g1.x[:, None], g1.y).predict(at)
    expected_mean = torch.tensor([-0.5943785215, 1.408125971], dtype=torch.float64)
    expected_variance = torch.tensor([0.004180522695, 0.3537315899], dtype=torch.float64)
    torch.testing.assert_close(mean, expected_mean, rtol=1e-8, atol=0)
    torch.testing.assert_close(variance, expected_variance, rtol=1e-7, atol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 5e-4)])
def test_posterior_equals_dense_algebra(dtype, tolerance):
    model, x, y = problem(dtype=dtype)
    at = torch.randn(17, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, variance = model.condition(x, y).predict(at.to(dtype))
    assert mean.dtype == variance.dtype == dtype
    wide, x, y = model.double(), x.double(), y.double()
    with torch.no_grad():
        z = wide.inducing_points
        found = dense.sparse_posterior(
            wide.kernel.evaluate(z, z).numpy(),
            wide.kernel.evaluate(z, x).numpy(),
            wide.kernel.evaluate(z, at).numpy(),
            wide.kernel.diagonal(at).numpy(),
            (y - wide.mean(x)).numpy(),
            float(wide.likelihood.noise_variance),
        )
        want_mean = found[0] + wide.mean(at).numpy()
    np.testing.assert_allclose(mean.numpy(), want_mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(variance.numpy(), found[1], rtol=tolerance, atol=tolerance)


def test_inducing_points_at_all_data_give_the_exact_posterior():
    model, x, y = problem(n=30, m=30)
    with torch.no_grad():
        model.inducing_points.copy_(x)
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    at = x[:9] + 0.4
    got, want = model.condition(x, y).predict(at), exact.condition(x, y).predict(at)
    torch.testing.assert_close(got.mean, want.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(got.variance, want.variance, rtol=1e-7, atol=1e-9)


def test_a_posterior_keeps_none_of_the_training_data():
    model, x, y = problem()
    state = model.condition(x, y).state_dict()
    assert len(x) not in {size for v in state.values() for size in v.shape}


def test_prediction_and_conditioning_do_not_depend_on_the_block_size(monkeypatch):
    model, x, y = problem()
    want = model.condition(x, y).predict(x + 0.2)
    monkeypatch.setitem(nystrom.BLOCK_BYTES, "cpu", 7 * 15 * 8)
    got = model.condition(x, y).predict(x + 0.2)
    torch.testing.assert_close(got.mean, want.mean, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(got.variance, want.variance, rtol=1e-9, atol=1e-11)


def test_points_start_at_centres_of_clusters_unless_they_grow():
    model, x, y = problem()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    want = KMeans()(x, model.kernel, 15, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.inducing_points.detach(), want)
    growing, _, _ = problem()
    common = {"kernel": growing.kernel, "mean": growing.mean, "likelihood": growing.likelihood}
    growing = SGPR(**common, num_inputs=3, num_inducing="auto")
    assert isinstance(growing.selector, GreedyConditionalVariance)


def test_initialise_places_points_on_the_data_and_raises_the_bound_by_the_noise():
    objective = CollapsedELBO()
    fixed, x, y = problem(fit_noise=False, selector=GreedyConditionalVariance())
    fixed.initialise(x, y, generator=torch.Generator().manual_seed(0))
    assert all(bool((x == z).all(1).any()) for z in fixed.inducing_points)
    fitted, _, _ = problem(selector=GreedyConditionalVariance())
    fitted.initialise(x, y, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fitted.inducing_points, fixed.inducing_points)
    with torch.no_grad():
        before = objective.evidence(fixed, x, y).value
        best = objective.evidence(fitted, x, y).value
        assert best > before + 1.0
        noise = fitted.likelihood.noise_variance.clone()
        for factor in (0.9, 1.1):
            fitted.likelihood.noise_variance = noise * factor
            assert objective.evidence(fitted, x, y).value < best


def test_a_noise_variance_that_is_not_trained_is_not_raised():
    model, x, y = problem(selector=GreedyConditionalVariance())
    model.likelihood.requires_grad_(False)
    before = model.likelihood.noise_variance.clone()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.likelihood.noise_variance, before)


def test_parameters_have_their_roles():
    model, _, _ = problem()
    groups = model.parameter_groups()
    assert groups["inducing"] == [model.inducing_points]
    together = {id(p) for group in groups.values() for p in group}
    assert together == {id(p) for p in model.parameters()}
    assert sum(map(len, groups.values())) == len(together)


def test_repeated_inducing_points_do_not_crash_and_are_reported():
    model, x, y = problem()
    with torch.no_grad():
        want = CollapsedELBO().evidence(model, x, y).value
        repeated = SGPR(
            kernel=model.kernel,
            mean=model.mean,
            likelihood=model.likelihood,
            num_inputs=3,
            num_inducing=30,
        ).double()
        repeated.inducing_points.copy_(model.inducing_points.repeat(2, 1))
        evidence = CollapsedELBO().evidence(repeated, x, y)
    torch.testing.assert_close(evidence.value, want, rtol=1e-6, atol=1e-4)
    got = repeated.condition(x, y).predict(x)
    want_posterior = model.condition(x, y).predict(x)
    torch.testing.assert_close(got.mean, want_posterior.mean, rtol=1e-5, atol=1e-5)
    assert evidence.report.jitter >= 0.0


def test_defaults_serve_data_smaller_than_the_number_of_inducing_points():
    model = SGPR(
        kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=2, num_inducing=50, num_data=20
    )
    assert model.inducing_points.shape == (20, 2)


def test_invalid_setups_are_refused():
    model, x, y = problem(n=10, m=15)
    with pytest.raises(DataError, match=r"15 inducing points .* only 10 training points"):
        model.initialise(x, y, generator=torch.Generator())
    common = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(), "num_inputs": 1}
    with pytest.raises(ConfigError, match="selector='greedy' is no selector"):
        SGPR(**common, selector="greedy")
    with pytest.raises(ConfigError, match=r"num_inducing=\S+ must be at least 1"):
        SGPR(**common, num_inducing=0)
    with pytest.raises(ConfigError, match=r"jitter=\S+ must not be negative"):
        SGPR(**common, jitter=-1.0)
    with torch.no_grad():
        model.inducing_points.fill_(float("nan"))
    with pytest.raises(NotPositiveDefinite, match=r"K_zz of 15 inducing points .*NaN"):
        model.condition(x, y)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu():
    model, x, y = problem()
    want = model.condition(x, y).predict(x + 0.1)
    got = model.cuda().condition(x.cuda(), y.cuda()).predict(x.cuda() + 0.1)
    torch.testing.assert_close(got.mean.cpu(), want.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(got.variance.cpu(), want.variance, rtol=1e-7, atol=1e-9)
