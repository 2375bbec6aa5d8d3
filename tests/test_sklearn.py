"""The estimators keep scikit-learn's contract and give gpx's predictions."""

import builtins
import importlib
import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_regressor_multioutput,
    check_supervised_y_2d,
    parametrize_with_checks,
)

import gpx
from gpx.errors import ConfigError, DataError, NotAvailable
from gpx.kernels import Matern32, Periodic
from gpx.likelihoods import Bernoulli
from gpx.sklearn import GPXClassifier, GPXRegressor

FROM_A_SUBSET = ("trainer.max_steps=2", "init.max_evaluations=15", "trainer.device=cpu")
QUICK = ("trainer.max_steps=10", "init=constants", "trainer.device=cpu")


@parametrize_with_checks(
    [
        GPXRegressor("exact", options=QUICK),
        # lengthscales at which 30 standardised inputs have correlations above rounding
        GPXClassifier("laplace", options=(*QUICK, "trainer.max_steps=3", "kernel.lengthscale=5")),
    ]
)
def test_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def problem():
    generator = np.random.default_rng(0)
    x = generator.uniform(-3.0, 3.0, (60, 2))
    return x, 100 + 10 * np.sin(x[:, 0]) + x[:, 1] + generator.normal(size=60)


@pytest.fixture(scope="module")
def regressor(problem):
    return GPXRegressor("exact", random_state=0).fit(*problem)


def test_predictions_are_those_of_the_peer_at_the_same_hyperparameters(problem, regressor):
    x, y = problem
    posterior = regressor.predictor_.posterior
    kernel, noise = posterior.kernel, posterior.likelihood.noise_variance.item()
    scaler = regressor.predictor_.scaler
    inputs, offset = scaler.transform_inputs(np_tensor(x)).numpy(), y.mean()
    peer = GaussianProcessRegressor(
        ConstantKernel(kernel.outputscale.item()) * RBF(kernel.lengthscale.numpy())
        + WhiteKernel(noise),
        optimizer=None,
    )
    constant = posterior.mean(np_tensor(inputs)).numpy()
    peer.fit(inputs, (y - offset) / y.std() - constant)
    mean, covariance = peer.predict(inputs[:9], return_cov=True)
    found, cov = regressor.predict(x[:9], return_cov=True)
    np.testing.assert_allclose(found, offset + y.std() * (mean + constant[:9]), rtol=1e-6)
    np.testing.assert_allclose(cov, y.var() * covariance, rtol=1e-4, atol=1e-5 * y.var())
    np.testing.assert_array_equal(regressor.predict(x[:9]), found)
    mean, std = regressor.predict(x[:9], return_std=True)
    np.testing.assert_allclose(std**2, cov.diagonal(), rtol=1e-6)
    with pytest.raises(ValueError, match="choose one"):
        regressor.predict(x, return_std=True, return_cov=True)


def np_tensor(values):
    import torch

    return torch.from_numpy(np.ascontiguousarray(values))


def test_defaults_are_those_of_fit(problem):
    """Method and kernel are chosen for the rows."""
    x, y = problem
    model = GPXRegressor(options=QUICK, random_state=0).fit(x, y)
    seed = np.random.RandomState(0).randint(2**31 - 1)
    plain = gpx.fit(x, y, *QUICK, "data.test_fraction=0", f"seed={seed}", quiet=True, keep=False)
    assert plain.metrics["model.choice"].startswith("approx=exact, chosen by approx=auto")
    assert plain.metrics["model.kernel_choice"].startswith("kernel=")
    np.testing.assert_array_equal(model.predict(x), plain.predict(x).mean)


