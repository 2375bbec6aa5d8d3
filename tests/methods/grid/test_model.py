"""Posterior on, between and beyond the points of a grid against dense algebra."""

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import grid_problems
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError, DataError, NotPositiveDefinite, ShapeError
from gpx.kernels import RBF, Matern12, Matern32, Product
from gpx.kernels.over_axes import MultiOutput
from gpx.likelihoods import StudentT
from gpx.linalg import UnconvergedWarning
from gpx.methods.grid import points as grid_points
from gpx.methods.grid import posterior as grid_posterior
from gpx.methods.grid import system as grid_system
from gpx.methods.grid import variance as grid_variance
from gpx.methods.grid.sampled_variance import SampledVariance
from gpx.methods.grid.variance import VarianceOptions, choose_variance
from gpx.models import GridGP
from gpx.objectives import ExactMLL, GridMLL


def around(whole):
    """Cells, points between them, beyond them, and another grid."""
    generator = torch.Generator().manual_seed(5)
    inside = torch.rand(6, whole.shape[1], generator=generator, dtype=torch.float64)
    beyond = whole[:3] + 1.0
    other = torch.cartesian_prod(*[torch.linspace(0.1, 1.4, 3, dtype=torch.float64)] * 3)
    return torch.cat([whole[::7], inside, beyond, other])


@pytest.mark.parametrize("gaps", ["fill", "ignore", "penalize"])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_mean_and_variance_equal_dense_inference(gaps, share):
    whole, x, y = grid_problems.draw(share)
    at = around(whole)
    model, exact = grid_problems.pair(gaps=gaps, penalty=1e8, tolerance=1e-13)
    found = model.condition(x, y).predict(at)
    want = exact.condition(x, y).predict(at)
    tolerance = 1e-5 if gaps == "penalize" else 1e-8
    torch.testing.assert_close(found.mean, want.mean, rtol=tolerance, atol=tolerance)
    closed_form = {"rtol": 1e-10, "atol": 1e-12}
    loose = {"rtol": 1e-6, "atol": 1e-9}
    chosen = closed_form if share == 1.0 else loose
    torch.testing.assert_close(found.variance, want.variance, **chosen)


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_every_variance_route_agrees_where_it_is_exact(share):
    whole, x, y = grid_problems.draw(share)
    at = around(whole)
    _, exact = grid_problems.pair()
    want = exact.condition(x, y).predict(at).variance
    for variance in ("dense", "fill", "ignore", "rank_reduced"):
        model, _ = grid_problems.pair(variance=variance, variance_rank=120)
        posterior = model.condition(x, y)
        found = posterior.predict(at).variance
        torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-9)
        assert posterior.facts()["variance"] == variance


def test_threads_that_draw_samples_at_the_same_time_keep_them_once(monkeypatch):
    _, x, y = grid_problems.draw(0.5)
    model, _ = grid_problems.pair(variance="sampled", variance_samples=64, variance_error=1e-9)
    posterior, barrier = model.condition(x, y), Barrier(2)
    want = copy.deepcopy(posterior).predict(x).variance
    draw = SampledVariance._draw_block

    def both(samples, number):
        if number == 0:
            barrier.wait(timeout=30)  # neither has stored a block
        return draw(samples, number)

    monkeypatch.setattr(SampledVariance, "_draw_block", both)
    # built beforehand, as otherwise each thread may have one of its own
    posterior._samples = {False: SampledVariance(posterior.system(), posterior.options, 64)}
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda at: posterior.predict(at).variance, [x, x]))
    for variance in (*found, posterior.predict(x).variance):  # a block twice: other by percents
        torch.testing.assert_close(variance, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gaps", ["fill", "ignore"])
def test_sampled_variance_is_unbiased(gaps):
    """1600 samples: relative error 0.035; a deviation of five of them has odds below 1e-6."""
    whole, x, y = grid_problems.draw(0.5)
    at = around(whole)
    options = {"variance": "sampled", "variance_samples": 1600, "variance_error": 1e-9}
    model, exact = grid_problems.pair(gaps=gaps, **options)
    want = exact.condition(x, y).predict(at).variance
    posterior = model.condition(x, y)
    found = posterior.predict(at).variance
    assert float((found / want - 1.0).abs().max()) < 0.18
    torch.testing.assert_close(posterior.predict(at).variance, found, rtol=0, atol=0)


@pytest.mark.parametrize("share", [0.4, 0.9])
@pytest.mark.parametrize("points", [1500, 0])
def test_variances_of_many_points_are_as_exact_as_of_few(share, points, monkeypatch):
    """Over the observed cells, and over the gaps where these are fewer; no sampling on the way."""
    whole, x, y = grid_problems.draw(share)
    at = torch.cat([around(whole), whole + 0.03])
    assert len(at) > 2 * grid_variance.MAX_SOLVED_POINTS
    monkeypatch.setattr(grid_system, "DENSE_POINTS", points)
    monkeypatch.setattr(grid_system, "BLOCK_NUMBERS", 1000)
    model, exact = grid_problems.pair()
    posterior = model.condition(x, y)
    found, want = posterior.predict(at).variance, exact.condition(x, y).predict(at).variance
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-11)
    assert posterior.facts()["variance"] == "dense"
    assert posterior._dense.observed == (points > 0 or share < 0.5)
    few = posterior.predict(at[-3:]).variance
    torch.testing.assert_close(few, found[-3:], rtol=1e-12, atol=1e-13)


