"""Iterative posterior against the Cholesky one: certificates, golden values, serialisation."""

import copy
import io
import math
import warnings
from itertools import pairwise

import derivatives
import pytest
import torch

from gpx.errors import ConfigError, DataError, NotAvailable
from gpx.inference import exact_solver as solver_module
from gpx.inference.exact_solver import choose_solver
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.kernels import RBF, Matern32, Polynomial
from gpx.likelihoods import Gaussian
from gpx.linalg import EvidenceBound, UnconvergedWarning, conjugate_gradients
from gpx.means import Constant, Zero
from gpx.models import ExactGP, ExactPosterior, IterativeOptions, IterativePosterior

RULES = ("lanczos", "exact", "subset", "sgpr", "nystrom")


def problem(n=80, seed=0, **options):
    torch.manual_seed(seed)
    x = torch.rand(n, 2, dtype=torch.float64) * 4
    y = x.sum(1).sin() + 0.1 * torch.randn(n, dtype=torch.float64)
    model = ExactGP(
        kernel=Matern32(ard_num_dims=2, lengthscale=[0.8, 1.5], outputscale=1.4),
        mean=Constant(),
        likelihood=Gaussian(0.02),
        solver="iterative",
        iterative=IterativeOptions(**{"rank": 15, "variance_steps": 5, **options}),
    ).double()
    return model, x, y


def exact_prediction(model, x, y, at):
    other = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    return other.condition(x, y).predict(at)


def predict_quietly(posterior, at):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        return posterior.predict(at)


