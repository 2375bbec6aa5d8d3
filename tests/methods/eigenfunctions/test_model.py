"""GRIEF: posterior against dense algebra, start, rounds, checkpoints."""

import io
import math

import pytest
import torch

from gpx.bases import GridOptions
from gpx.bases import sufficient_statistics as sums_module
from gpx.bases.grid_eigenfunctions.data_pass import feature_sums
from gpx.bases.grid_eigenfunctions.search import best_scales
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Linear, Zero
from gpx.methods.eigenfunctions.trial import set_scales
from gpx.models import GRIEF
from gpx.objectives import EigenfunctionEvidence

EVIDENCE = EigenfunctionEvidence()


def problem(
    seed=0, n=80, p=30, dtype=torch.float64, noise_first=False, mean=None, scale=1.4, **options
):
    torch.manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, dtype=torch.float64)
    model = GRIEF(
        kernel=RBF(ard_num_dims=3, lengthscale=[1.0, 1.5, 2.0], outputscale=scale),
        mean=mean or Linear(3, bias=0.3),
        likelihood=Gaussian(0.07),
        num_inputs=3,
        num_eigenfunctions=p,
        grid=GridOptions(points_per_dim=6),
        noise_first=noise_first,
        **options,
    ).to(dtype)
    x, y = x.to(dtype), y.to(dtype)
    model.initialise(x, y, generator=torch.Generator())
    return model, x, y


def dense_posterior(model, x, y, at):
    """Function space: the Gaussian process of the approximate kernel, by n x n algebra."""
    train, test = model.basis(x), model.basis(at)
    prior = test.square().sum(1)
    noise = model.likelihood.noise_variance.expand(len(x))
    if model.correction:
        noise = noise + model.kernel.diagonal(x) - train.square().sum(1)
        prior = model.kernel.diagonal(at)
    cross = test @ train.mT
    solve = torch.linalg.solve(train @ train.mT + torch.diag(noise), cross.mT)
    mean = model.mean(at) + solve.mT @ (y - model.mean(x))
    return mean, prior - (cross * solve.mT).sum(1)


