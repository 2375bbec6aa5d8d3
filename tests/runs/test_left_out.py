"""Leave-one-out predictions in the data's own units, against a model without each row."""

import numpy as np
import pytest
import torch
from scipy import stats

import gpx
from gpx.data import Standardiser
from gpx.errors import NotAvailable
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SGPR, ExactGP, FullyBayesianGP
from gpx.runs.predictor import Predictor


@pytest.fixture
def trained():
    draws = torch.Generator().manual_seed(0)
    x = 100 + 10 * torch.randn(12, 2, generator=draws, dtype=torch.float64)
    y = 5000 + 20 * (x[:, 0] - 100) + 40 * torch.randn(12, generator=draws, dtype=torch.float64)
    scaler, _ = Standardiser.fit(x, y, scale_targets=True)
    model = ExactGP(
        kernel=RBF(ard_num_dims=2), mean=Constant(0.7), likelihood=Gaussian(0.1)
    ).double()
    return model, scaler, x, y


def predictor(model, scaler, x, y):
    posterior = model.condition(scaler.transform_inputs(x), scaler.transform_targets(y))
    return Predictor(posterior, model.likelihood, scaler, ("east", "north"), "height")


def test_each_row_is_predicted_as_by_a_model_of_the_others(trained):
    model, scaler, x, y = trained
    left = predictor(*trained).leave_one_out()
    np.testing.assert_allclose(left.target, y)
    for i in range(12):
        rest = torch.arange(12) != i
        without = predictor(model, scaler, x[rest], y[rest]).predict(x[i : i + 1].numpy())
        np.testing.assert_allclose(left.mean[i], without.mean[0], rtol=1e-9)
        np.testing.assert_allclose(left.std[i], without.std[0], rtol=1e-9)
        density = stats.norm(without.mean[0], without.std[0]).logpdf(float(y[i]))
        np.testing.assert_allclose(left.log_density[i], density, rtol=1e-8)


def test_other_posteriors_and_laws_have_none(trained):
    _, scaler, x, y = trained
    parts = {"kernel": RBF(), "mean": Constant(), "likelihood": Gaussian(0.1)}
    sparse = SGPR(**parts, num_inducing=4, num_inputs=2).double()
    sparse.initialise(x, y, generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        NotAvailable,
        match=r"is SGPRPosterior: train with approx=exact and solver=cholesky, with app",
    ):
        predictor(sparse, scaler, x, y).leave_one_out()
    recalibrated = predictor(*trained)
    recalibrated.calibration = lambda law: law
    with pytest.raises(NotAvailable, match="with recalibration"):
        recalibrated.leave_one_out()


def test_targets_that_are_modelled_each_by_itself():
    rng = np.random.default_rng(5)
    x = rng.uniform(-2, 2, (30, 1))
    y = np.concatenate([np.sin(2 * x), 50 + 10 * np.cos(x)], 1) + 0.1 * rng.normal(size=(30, 2))
    y[4, 1] = np.nan
    options = ("kernel=rbf", "data.test_fraction=0", "trainer.figures=false")
    together = gpx.fit(x, y, "approx=independent", *options, quiet=True, keep=False)
    left = together.leave_one_out()
    assert np.isnan(left.mean).sum() == np.isnan(left.log_density).sum() == 1
    np.testing.assert_allclose(left.target, y)
    for target, rows in enumerate((slice(None), ~np.isnan(y[:, 1]))):
        alone = gpx.fit(x[rows], y[rows, target], "approx=exact", *options, quiet=True, keep=False)
        want = alone.leave_one_out()
        np.testing.assert_allclose(left.mean[rows, target], want.mean, rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(left.log_density[rows, target], want.log_density, atol=0.05)


def test_predictions_averaged_over_hyperparameters_have_them_too():
    rng = np.random.default_rng(2)
    x = rng.uniform(-2, 2, (14, 1))
    y = 300 + 50 * np.sin(2 * x[:, 0]) + 5 * rng.normal(size=14)
    short = ("optimizer.burn_in=60", "optimizer.iterations=200", "optimizer.thin=20")
    options = ("approx=fully_bayesian", "kernel=rbf", *short, "data.test_fraction=0")
    fitted = gpx.fit(x, y, *options, quiet=True, keep=False)
    left = fitted.leave_one_out()
    assert left.effective_samples.shape == (14,)
    assert left.effective_samples.max() <= 40
    np.testing.assert_allclose(left.target, y)
    # the chains of the other rows alone; both have errors of few samples
    others = gpx.fit(x[:-1], y[:-1], *options, quiet=True, keep=False)
    mean, std = others.predict(x[-1:])[:2]
    np.testing.assert_allclose(left.mean[-1], mean[0], atol=0.3 * std[0])
    np.testing.assert_allclose(left.std[-1], std[0], rtol=0.3)


def test_rows_that_few_samples_predict_are_warned_of(trained):
    _, scaler, x, y = trained
    away = y.clone()
    away[4] += 2000.0
    mixture = FullyBayesianGP(
        kernel=RBF(ard_num_dims=2), mean=Constant(0.7), likelihood=Gaussian(0.1)
    ).double()
    start = mixture.hyper_position().read()
    mixture.samples = start + 0.1 * torch.randn(
        40, len(start), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    with pytest.warns(UserWarning, match=r"\(row 4, counted from 0: 1\.\d of 40\)"):
        left = predictor(mixture, scaler, x, away).leave_one_out()
    assert left.effective_samples.argmin() == 4