@pytest.mark.parametrize("tolerance", [1.0, 1e-2, 1e-5])
def test_means_are_within_their_certificate(tolerance):
    model, x, y = problem(tolerance=tolerance, variance="sgpr")
    at = torch.rand(100, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 5
    posterior = model.condition(x, y)
    off = (posterior.predict(at).mean - exact_prediction(model, x, y, at).mean).abs().max()
    assert off <= posterior.mean_error
    assert posterior.mean_error <= tolerance * model.likelihood.noise_variance.sqrt()


def test_certificates_hold_for_float32_data():
    """Noise so small that float32 covariances with the data would exceed the certificate."""
    options = {"tolerance": 1e-3, "rank": 100, "product_dtype": "float64"}
    model, x, y = problem(n=400, variance="exact", **options)
    model.likelihood.noise_variance = torch.tensor(1e-4)
    model.kernel = RBF(ard_num_dims=2, lengthscale=[2.0, 2.5], outputscale=1.4)
    model, x, y = model.float(), x.float(), y.float()
    posterior = model.condition(x, y)
    at = torch.rand(100, 2, generator=torch.Generator().manual_seed(1)) * 4
    got = predict_quietly(posterior, at)
    assert got.mean.dtype == got.variance.dtype == torch.float32
    want = exact_prediction(model.double(), x.double(), y.double(), at.double())
    rounding = 2e-7 * float(want.mean.abs().max())  # of the returned means
    assert (
        float((got.mean - want.mean).abs().max())
        <= posterior.facts()["mean_error_bound"] + rounding
    )


def test_nothing_is_certified_before_a_prediction():
    model, x, y = problem(variance="exact")
    posterior = model.condition(x, y)
    posterior.predict(x[:0])
    assert "variance_error_bound" not in posterior.facts()
    posterior.predict(x[:3])
    assert math.isfinite(posterior.facts()["variance_error_bound"])


@pytest.mark.parametrize("rule", RULES)
def test_variances_lie_within_their_certificate(rule):
    model, x, y = problem(variance=rule)
    at = torch.rand(60, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 5
    want = exact_prediction(model, x, y, at).variance
    posterior = model.condition(x, y)
    got = predict_quietly(posterior, at).variance
    found = posterior._rule(posterior.kernel.evaluate(x, at), posterior.kernel.diagonal(at))
    if rule == "sgpr":
        assert bool(found.gap.isnan().all())
        assert posterior.facts()["variance_error_bound"] == "none"
        return
    assert bool((got >= want - 1e-10).all())
    assert bool((found.variance - found.gap <= want + 1e-10).all())
    noise = model.likelihood.noise_variance.detach()
    assert float(((got - want) / (want + noise)).max()) <= posterior.facts()["variance_error_bound"]


@pytest.mark.parametrize("rule", RULES)
def test_derivatives_are_those_of_the_predictions(rule):
    model, x, y = problem(variance=rule, tolerance=1e-10)
    posterior = model.condition(x, y)
    at = torch.rand(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 4
    derivatives.check(lambda rows: predict_quietly(posterior, rows), at)


def test_derivatives_where_the_low_rank_part_is_the_whole_matrix():
    """The two ends of "nystrom" are then equal but for rounding."""
    model, x, y = problem(n=40, variance="nystrom", rank=40)
    other = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    at = (x[:5] + 0.1).requires_grad_()
    found, wanted = [
        torch.autograd.grad(m.condition(x, y).predict(at).variance.sum(), at)[0]
        for m in (model, other)
    ]
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_second_derivatives_are_right_or_refused(rule):
    model, x, y = problem(variance=rule, tolerance=1e-6)
    model.kernel = Polynomial(degree=2, outputscale=0.1).double()  # whose own ones are available
    posterior = model.condition(x, y)

    def slope(at):
        rows = at.clone().requires_grad_() if not at.requires_grad else at
        variance = predict_quietly(posterior, rows).variance
        (found,) = torch.autograd.grad(variance.sum(), rows, create_graph=True)
        return [found if at.requires_grad else found.detach()]

    at = torch.rand(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 4
    if rule in ("exact", "nystrom"):
        with pytest.raises(NotAvailable, match="second derivative"):
            derivatives.check(slope, at)
    else:
        derivatives.check(slope, at)


def test_derivatives_of_solved_variances_meet_the_tolerance():
    """An error e of a solve enters the variance as its square, but derivatives as it is."""
    model, x, y = problem(variance="exact", tolerance=1e-3)
    other = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    at = torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 4
    at.requires_grad_()
    found, wanted = [
        torch.autograd.grad(m.condition(x, y).predict(at).variance.sum(), at)[0]
        for m in (model, other)
    ]
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-3 * float(wanted.abs().max()))


def test_default_variances_hold_where_the_noise_is_small():
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(500, 3, generator=draws, dtype=torch.float64)
    at = torch.randn(50, 3, generator=draws, dtype=torch.float64)
    model = ExactGP(
        kernel=RBF(lengthscale=0.3), mean=Zero(), likelihood=Gaussian(1e-3), solver="iterative"
    ).double()
    y = (2 * x).sin().sum(1)
    want = exact_prediction(model, x, y, at).variance
    ratios = {}
    for neighbours in (IterativeOptions().variance_neighbours, 0):
        model.iterative = IterativeOptions(
            rank=20, variance_steps=10, variance_neighbours=neighbours
        )
        got = predict_quietly(model.condition(x, y), at).variance
        ratios[neighbours] = (got + 1e-3) / (want + 1e-3)
        assert bool((got >= want - 1e-9).all())
    assert float(ratios[100].max()) < 1.5
    assert float(ratios[0].max()) > 100.0  # what the projection alone makes of it


def test_exact_variances_meet_the_tolerance():
    model, x, y = problem(variance="exact", tolerance=1e-3)
    at = torch.rand(60, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 5
    posterior = model.condition(x, y)
    off = posterior.predict(at).variance - exact_prediction(model, x, y, at).variance
    assert off.max() <= 1e-3 * model.likelihood.noise_variance
    assert posterior.facts()["variance_error_bound"] <= 1e-3


def test_a_projection_on_everything_is_exact_and_a_smaller_one_above_it():
    model, x, y = problem(n=40, rank=40, variance="lanczos")
    at = torch.rand(20, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 5
    full = model.condition(x, y).predict(at).variance
    torch.testing.assert_close(full, exact_prediction(model, x, y, at).variance, rtol=1e-4, atol=0)
    small, _, _ = problem(n=40, rank=12, variance="lanczos", variance_steps=0)
    posterior = small.condition(x, y)
    predict_quietly(posterior, at)
    found = posterior._rule(posterior.kernel.evaluate(x, at), posterior.kernel.diagonal(at))
    want = exact_prediction(small, x, y, at).variance
    off = found.variance - want
    assert bool((off >= 0.0).all())
    assert bool((off <= found.gap).all())  # r^T K^-1 r <= r^T Q^-1 r


def test_without_noise_and_with_repeated_inputs_the_certificate_is_wide_but_a_number():
    """Rounding makes r^T Q^{-1} r negative there; the cause is named, noise I still certifies."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.cat([x, x, x])
    model = ExactGP(
        kernel=RBF(lengthscale=1.0, outputscale=1e3),
        mean=Zero(),
        likelihood=Gaussian(1e-13, noise_floor=1e-14),
        solver="iterative",
    ).double()
    with pytest.warns(UnconvergedWarning, match="preconditioner is not positive definite"):
        posterior = model.condition(x, (2.0 * x[:, 0]).sin() + x[:, 1])
    assert math.isfinite(posterior.mean_error)
    assert posterior.mean_error > 1.0


def test_a_cache_that_is_too_small_says_so():
    model, x, y = problem(rank=2, variance_steps=0)
    with pytest.warns(
        UnconvergedWarning, match="certified to a relative error of .* only, not 0.01"
    ):
        model.condition(x, y).predict(x[:5] + 0.1)


@pytest.mark.parametrize("rank", [1, 5])
def test_chain_of_bounds_on_the_mean_for_every_step_on_the_golden_fixture(rank):
    """|k_*^T (v_t - v)| <= sqrt(k r^T K^-1 r) <= sqrt(k r^T Q^-1 r) <= sqrt(k) ||r|| / sigma."""
    x = torch.arange(200, dtype=torch.float64)[:, None] * (10.0 / 199.0)
    y = (2 * x[:, 0]).sin() + 0.3 * (7 * x[:, 0]).cos()
    kernel = RBF(lengthscale=0.7, outputscale=1.3).double()
    with torch.no_grad():
        noise = torch.tensor(0.05, dtype=torch.float64)
        system = PreconditionedKernel(kernel, x, noise, IterativeOptions(rank=rank))
        dense = system.matmul(torch.eye(200, dtype=torch.float64))
        truth = torch.linalg.solve(dense, y)
        at = torch.linspace(-1.0, 11.0, 100, dtype=torch.float64)[:, None]
        cross = kernel.evaluate(at, x)
        for steps in range(1, 11):
            found = conjugate_gradients(
                system.matmul,
                y,
                preconditioner=system.preconditioner,
                stop=EvidenceBound(1e-14),
                max_iterations=steps,
                on_failure="return",
            )
            r = found.residual
            off = (cross @ (found.solution - truth)).abs().max()
            chain = [
                off,
                (system.prior_variance * (r @ torch.linalg.solve(dense, r))).sqrt(),
                (system.prior_variance * (r @ system.preconditioner.solve(r))).sqrt(),
                (system.prior_variance / noise).sqrt() * r.norm(),
            ]
            assert all(float(a) <= float(b) * (1 + 1e-9) for a, b in pairwise(chain))
            assert float(off) > 0.0


def test_golden_predictions():
    x = torch.arange(200, dtype=torch.float64)[:, None] * (10.0 / 199.0)
    y = (2 * x[:, 0]).sin() + 0.3 * (7 * x[:, 0]).cos()
    model = ExactGP(
        kernel=RBF(),
        mean=Zero(),
        likelihood=Gaussian(),
        solver="iterative",
        iterative=IterativeOptions(rank=20, tolerance=1e-9, variance="exact"),
    ).double()
    model.kernel.lengthscale = torch.tensor(0.7, dtype=torch.float64)
    model.kernel.outputscale = torch.tensor(1.3, dtype=torch.float64)
    model.likelihood.noise_variance = torch.tensor(0.05, dtype=torch.float64)
    at = torch.tensor([[5.03], [10.4]], dtype=torch.float64)
    mean, variance = model.condition(x, y).predict(at)
    want = torch.tensor([[-0.5932219766, 1.683908528], [0.004174594885, 0.2107382847]]).double()
    torch.testing.assert_close(mean, want[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(variance, want[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("rule", RULES)
def test_survives_a_checkpoint_and_is_independent_of_its_model(rule):
    model, x, y = problem(variance=rule)
    posterior = model.condition(x, y)
    want = predict_quietly(posterior, x[:7] + 0.3)
    stream = io.BytesIO()
    torch.save(posterior.state_dict(), stream)
    stream.seek(0)
    fresh, _, _ = problem(seed=3, variance=rule)
    rebuilt = fresh.new_posterior()
    rebuilt.load_state_dict(torch.load(stream, weights_only=True))
    with torch.no_grad():
        for parameter in (*model.parameters(), *fresh.parameters()):
            parameter.add_(0.5)
    got = predict_quietly(rebuilt, x[:7] + 0.3)
    assert torch.equal(got.mean, want.mean)
    assert torch.equal(got.variance, want.variance)
    assert rebuilt.facts() == posterior.facts()
    assert max(value.numel() for value in posterior.state_dict().values()) == x.numel()


def test_paths_have_the_posterior_mean_and_stay_the_same_functions():
    model, x, y = problem()
    posterior = model.condition(x, y)
    at = torch.rand(10, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 4
    paths = posterior.sample_paths(400, generator=torch.Generator().manual_seed(0))
    drawn = paths(at)
    torch.testing.assert_close(paths(at[:3]), drawn[:, :3], rtol=1e-10, atol=1e-10)
    want = exact_prediction(model, x, y, at)
    error = (drawn.mean(0) - want.mean).abs() / (drawn.std(0) / 20)
    assert float(error.max()) < 5.0  # one false alarm in 200,000
    # 2,048 random frequencies: a few per cent of the prior variance
    torch.testing.assert_close(drawn.var(0), want.variance, rtol=0.5, atol=0.03)


def test_float32_keeps_its_dtype():
    model, x, y = problem(variance="exact")
    want = exact_prediction(model, x, y, x[:5] + 0.1)
    got = model.float().condition(x.float(), y.float()).predict(x[:5].float() + 0.1)
    assert got.mean.dtype == got.variance.dtype == torch.float32
    torch.testing.assert_close(got.mean.double(), want.mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(got.variance.double(), want.variance, rtol=0, atol=5e-3)


def test_an_unreachable_tolerance_is_a_warning_and_a_bound():
    model, x, y = problem(rank=1, max_iterations=2, tolerance=1e-6)
    with pytest.warns(UnconvergedWarning, match="2 steps were not enough: bound on the posterior"):
        posterior = model.condition(x, y)
    at = x[:5] + 0.2
    off = predict_quietly(posterior, at).mean - exact_prediction(model, x, y, at).mean
    assert posterior.facts()["mean_error_bound"] >= float(off.abs().max()) > 1e-6


def test_targets_that_are_not_finite():
    model, x, y = problem()
    y[3] = math.nan
    for solver in ("iterative", "cholesky"):
        model.solver = solver
        with pytest.raises(DataError, match="1 of 80 targets"):
            model.condition(x, y)


def test_auto_goes_by_size_and_memory_and_says_why(monkeypatch):
    model, x, y = problem()
    model.solver = "auto"
    assert isinstance(model.condition(x, y), ExactPosterior)
    monkeypatch.setattr(solver_module, "memory_for_all", lambda device: 1000)
    assert choose_solver("auto", x).reason == "a factor needs 0.0 GiB and 0.0 GiB are free"
    monkeypatch.setattr(solver_module, "memory_for_all", lambda device: None)
    assert choose_solver("auto", x).name == "cholesky"
    monkeypatch.setitem(solver_module.CHOLESKY_LIMIT, "cpu", 79)
    assert choose_solver("auto", x).reason == "80 training points are more than 79"
    assert choose_solver("cholesky", x).reason == "asked for"
    assert isinstance(model.condition(x, y), IterativePosterior)
    assert model.settle(x)["solver"][0] == "iterative"
    monkeypatch.setitem(solver_module.CHOLESKY_LIMIT, "cpu", 80)
    assert isinstance(model.new_posterior(), IterativePosterior)  # settled
    assert model.settle(x) == {}


def test_the_rank_follows_the_number_of_points_and_the_memory():
    options = IterativeOptions()
    assert [options.points(n) for n in (1, 100, 2_000, 20_000)] == [1, 100, 627, 1000]
    assert options.points(10**6) == 2**31 // (8 * 4 * 10**6)  # four factors in 2 GiB
    assert IterativeOptions(memory_budget_gib=1e-6).points(10**6) == 1
    assert [IterativeOptions(rank=500).points(n) for n in (80, 10**6)] == [80, 500]
    model, x, y = problem(rank="auto", variance="sgpr")
    assert model.condition(x, y).system().factor.shape[0] == 80


def test_options_are_checked():
    with pytest.raises(ConfigError, match=r"solver=lu: expected one of auto, cholesky"):
        ExactGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), solver="lu")
    for options, text in (
        ({"rank": 0}, "rank=0"),
        ({"rank": "many"}, "rank=many: expected a whole number or the word auto"),
        ({"tolerance": 0.0}, "must be positive"),
        ({"product_dtype": "float16"}, "product_dtype=float16"),
        ({"variance": "love"}, "variance=love: expected one of lanczos"),
    ):
        with pytest.raises(ConfigError, match=text):
            IterativeOptions(**options)


def test_a_pickle_of_an_earlier_version_without_certificates_has_facts():
    model, x, y = problem(n=20)
    posterior = model.condition(x, y)
    posterior._widest = None
    assert copy.deepcopy(posterior).facts()["variance_error_bound"] == "none"