def test_all_rows_are_trained_on_and_nothing_is_left(problem, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    model = GPXRegressor("exact", options=QUICK, random_state=0).fit(*problem)
    assert model.predictor_.posterior.inputs.shape == (60, 2)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_an_integer_makes_fits_repeatable(problem):
    x, y = problem
    options = (*QUICK, "trainer.max_steps=3", "trainer.batch_size=10", "approx.num_inducing=5")
    fits = [
        GPXRegressor("svgp", options=options, random_state=seed).fit(x, y).predict(x)
        for seed in (3, 3, 4)
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.array_equal(fits[0], fits[2])


def test_samples(problem, regressor):
    x, _ = problem
    drawn = regressor.sample_y(x[:5], 2000)
    assert drawn.shape == (5, 2000)
    mean, std = regressor.predict(x[:5], return_std=True)
    # 2,000 draws of five targets: 4.5 standard errors (one false alarm in 3e4 runs; seed fixed)
    assert (np.abs(drawn.mean(1) - mean) < 4.5 * std / 2000**0.5).all()
    smooth = regressor.sample_y(x[:5], 2000, noise=False)
    assert (smooth.std(1) < drawn.std(1)).all()
    np.testing.assert_array_equal(regressor.sample_y(x[:5], 3, 7), regressor.sample_y(x[:5], 3, 7))


def test_samples_of_kernels_without_a_spectrum_have_the_joint_law(problem):
    x, y = problem
    model = GPXRegressor(kernel="rbf*linear + constant", options=QUICK).fit(x, y)
    for noise in (True, False):
        drawn = model.sample_y(x[:5], 4000, noise=noise)
        mean, covariance = model.predict(x[:5], return_cov=True)
        if not noise:
            covariance = model.predictor_.covariance(x[:5])
        # 4,000 draws: 4.5 standard errors of 5 means and 25 covariances (2e-4 in all; seed fixed)
        deviation = covariance.diagonal() ** 0.5
        assert (np.abs(drawn.mean(1) - mean) < 4.5 * deviation / 4000**0.5).all()
        error = 4.5 * (2.0 / 4000) ** 0.5 * np.outer(deviation, deviation)
        assert (np.abs(np.cov(drawn) - covariance) < error).all()
    np.testing.assert_array_equal(model.sample_y(x[:5], 3, 7), model.sample_y(x[:5], 3, 7))
    many = np.zeros((5001, 2))
    with pytest.raises(ConfigError, match="no such spectral representation"):
        model.sample_y(many)


def test_weights_are_repetitions(problem):
    x, y = problem
    weight = np.random.default_rng(1).integers(0, 3, 60)
    weighted = GPXRegressor("exact", options=QUICK).fit(x, y, sample_weight=weight)
    repeated = GPXRegressor("exact", options=QUICK).fit(
        np.repeat(x, weight, 0), np.repeat(y, weight)
    )
    np.testing.assert_array_equal(weighted.predict(x), repeated.predict(x))
    labels = y > 100
    weighted = GPXClassifier(options=FROM_A_SUBSET).fit(x, labels, sample_weight=weight)
    repeated = GPXClassifier(options=FROM_A_SUBSET)
    repeated.fit(np.repeat(x, weight, 0), np.repeat(labels, weight))
    np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), rtol=1e-9)


def test_noise_and_precisions_of_the_rows(problem):
    x, y = problem
    noise = np.where(np.arange(60) < 30, 1e-6, 400.0)
    model = GPXRegressor("exact", options=QUICK).fit(x, y, noise=noise)
    plain = GPXRegressor("exact", options=QUICK).fit(x, y)
    error = lambda m, rows: np.abs(m.predict(x[rows]) - y[rows]).mean()  # noqa: E731
    known, unknown = slice(0, 30), slice(30, 60)
    assert error(model, known) < error(plain, known)
    assert error(model, unknown) > error(plain, unknown)
    precise = GPXRegressor("exact", options=QUICK).fit(x, y, weights=1.0 / (1.0 + noise))
    assert error(precise, known) < error(precise, unknown)