OPTIONS = {"plain": {}, "correction": {"correction": True}}


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
@pytest.mark.parametrize("name", OPTIONS)
def test_posterior_equals_dense_algebra(name, dtype, tolerance, monkeypatch):
    monkeypatch.setitem(sums_module.BLOCK_BYTES, "cpu", 7 * 30 * 8)
    model, x, y = problem(dtype=dtype, **OPTIONS[name])
    at = torch.randn(17, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, variance = model.condition(x, y).predict(at.to(dtype))
    assert mean.dtype == variance.dtype == dtype
    want_mean, want_variance = dense_posterior(model.double(), x.double(), y.double(), at)
    torch.testing.assert_close(mean.double(), want_mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(variance.double(), want_variance, rtol=tolerance, atol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize("name", OPTIONS)
def test_posterior_survives_a_safe_checkpoint_without_the_training_data(name):
    model, x, y = problem(**OPTIONS[name])
    posterior = model.condition(x, y)
    want = posterior.predict(x[:7] + 0.3)
    stream = io.BytesIO()
    torch.save(posterior.state_dict(), stream)
    stream.seek(0)
    fresh = GRIEF(
        kernel=RBF(ard_num_dims=3), mean=Linear(3), likelihood=Gaussian(), num_inputs=3,
        **OPTIONS[name],
    ).double()  # fmt: skip
    rebuilt = fresh.new_posterior().double()
    rebuilt.load_state_dict(torch.load(stream, weights_only=True))
    for parameter in (*model.parameters(), *fresh.parameters()):
        parameter.add_(0.5)
    got = rebuilt.predict(x[:7] + 0.3)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert len(x) not in {size for v in rebuilt.state_dict().values() for size in v.shape}
    assert rebuilt.facts() == posterior.facts() == model.facts()


@torch.no_grad()
def test_sample_paths_have_the_posterior_moments():
    model, x, y = problem()
    posterior = model.condition(x, y)
    at = x[:5] * 0.5
    paths = posterior.sample_paths(20_000, generator=torch.Generator().manual_seed(0))
    draws = paths(at)
    mean, variance = posterior.predict(at)
    error = (variance / 20_000).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * error).all()
    torch.testing.assert_close(draws.var(0), variance, rtol=0.08, atol=0)
    torch.testing.assert_close(paths(at[2:3]), draws[:, 2:3])
    assert paths(at[:0]).shape == (20_000, 0)


@torch.no_grad()
def test_noise_first_finds_the_best_noise_and_outputscale():
    before, x, y = problem(mean=Zero(), p=5)
    after, _, _ = problem(mean=Zero(), p=5, noise_first=True)
    best = EVIDENCE.evidence(after, x, y).value
    assert best > EVIDENCE.evidence(before, x, y).value + 1.0
    noise, scale = after.likelihood.noise_variance.clone(), after.kernel.outputscale.clone()
    for a, b in ((1.3, 1.0), (0.7, 1.0), (1.0, 1.3), (1.0, 0.7)):
        after.likelihood.noise_variance, after.kernel.outputscale = a * noise, b * scale
        assert EVIDENCE.evidence(after, x, y).value < best


@torch.no_grad()
def test_best_scales_equal_a_search_over_the_evidence():
    model, x, y = problem(mean=Zero(), p=8)
    sums = feature_sums(model.basis, model.basis.modes(), x, y)
    scale, noise = best_scales(sums)
    unit = model.basis(x) / model.kernel.outputscale.sqrt()
    grid = torch.logspace(-3, 3, 16, dtype=torch.float64)

    def value(s, v):
        matrix = s * unit @ unit.mT + v * torch.eye(len(x), dtype=torch.float64)
        return float(-0.5 * (torch.logdet(matrix) + y @ torch.linalg.solve(matrix, y)))

    assert value(scale, noise) > max(value(s, v) for s in grid for v in grid) - 0.05
    scale, noise = best_scales(sums, torch.tensor(0.02))
    assert float(scale) == pytest.approx(0.02)
    assert value(scale, noise) > max(value(scale, noise * v) for v in (0.8, 0.9, 1.1, 1.2))
    known = torch.tensor(0.3, dtype=torch.float64)
    scale, noise = best_scales(sums, noise=known)
    assert float(noise) == pytest.approx(0.3)
    assert value(scale, noise) > max(value(scale * s, noise) for s in (0.8, 0.9, 1.1, 1.2))


@torch.no_grad()
@pytest.mark.parametrize("scale", [None, 1.4])
def test_the_first_noise_is_that_of_the_scale_there_is_and_above_its_floor(scale):
    model, x, y = problem(mean=Zero(), p=8, scale=scale)
    y = 5.0 * y
    set_scales(model.basis, model.likelihood, x, y)
    noise = model.likelihood.noise_variance.clone()
    best = EVIDENCE.evidence(model, x, y).value
    for factor in (0.9, 1.1):
        model.likelihood.noise_variance = factor * noise
        assert EVIDENCE.evidence(model, x, y).value < best
    floored = Gaussian(100.0, noise_floor=2.0 * float(noise)).double()
    set_scales(model.basis, floored, x, y)
    assert float(floored.noise_variance) == pytest.approx(2.1 * float(noise))


def test_a_tight_fit_ends_at_the_exact_process():
    # smooth kernel, all eigenfunctions of a fine grid: the approximation is exact to rounding
    torch.manual_seed(0)
    x = torch.rand(40, 1, dtype=torch.float64)
    y = (6 * x[:, 0]).sin()
    kernel = RBF(lengthscale=0.3).double()
    model = GRIEF(
        kernel=kernel,
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=1,
        grid=GridOptions(points_per_dim=30),
        noise_first=False,
    ).double()
    model.initialise(x, y, generator=torch.Generator())
    with torch.no_grad():
        got = EVIDENCE.evidence(model, x, y).value
        matrix = kernel.evaluate(x, x) + model.likelihood.noise_variance * torch.eye(40)
        want = -0.5 * (
            torch.logdet(matrix) + y @ torch.linalg.solve(matrix, y) + 40 * math.log(2 * math.pi)
        )
    torch.testing.assert_close(got, want, rtol=1e-7, atol=0)


def test_rounds_select_again_and_undo_worse_selections():
    model, x, y = problem(reselect=2, p=10)
    generator = torch.Generator()
    start = model.basis.index.clone()
    assert model.num_rounds == 3
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([2.0, 0.4, 1.0], dtype=torch.float64)
    kept = model.basis.index.clone()
    assert torch.equal(kept, start)  # fixed while the kernel moves
    assert model.next_round(x, y, 1.0, generator=generator)
    assert "eigenfunctions are new" in model.note
    assert not torch.equal(model.basis.index, start)
    saved = model.rounds_state()
    other, _, _ = problem(reselect=2, p=10)
    other.load_state_dict(model.state_dict())
    other.load_rounds_state(saved)
    for m in (model, other):
        assert not m.next_round(x, y, 2.0, generator=generator)  # worse: undone, and the last
        assert torch.equal(m.basis.index, start)
        # what is left of the evaluations ends without another choice that nobody would train
        assert not m.next_round(x, y, 0.5, generator=generator)
        assert torch.equal(m.basis.index, start)


def test_time_that_ends_within_a_round_keeps_the_better_selection():
    model, x, y = problem(reselect=1, p=10)
    model.keep_best(1.0)  # nothing to go back to
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([2.0, 0.4, 1.0], dtype=torch.float64)
    before = model.basis.index.clone()
    assert model.next_round(x, y, 1.0, generator=torch.Generator())
    selected = model.basis.index.clone()
    assert not torch.equal(selected, before)
    model.keep_best(0.9)
    assert torch.equal(model.basis.index, selected)
    model.keep_best(1.1)
    assert torch.equal(model.basis.index, before)


def test_a_second_run_of_a_model_knows_no_rounds_of_the_first():
    model, x, y = problem(reselect=1, p=10)
    draws = torch.Generator()
    model.next_round(x, y, -5.0, generator=draws)
    model.next_round(x, y, -6.0, generator=draws)
    model.initialise(x, y, generator=draws)
    start = model.basis.index.clone()
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([2.0, 0.4, 1.0], dtype=torch.float64)
    assert model.next_round(x, y, 1.0, generator=draws)
    assert not torch.equal(model.basis.index, start)


def test_model_state_survives_with_the_shapes_of_the_data():
    for options in OPTIONS.values():
        model, x, y = problem(**options)
        fresh = GRIEF(
            kernel=RBF(ard_num_dims=3),
            mean=Linear(3),
            likelihood=Gaussian(),
            num_inputs=3,
            **options,
        ).double()
        fresh.load_state_dict(model.state_dict())
        with torch.no_grad():
            got, want = EVIDENCE.evidence(fresh, x, y).value, EVIDENCE.evidence(model, x, y).value
        assert got == want


def test_invalid_setups_are_refused():
    common = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(), "num_inputs": 2}
    with pytest.raises(ConfigError, match="reselect counts rounds"):
        GRIEF(**common, reselect=-1)
    with pytest.raises(ConfigError, match=r"GRIEF is exact .* the Gaussian likelihood, got Ber"):
        GRIEF(**common | {"likelihood": Bernoulli()})


def test_more_functions_than_memory_holds_are_refused_before_the_run(monkeypatch):

    model, x, _ = problem(p=30)
    assert model.settle(x) == {}
    monkeypatch.setattr("gpx.linalg.memory.ASKED_FROM", 0)
    monkeypatch.setattr("gpx.linalg.memory.available_memory", lambda device: 8 * 8 * 20**2)
    with pytest.raises(ConfigError, match=r"num_eigenfunctions=30, .* needs .*use at most 20"):
        model.settle(x)


def test_best_scales_do_not_prefer_what_is_rounding():
    one = torch.tensor([1e8], dtype=torch.float64)
    sums = SufficientStatistics(one[:, None], one, one[0], 10**8)  # y = phi, without noise
    scale, noise = best_scales(sums)
    assert float(scale) == pytest.approx(1e-8, rel=0.1)
    assert 0.0 < float(noise) < 1e-12
    nothing = SufficientStatistics(one[:, None], 0.0 * one, 0.0 * one[0], 10**8)
    assert bool(torch.stack(best_scales(nothing)).isfinite().all())
