"""Batches of Thompson sampling in the data's own units, and an optimisation with them."""

import numpy as np
import pytest
import torch
from optimisation_problems import hartmann6, random_search_reaches

import gpx
from gpx.errors import ConfigError, ShapeError
from gpx.sampling.maxima import maxima
from gpx.sampling.seeds import stream
from gpx.thompson import thompson_batch

QUICK = (
    *("approx=exact", "kernel=matern52", "data.test_fraction=0", "trainer.tensorboard=false"),
    *("trainer.figures=false", "trainer.baselines=false", "trainer.device=cpu"),
)
BOUNDS = [(10.0, 20.0), (-3.0, -1.0)]


def trained(x, y, *options):
    return gpx.fit(x, y, *QUICK, *options, quiet=True, keep=False)


@pytest.fixture(scope="module")
def fitted():
    x = np.random.default_rng(0).random((30, 2)) * [10.0, 2.0] + [10.0, -3.0]
    return trained(x, np.sin(x[:, 0]) * x[:, 1] + 5.0)


def test_every_point_is_the_best_of_its_function(fitted):
    found = thompson_batch(fitted, BOUNDS, 6, seed=3)
    assert found.shape == (6, 2)
    assert (found >= [10.0, -3.0]).all()
    assert (found <= [20.0, -1.0]).all()
    axes = np.meshgrid(np.linspace(10, 20, 81), np.linspace(-3, -1, 81))
    grid = np.stack([a.ravel() for a in axes], 1)
    # the functions that the seed draws, in the data's own units
    draws = stream(3, "sampled functions")
    functions = fitted.model.posterior.sample_paths(6, generator=draws)
    at = lambda x: functions(fitted.model.scaler.transform_inputs(torch.tensor(x))).numpy()  # noqa: E731
    assert (np.diagonal(at(found)) >= at(grid).max(1) - 1e-9).all()
    lowest = thompson_batch(fitted, BOUNDS, 6, maximise=False, seed=3)
    assert (np.diagonal(at(lowest)) <= at(grid).min(1) + 1e-9).all()
    np.testing.assert_array_equal(thompson_batch(fitted, BOUNDS, 6, seed=3), found)


def test_bayesian_optimisation_beats_random_search():
    """Twenty random points and five batches of ten: no better than as many random points once in a
    thousand at most."""
    x = np.random.default_rng(0).random((20, 6))
    y = hartmann6(x)
    for step in range(5):
        more = thompson_batch(trained(x, y), [(0.0, 1.0)] * 6, 10, seed=step)
        x, y = np.concatenate([x, more]), np.concatenate([y, hartmann6(more)])
    assert random_search_reaches(y.max(), len(y)) < 1e-3


@pytest.mark.parametrize("maximise", [True, False])
def test_the_best_targets_are_candidates_whatever_the_mean_function(maximise, monkeypatch):
    """Not those that lie farthest above it."""
    x = np.linspace(0.0, 1.0, 20)[:, None]
    y = 100.0 * x[:, 0] + np.where(x[:, 0] < 0.3, 3.0, 0.0)
    model = trained(x, y, "mean=linear")
    asked = []

    def spied(*arguments, also, **options):
        asked.append(model.model.scaler.original_inputs(also)[:, 0].sort().values.numpy())
        return maxima(*arguments, also=also, **options)

    monkeypatch.setattr("gpx.thompson.maxima", spied)
    thompson_batch(model, [(0.0, 1.0)], maximise=maximise, candidates=4)
    best = np.argsort(y)[-4:] if maximise else np.argsort(y)[:4]
    np.testing.assert_allclose(asked[0], x[np.sort(best), 0])


def test_mistakes(fitted):
    with pytest.raises(ShapeError, match=r"bounds must be 2 pairs .* got an array of shape \(1, 2"):
        thompson_batch(fitted, [(0.0, 1.0)])
    with pytest.raises(ShapeError, match=r"a lower end below the upper .* \[\[0.0, 0.0\], \[0"):
        thompson_batch(fitted, [(0.0, 0.0), (0.0, 1.0)])
    for name in ("num", "candidates", "starts"):
        with pytest.raises(ConfigError, match=f"{name}=0 must be at least 1"):
            thompson_batch(fitted, BOUNDS, **{name: 0})
    x = np.random.default_rng(0).random((20, 1))
    classes = gpx.fit(
        x,
        x[:, 0] > 0.5,
        *QUICK[2:],
        "approx=laplace",
        "trainer.max_steps=1",
        quiet=True,
        keep=False,
    )
    with pytest.raises(ConfigError, match="is a class or a count"):
        thompson_batch(classes, [(0.0, 1.0)])
    with pytest.raises(ConfigError, match="no such spectral representation"):
        thompson_batch(trained(x, x[:, 0], "kernel=polynomial"), [(0.0, 1.0)])


def test_the_second_latent_of_the_noise_is_not_maximised():
    x = np.random.default_rng(0).random((40, 1))
    y = 3.0 * x[:, 0] + 0.1 * np.random.default_rng(1).standard_normal(40)
    options = ("likelihood=heteroscedastic", "trainer.max_steps=20", "approx.num_inducing=8")
    model = gpx.fit(x, y, "approx=svgp", *QUICK[1:], *options, quiet=True, keep=False)
    found = thompson_batch(model, [(0.0, 1.0)], 3, candidates=64, steps=20)
    draws = stream(0, "sampled functions")
    functions = model.model.posterior.sample_paths(3, generator=draws)
    at = lambda x: functions(model.model.placed(model.model.scaler.transform_inputs(x)))[..., 0]  # noqa: E731
    line = at(torch.linspace(0.0, 1.0, 101, dtype=torch.float64)[:, None])
    best = at(torch.tensor(found)).diagonal()
    assert (best >= line.max(1).values - 1e-3).all()