def test_mistakes_in_weights(problem):
    x, y = problem
    weight = np.ones(60)
    with pytest.raises(ValueError, match=r"sample_weight must be whole numbers \(how often"):
        GPXRegressor().fit(x, y, sample_weight=0.5 * weight)
    with pytest.raises(ValueError, match="either sample_weight, or noise and weights"):
        GPXRegressor().fit(x, y, sample_weight=weight, noise=weight)
    with pytest.raises(ValueError, match="sample_weight leaves a single row"):
        GPXClassifier().fit(x, y > 100, sample_weight=np.eye(60)[0])
    with pytest.raises(ConfigError, match="has one noise variance for all rows"):
        GPXRegressor("qsgp", options=FROM_A_SUBSET).fit(x, y, noise=weight)


def test_pipeline_cross_validation_and_grid_search(problem):
    x, y = problem
    model = make_pipeline(StandardScaler(), GPXRegressor("exact", options=QUICK, random_state=0))
    assert cross_val_score(model, x, y, cv=3).min() > 0.8
    search = GridSearchCV(
        GPXRegressor("exact", options=QUICK, random_state=0),
        {"kernel": ["linear", "rbf+linear"]},
        cv=2,
    )
    search.fit(x, y)
    assert search.best_params_ == {"kernel": "rbf+linear"}
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(x), search.predict(x))
    assert clone(search.best_estimator_).get_params()["kernel"] == "rbf+linear"


@pytest.mark.parametrize("names", [("hot", "cold"), ("b", "a", "c")])
def test_classes_have_names(problem, names):
    x, _ = problem
    place = (x[:, 0] > 0).astype(int) + (x[:, 0] > 1.5) * (len(names) > 2)
    y = np.array(names)[place]
    model = GPXClassifier(options=QUICK, random_state=0).fit(x, y)
    assert list(model.classes_) == sorted(names)
    assert model.score(x, y) > 0.9
    probability = model.predict_proba(x)
    np.testing.assert_allclose(probability.sum(1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(model.classes_[probability.argmax(1)], model.predict(x))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), probability)


