"""Rows added to a trained model are rows that it knew all along, at the same hyperparameters."""

import pickle

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import DataError, GPXError, NotAvailable, ShapeError

QUIET = (
    *("trainer.figures=false", "trainer.tensorboard=false", "trainer.device=cpu"),
    *("trainer.baselines=false", "init=constants", "data.test_fraction=0"),
)
QUICK = (*QUIET, "kernel=rbf", "trainer.max_steps=3")
METHODS = {
    "exact": ("approx=exact",),
    "iterative": ("approx=exact", "approx.solver=iterative", "trainer.dtype=float64"),
    "sgpr": ("approx=sgpr", "approx.num_inducing=12"),
    "svgp": ("approx=svgp", "approx.num_inducing=12"),
    "fitc": ("approx=fitc", "approx.num_inducing=12"),
    "vecchia": ("approx=vecchia", "approx.prediction_neighbours=12"),
    "transductive": ("approx=transductive", "approx.num_neighbours=12"),
}


def problem(n=40, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3.0, 5.0, (n, 2))
    y = 50.0 + 9.0 * np.sin(x[:, 0]) * x[:, 1] + generator.normal(size=n)
    return x, y


X, Y = problem()
MORE, TARGETS = problem(7, seed=1)
NEW, _ = problem(11, seed=2)


def trained(name, *options):
    return gpx.fit(X, Y, *QUICK, *METHODS[name], *options, quiet=True, keep=False)


def standardised(model, x, y):
    scaler = model.scaler
    return (
        scaler.transform_inputs(torch.tensor(x)),
        scaler.transform_targets(torch.tensor(y)),
    )


def test_an_exact_process_is_that_of_all_rows_in_dense_numbers():
    model = trained("exact").model
    found = model.condition(MORE, TARGETS)
    x, y = standardised(model, np.concatenate([X, MORE]), np.concatenate([Y, TARGETS]))
    new, _ = standardised(model, NEW, np.zeros(len(NEW)))
    kernel, noise = model.posterior.kernel, model.likelihood.noise_variance.detach()
    with torch.no_grad():
        k = kernel.evaluate(x) + noise * torch.eye(len(x)).double()
        cross, mean = kernel.evaluate(new, x), model.posterior.mean(x)
        want = model.posterior.mean(new) + cross @ torch.linalg.solve(k, y - mean)
        rest = kernel.evaluate(new) - cross @ torch.linalg.solve(k, cross.mT)
    scale = model.scaler.target_scale
    latent = found.latent(NEW)
    np.testing.assert_allclose(latent.mean, model.scaler.original_mean(want), rtol=1e-10)
    np.testing.assert_allclose(latent.std, scale * rest.diagonal().sqrt(), rtol=1e-7)
    np.testing.assert_allclose(found.covariance(NEW), scale.square() * rest, atol=1e-8)
    # and one by one, in any order, is all at once
    each = model
    for row in reversed(range(len(MORE))):
        each = each.condition(MORE[row], TARGETS[row : row + 1])
    np.testing.assert_allclose(each.predict(NEW), found.predict(NEW), rtol=1e-9)


def test_a_number_is_the_target_of_a_single_row():
    model = trained("exact").model
    found, want = model.condition(MORE[0], TARGETS[0]), model.condition(MORE[:1], TARGETS[:1])
    np.testing.assert_array_equal(found.predict(NEW), want.predict(NEW))