def test_where_float32_has_no_factor_systems_are_solved_instead(monkeypatch):
    whole, x, y = grid_problems.draw(0.5)
    model, exact = grid_problems.pair()
    want = exact.condition(x, y).predict(whole).variance
    posterior = model.condition(x, y)

    def refused(system):
        raise NotPositiveDefinite("no factor")

    monkeypatch.setattr(grid_posterior, "DenseVariance", refused)
    torch.testing.assert_close(posterior.predict(whole).variance, want, rtol=1e-6, atol=1e-9)
    assert posterior.facts()["variance"] == "fill"
    asked = grid_problems.pair(variance="dense")[0].condition(x, y)
    with pytest.raises(NotPositiveDefinite):
        asked.predict(whole)


@pytest.mark.parametrize("gaps", ["fill", "ignore"])
def test_sampling_goes_on_until_its_stated_error(gaps):
    """Each draw is Gaussian: mean squares of S have relative error sqrt(2 / S) exactly.

    At 160 points five standard errors are exceeded with odds below 1e-4.
    """
    whole, x, y = grid_problems.draw(0.5)
    at = torch.cat([whole, whole[:40] + 0.05])
    want = grid_problems.pair()[1].condition(x, y).predict(at).variance + 0.05
    used = []
    for asked, most in ((0.15, 4000), (0.05, 4000), (0.05, 50)):
        options = {"variance_error": asked, "variance_samples": most, "gaps": gaps}
        model, _ = grid_problems.pair(variance="sampled", **options)
        posterior = model.condition(x, y)
        found = posterior.predict(at).variance + 0.05
        facts = posterior.facts()
        if most == 50:
            assert facts["variance_samples"] == 50
            assert asked < facts["variance_error"] <= (2.0 / 50) ** 0.5
        else:
            assert facts["variance_error"] <= asked
            assert facts["variance_samples"] <= 2.0 / asked**2 + 32
        assert float((found / want - 1.0).abs().max()) < 5.0 * facts["variance_error"]
        used.append(facts["variance_samples"])
        few = posterior.predict(at[:2])  # may need fewer; says the same when asked again
        torch.testing.assert_close(posterior.predict(at).variance + 0.05, found, rtol=0, atol=0)
        assert bool((few.variance > 0).all())
    assert used[1] > 2 * used[0]


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 50), st.integers(1, 6), st.floats(0.2, 0.9))
def test_unfinished_solves_bracket_the_variance(seed, steps, share):
    whole, x, y = grid_problems.draw(share, seed=seed)
    at = around(whole)[::4]
    model, exact = grid_problems.pair(noise=0.02, max_iterations=steps)
    want = exact.condition(x, y).predict(at).variance
    posterior = grid_problems.pair(noise=0.02)[0].condition(x, y)
    posterior.options = model.options
    with pytest.MonkeyPatch.context() as patch:
        solve = grid_variance.solve_gaps
        patch.setattr(
            grid_variance, "solve_gaps", lambda *a, **k: solve(*a, **k | {"on_failure": "return"})
        )
        ends = posterior.variance_bracket(at)
    assert (ends.lower <= want + 1e-9).all()
    assert (ends.upper >= want - 1e-9).all()