def test_mistakes(problem):
    x, y = problem
    with pytest.raises(ConfigError, match="is not a list; give a list of options"):
        GPXRegressor(options="seed=1").fit(x, y)
    with pytest.raises(ConfigError, match="options=None is not a list"):
        GPXRegressor(options=None).fit(x, y)
    with pytest.raises(ConfigError, match="there is no kernel=rbff; did you mean rbf"):
        GPXRegressor(kernel="rbff").fit(x, y)
    with pytest.raises(ValueError, match=r"only one class \(1.0\)"):
        GPXClassifier().fit(x, np.ones(60))
    few = {"approx": "svgp", "options": (*FROM_A_SUBSET, "approx.num_inducing=5")}
    with pytest.raises(
        ConfigError, match="likelihood=poisson models numbers and cannot be used with GPXClassifier"
    ):
        GPXClassifier(likelihood="poisson", **few).fit(x, y > 100)
    with pytest.raises(
        ConfigError,
        match="likelihood=bernoulli models classes and cannot be used with GPXRegressor",
    ):
        GPXRegressor(likelihood="bernoulli", **few).fit(x, (y > 100).astype(float))
    model = GPXRegressor("qsgp", options=(*QUICK, "approx.num_basis=40")).fit(x, y)
    with pytest.raises(NotAvailable, match="has no joint covariance"):
        model.predict(x, return_cov=True)


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "sklearn":
            raise ImportError("No module named 'sklearn'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "gpx.sklearn")
    monkeypatch.setattr(gpx, "sklearn", gpx.sklearn)  # put back what a new import would replace
    with pytest.raises(ImportError, match=r"pip install 'gpx-torch\[sklearn\]'"):
        importlib.import_module("gpx.sklearn")


def test_a_kernel_may_be_a_module():
    x = np.linspace(0.0, 3.0, 40)[:, None]
    options = {"options": ["trainer.max_steps=3"], "random_state": 0}
    y = np.sin(6.0 * x[:, 0])
    text = GPXRegressor(kernel="matern32 + periodic(period=0.7)", **options).fit(x, y)
    kernel = Matern32(1) + Periodic(1, period=0.7)
    module = clone(GPXRegressor(kernel=kernel, **options)).fit(x, y)
    np.testing.assert_array_equal(module.predict(x), text.predict(x))
    with pytest.raises(ConfigError, match="likelihood=Bernoulli models classes and cannot be used"):
        GPXRegressor("laplace", likelihood=Bernoulli(), **options).fit(
            x, (x[:, 0] > 1.0).astype(float)
        )


def test_ordered_texts_take_the_order_that_is_given(problem):
    x, _ = problem
    y = np.array(["low", "middle", "high"])[(x[:, 0] > -0.5).astype(int) + (x[:, 0] > 0.5)]
    with pytest.raises(DataError, match="whose order is not known"):
        GPXClassifier(likelihood="ordinal", options=QUICK).fit(x, y)
    options = (*QUICK, "likelihood.order=[low,middle,high]")
    model = GPXClassifier(likelihood="ordinal", options=options, random_state=0).fit(x, y)
    assert model.predictor_.labels == ("low", "middle", "high")
    assert list(model.classes_) == ["high", "low", "middle"]
    assert model.score(x, y) > 0.8


def test_a_classifier_is_sure_where_inputs_separate_the_classes():
    """Laplace's probabilities stay near a half there: 0.5 nats."""
    generator = np.random.default_rng(0)
    radius = np.repeat([1.0, 2.0], 100) + 0.1 * generator.normal(size=200)
    angle = generator.uniform(0.0, 2.0 * np.pi, 200)
    x = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    y, order = np.repeat(["in", "out"], 100), generator.permutation(200)
    model = GPXClassifier().fit(x[order[:100]], y[order[:100]])
    new = order[100:]
    probability = model.predict_proba(x[new])[np.arange(100), (y[new] == "out").astype(int)]
    assert -np.log(probability).mean() < 0.1


def test_several_targets_are_modelled_each_by_itself(problem):
    x, y = problem
    both = np.column_stack([y, 3.0 - 2.0 * x[:, 1] ** 2])
    joint = GPXRegressor("independent", options=QUICK, random_state=0).fit(x, both)
    mean, std = joint.predict(x[:7], return_std=True)
    swapped = GPXRegressor("independent", options=QUICK, random_state=0).fit(x, both[:, ::-1])
    for each, other in zip((mean, std), swapped.predict(x[:7], return_std=True), strict=True):
        np.testing.assert_allclose(each, other[:, ::-1], rtol=1e-6)
    assert joint.score(x, both) > 0.9
    assert joint.sample_y(x[:4], 3).shape == (4, 2, 3)
    twice = GPXRegressor("independent", options=QUICK, random_state=0).fit(
        x, both, sample_weight=np.full(60, 2)
    )
    assert twice.predict(x[:7]).shape == (7, 2)
    noisy = GPXRegressor("independent", options=QUICK, random_state=0).fit(
        x, both, noise=np.full((60, 2), 0.1)
    )
    assert noisy.score(x, both) > 0.9
    with pytest.raises(ConfigError, match="one plain target"):
        joint.predict(x[:7], return_cov=True)


@pytest.mark.parametrize("check", [check_regressor_multioutput, check_supervised_y_2d])
def test_contract_of_several_targets(check):
    check("GPXRegressor", GPXRegressor(kernel="rbf", options=QUICK))


def test_a_method_of_one_target_says_which_take_several(problem):
    x, y = problem
    with pytest.raises(ConfigError, match="or use approx=independent"):
        GPXRegressor("exact", options=QUICK).fit(x, np.column_stack([y, y]))
    assert GPXRegressor("exact").__sklearn_tags__().target_tags.multi_output is False