def test_known_noise_of_the_rows_counts():
    model = trained("exact").model
    near = model.condition(MORE[:1], [200.0], noise=[1e-9]).latent(MORE[:1]).mean
    far = model.condition(MORE[:1], [200.0], noise=[1e12]).latent(MORE[:1]).mean
    np.testing.assert_allclose(far, model.latent(MORE[:1]).mean, rtol=1e-6)
    assert abs(near - far) > 1.0
    # of one row with variance v, noise s and a known variance in the target's own unit, squared
    scaler, known = model.scaler, 37.0
    x, y = standardised(model, MORE[:1], np.array([200.0]))
    before = model.posterior.predict(x)
    s, v = model.likelihood.noise_variance.detach(), before.variance
    gain = v / (v + s + known / scaler.target_scale.square())
    want = scaler.original_mean(before.mean + gain * (y - before.mean))
    found = model.condition(MORE[:1], [200.0], noise=[known]).latent(MORE[:1])
    np.testing.assert_allclose(found.mean, want, rtol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_rows_change_the_prediction_near_them_and_the_model_stays(name):
    fitted = trained(name)
    before = fitted.predict(NEW)
    spot = np.array([[0.0, 4.5]])
    variance = fitted.model.latent(spot).std ** 2
    surprise = fitted.predict(spot).mean + 30.0
    found = fitted.condition(np.repeat(spot, 50, 0), np.repeat(surprise, 50))
    np.testing.assert_array_equal(fitted.predict(NEW), before)
    # fifty repetitions are one with a fiftieth of the noise
    noise = float(fitted.model.likelihood.noise_variance.detach())
    noise *= float(fitted.model.scaler.target_scale) ** 2
    if name in ("vecchia", "transductive"):  # near rows alone are seen: the repetitions
        assert abs(found.latent(spot).mean - surprise) < 5.0
    else:
        want = fitted.latent(spot).mean + variance / (variance + noise / 50) * 30.0
        np.testing.assert_allclose(found.latent(spot).mean, want, rtol=1e-6)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(NEW), found.predict(NEW))


@pytest.mark.parametrize("name", ["exact", "sgpr", "svgp"])
def test_sampled_functions_have_the_law_of_the_prediction(name):
    model = trained(name).condition(MORE, TARGETS)
    want = model.latent(MORE)
    draws = model.sample(MORE, 4000, seed=1)
    # seven means of 4,000 draws: five standard errors, false alarms below 1e-5
    error = want.std / np.sqrt(4000)
    assert (np.abs(draws.mean(0) - want.mean) < 5.0 * error + 0.02 * want.std).all()
    np.testing.assert_allclose(draws.std(0), want.std, rtol=0.1)


def test_a_transformed_target_is_given_in_its_own_unit():
    x, y = X, np.exp(Y / 20.0)
    fitted = gpx.fit(
        x, y, *QUICK, "approx=exact", "data.target_transform=log", quiet=True, keep=False
    )
    spot, value = NEW[:1], 3.0 * fitted.latent(NEW[:1]).mean
    found = fitted.condition(np.repeat(spot, 400, 0), np.repeat(value, 400)).latent(spot)
    np.testing.assert_allclose(found.mean, value, rtol=0.05)
    with pytest.raises(DataError, match="targets lie outside the domain of the log transform"):
        fitted.condition(spot, [-1.0])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda f: f.condition(MORE, TARGETS[:3]), ShapeError, r"expected \(7,\)"),
        (lambda f: f.condition(MORE[:, :1], TARGETS), ShapeError, "1 columns|2 inputs|expected"),
        (lambda f: f.condition(MORE, TARGETS * np.nan), DataError, "targets: found nan"),
        (lambda f: f.condition(MORE, ["a"] * 7), GPXError, "targets"),
        (lambda f: f.condition(MORE[:0], TARGETS[:0]), GPXError, "none|0"),
        (lambda f: f.condition(MORE, TARGETS, noise=-TARGETS), ShapeError, "none of them negative"),
    ],
)
def test_mistakes_are_one_sentence(call, error, words):
    fitted = trained("exact")
    with pytest.raises(error, match=words) as raised:
        call(fitted)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("approx=qsgp", "approx.num_basis=50"), "takes no further rows without being trained"),
        (("approx=committee",), "takes no further rows without being trained again"),
        (("approx=exact", "calibrate=variance"), "this model has recalibration"),
        (("approx=svgp", "likelihood=student_t", "approx.num_inducing=9"), "a StudentT likelihood"),
    ],
)
def test_what_takes_no_rows_says_so(options, words):
    fitted = gpx.fit(X, Y, *QUICK, *options, quiet=True, keep=False)
    with pytest.raises(NotAvailable, match=words):
        fitted.condition(MORE, TARGETS)


def test_a_loaded_run_takes_rows(tmp_path):
    fitted = gpx.fit(X, Y, *QUICK, "approx=sgpr", "approx.num_inducing=9", folder=tmp_path)
    found = gpx.load(tmp_path).condition(MORE, TARGETS)
    np.testing.assert_allclose(
        found.predict(NEW), fitted.condition(MORE, TARGETS).predict(NEW), rtol=1e-9
    )