@pytest.mark.parametrize("variance", ["fill", "ignore", "sampled"])
@pytest.mark.parametrize("gaps", ["fill", "ignore"])
def test_variances_hold_where_noise_is_far_below_the_prior(gaps, variance, monkeypatch):
    """A residual relative to a right-hand side of size 1 / sigma^2 may not mean anything."""
    whole, x, y = grid_problems.draw(0.5, sizes=(14, 14), seed=1)
    kernel = RBF(2, [0.3, 0.3], 1.0)
    options = {"tolerance": 1e-6, "gaps": gaps, "variance": variance, "variance_samples": 800}
    options |= {"variance_error": 1e-9}
    model, exact = grid_problems.pair(2, 1e-5, kernel=kernel, **options)
    with torch.no_grad():
        exact.likelihood.noise_variance = torch.tensor(1.1e-6).double()
    want = exact.condition(x, y).predict(whole).variance
    noise = float(exact.likelihood.noise_variance.detach())
    found = model.condition(x, y).predict(whole).variance
    error = ((found - want) / (want + noise)).abs().max()
    assert float(error) < (0.3 if variance == "sampled" else 2e-3)
    if variance == "fill":
        monkeypatch.setattr(grid_variance, "MAX_VARIANCE_ERROR", 1e30)
        loose = model.condition(x, y).predict(whole).variance
        assert float(((loose - want) / (want + noise)).abs().max()) > 0.05


def test_variances_beyond_float32_precision_are_reported():
    _, x, y = grid_problems.draw(0.5, sizes=(14, 14), seed=1)
    options = {"gaps": "fill", "variance": "fill", "tolerance": 1e-4}
    model, _ = grid_problems.pair(2, 1e-5, kernel=RBF(2, [0.3, 0.3], 1.0), **options)
    with torch.no_grad():
        model.likelihood.noise_variance = torch.tensor(1.1e-6).double()
    with pytest.warns(UnconvergedWarning, match=r"predictive variances|stagnation"):
        model.float().condition(x.float(), y.float()).predict(x[:9].float())


def test_rank_reduced_variances_stay_between_zero_and_the_prior():
    whole, x, y = grid_problems.draw()
    at = around(whole)
    model, _ = grid_problems.pair(variance="rank_reduced", variance_rank=5)
    found = model.condition(x, y).predict(at).variance
    assert (found >= 0.0).all()
    assert (found <= model.kernel.diagonal(at) + 1e-12).all()


def test_scattered_points_are_contracted_in_blocks(monkeypatch):
    _, x, y = grid_problems.draw()
    at = torch.rand(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, exact = grid_problems.pair()
    monkeypatch.setattr(grid_points, "BLOCK_NUMBERS", 100)
    found = model.condition(x, y).predict_mean(at)
    want = exact.condition(x, y).predict(at).mean
    torch.testing.assert_close(found, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("gaps", ["fill", "ignore", "penalize"])
def test_stations_by_time_by_output_with_every_strategy(gaps):
    x, y = grid_problems.stations()
    kernel = MultiOutput("matern32", 4, 2, [[0, 1], [2], [3]])
    options = {"axes": [[0, 1], [2], [3]], "gaps": gaps, "penalty": 1e8, "tolerance": 1e-13}
    model, exact = grid_problems.pair(kernel=kernel, **options)
    at = torch.cat([x[::3], torch.tensor([[0.1, 0.2, 3.0, 1.0]], dtype=torch.float64)])
    found, want = model.condition(x, y).predict(at), exact.condition(x, y).predict(at)
    tolerance = 1e-5 if gaps == "penalize" else 1e-8
    torch.testing.assert_close(found.mean, want.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.variance, want.variance, rtol=1e-7, atol=1e-9)
    with torch.no_grad():
        evidence = GridMLL("dense").evidence(model, x, y).value
        torch.testing.assert_close(
            evidence, ExactMLL().evidence(exact, x, y).value, rtol=tolerance, atol=0
        )


def test_posterior_survives_a_safe_checkpoint_and_is_independent_of_its_model():
    whole, x, y = grid_problems.draw()
    at = around(whole)
    model, _ = grid_problems.pair(axes=[[0, 2], [1]])
    posterior = model.condition(x, y)
    want = posterior.predict(at)
    stream = io.BytesIO()
    torch.save(posterior.state_dict(), stream)
    stream.seek(0)
    fresh, _ = grid_problems.pair(axes=[[0, 2], [1]])
    rebuilt = fresh.new_posterior().double()
    rebuilt.load_state_dict(torch.load(stream, weights_only=True))
    with torch.no_grad():
        for parameter in (*model.parameters(), *fresh.parameters()):
            parameter.add_(0.5)
    found = rebuilt.predict(at)
    torch.testing.assert_close(found, want, rtol=0, atol=0)


def test_sample_paths_have_the_posteriors_moments_on_the_grid_and_repeat():
    whole, x, y = grid_problems.draw(0.6)
    model, exact = grid_problems.pair()
    want = exact.condition(x, y).predict(whole)
    paths = model.condition(x, y).sample_paths(2000, generator=torch.Generator().manual_seed(0))
    drawn = paths(whole)
    error = (drawn.mean(0) - want.mean).abs() / (want.variance / 2000).sqrt()
    assert float(error.max()) < 5.0
    assert float((drawn.var(0) / want.variance - 1.0).abs().max()) < 0.2
    torch.testing.assert_close(paths(whole[3:9]), drawn[:, 3:9], rtol=1e-9, atol=1e-9)


def test_one_observed_cell():
    whole, x, y = grid_problems.draw(0.5)
    model, exact = grid_problems.pair()
    found = model.condition(x[:1], y[:1]).predict(whole)
    want = exact.condition(x[:1], y[:1]).predict(whole)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-10)


def test_what_is_chosen_is_recorded():
    _, x, _ = grid_problems.draw(0.5)
    model, _ = grid_problems.pair()
    settled = model.settle(x)
    assert settled["solver.gaps"][0] == "fill"
    assert "120 cells; 50.0%" in settled["solver.gaps"][1]
    assert model.settle(x) == {}
    scattered = torch.rand(150, 3, generator=torch.Generator().manual_seed(0)).double()
    assert "hardly a grid" in grid_problems.pair()[0].settle(scattered)["solver.gaps"][1]
    single, _ = grid_problems.pair(tolerance=1e-6)
    settled = single.float().settle(x.float())
    assert settled["solver.tolerance"] == (1e-4, settled["solver.tolerance"][1])
    assert "do not reach 1e-06" in settled["solver.tolerance"][1]
    assert single.options.tolerance == 1e-4
    assert single.settle(x.float()) == {}
    many = (2000, 10**6)
    assert choose_variance(VarianceOptions(), "fill", 65, *many) == "sampled"
    assert choose_variance(VarianceOptions(), "ignore", 64, *many) == "ignore"
    assert choose_variance(VarianceOptions(), "fill", 10**6, 1500, 10**6) == "dense"
    assert choose_variance(VarianceOptions(), "fill", 10**6, 10**6, 9) == "dense"
    assert choose_variance(VarianceOptions("sampled"), "full", 1000, *many) == "full"


def test_samples_are_as_many_as_the_budget_holds():
    _, x, _ = grid_problems.draw(0.5)
    budget = (25 + 8) * 8 * 120
    model, _ = grid_problems.pair(variance="sampled", memory_budget=budget)
    count, reason = model.settle(x)["variance_samples"]
    assert count == model.variance.samples == 8
    assert "200 vectors over 120 cells" in reason
    assert "50%" in reason
    assert f"memory_budget={budget} may be held" in reason
    assert "variance_samples" not in grid_problems.pair(variance="fill")[0].settle(x)


def test_invalid_setups_are_refused():
    _, x, y = grid_problems.draw()
    model, _ = grid_problems.pair()
    with pytest.raises(DataError, match="not finite"):
        model.condition(x, torch.full_like(y, torch.nan))
    with pytest.raises(ShapeError, match=r"\(t, 3\)"):
        model.condition(x, y).predict(x[:, :2])
    with pytest.raises(ConfigError, match="does not factor"):
        grid_problems.pair(kernel=Matern32(3))[0].settle(x)
    shared = grid_problems.parts()
    with pytest.raises(ConfigError, match="likelihood=Gaussian"):
        GridGP(**(shared | {"likelihood": StudentT()}))
    with pytest.raises(ConfigError, match="variance_samples=1"):
        GridGP(**shared, variance_samples=1)
    with pytest.raises(ConfigError, match=r"variance_error=0\.0 must be positive"):
        GridGP(**shared, variance_error=0.0)
    with pytest.raises(ConfigError, match="expected one of auto"):
        GridGP(**shared, variance="exact")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu():
    whole, x, y = grid_problems.draw()
    model, _ = grid_problems.pair()
    want = model.condition(x, y).predict(whole)
    found = model.cuda().condition(x.cuda(), y.cuda()).predict(whole.cuda())
    torch.testing.assert_close(found.mean.cpu(), want.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.variance.cpu(), want.variance, rtol=1e-6, atol=1e-8)


def test_dense_variances_in_float32_equal_float64_inside_a_block_of_gaps():
    """Rounding of covariances in float32 would change the smallest ones by half of themselves."""
    axis = torch.arange(40.0) / 40
    whole = torch.cartesian_prod(axis, axis)
    block = ((whole >= 0.3) & (whole < 0.7)).all(1)
    x, at = whole[~block], whole[block]
    options = {"variance": "dense", "tolerance": 1e-4}
    model, exact = grid_problems.pair(2, 1e-4, RBF(lengthscale=0.2), **options)
    found = model.float().condition(x, x.sum(1).sin()).predict(at).variance
    want = exact.double().condition(x.double(), x.sum(1).sin().double()).predict(at.double())
    torch.testing.assert_close(found.double(), want.variance, rtol=1e-6, atol=0)


@pytest.mark.parametrize("gaps", ["full", "ignore"])
def test_prior_functions_in_float32_follow_the_data_under_a_rough_kernel(gaps):
    """Their truncated eigenvalues carry a hundred times the variance that the data leave."""
    axis = torch.arange(50.0) / 50
    x = torch.cartesian_prod(axis, axis)
    kernel = Product([Matern12(lengthscale=0.2, active_dims=[i]) for i in range(2)])
    options = {"gaps": gaps, "variance": "sampled", "variance_samples": 32, "tolerance": 1e-4}
    model = grid_problems.pair(2, 1e-4 if gaps == "full" else 1e-2, kernel, **options)[0].float()
    if gaps == "full":
        posterior = model.condition(x, x.sum(1).sin())
        want = posterior.predict(x)
        paths = posterior.sample_paths(20, generator=torch.Generator().manual_seed(0))(x)
        found = (paths - want.mean).square().mean()
    else:
        seen = torch.rand(len(x), generator=torch.Generator().manual_seed(1)) < 0.5
        found = model.condition(x[seen], x[seen].sum(1).sin()).predict(x[~seen]).variance.mean()
        wide = model.double().condition(x[seen].double(), x[seen].sum(1).sin().double())
        want = wide.predict(x[~seen].double())
    assert abs(float(found / want.variance.mean()) - 1.0) < 0.15


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_dense_variances_ask_for_memory_before_training(share, monkeypatch):
    monkeypatch.setattr(grid_system, "DENSE_POINTS", 0)  # over the gaps if these are fewer
    _, x, _ = grid_problems.draw(share, (12, 12))
    model, _ = grid_problems.pair(2, variance="dense")
    limits = [(10**6, "all is free"), (50_000, "little is free")]
    monkeypatch.setattr("gpx.linalg.memory.allowed_memory", lambda *_: limits[-1])
    monkeypatch.setattr("gpx.linalg.memory.ASKED_FROM", 0)
    with pytest.raises(ConfigError, match="variance=dense factorises"):
        model.settle(x)
    limits.pop()
    model.settle(x)
