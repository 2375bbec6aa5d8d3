"""Rows that lack a value: predictions against sums over the values it may have had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)
from torch.testing import assert_close

import gpx
from gpx.calibration.intervals import widened
from gpx.data import Standardiser
from gpx.data.columns.coding import CodedColumn, Coding
from gpx.data.columns.column import Column
from gpx.data.columns.gaps import STAND_INS
from gpx.likelihoods import (
    Beta,
    Gaussian,
    GaussianOutputs,
    Heteroscedastic,
    Likelihood,
    MixedOutputs,
    NegativeBinomial,
    Poisson,
    StudentT,
    target_marginals,
)
from gpx.likelihoods import Laplace as LaplaceNoise
from gpx.likelihoods.quantiles import RowsReplaced, cdf, quantile, select_rows
from gpx.metrics.ranked_probability import crps
from gpx.runs.gaps import averaged_over_gaps, completions, order_of
from gpx.runs.predictor import Predictor

Law = Callable[[torch.Tensor], torch.distributions.Distribution]

NAN = np.nan
FEW = ("data.missing=mean", "data.test_fraction=0", "approx=exact", "trainer.max_steps=30")


def slope(seed: int, gaps: int = 3, rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a steep function of the first input, which some rows lack."""
    draws = np.random.default_rng(seed)
    x = draws.uniform(-2, 2, (rows, 2))
    y = 3 * x[:, 0] + np.sin(2 * x[:, 1]) + 0.1 * draws.standard_normal(rows)
    x[:gaps, 0] = NAN
    return x, y


@pytest.fixture(scope="module")
def model() -> Predictor:
    x, y = slope(0)
    x[3:6, 1] = NAN
    return gpx.fit(x, y, *FEW, "kernel=rbf", quiet=True, keep=False).model


def test_it_is_the_average_over_training_values(model: Predictor) -> None:
    assert model.coding is not None
    first, second = (
        np.array(column.stand_ins)[order_of(number, STAND_INS)]
        for number, column in enumerate(model.coding.columns)
    )
    found = model.predict([[NAN, 0.5], [0.3, 0.5], [NAN, NAN]])
    for row, rows in ((0, [[v, 0.5] for v in first]), (2, list(zip(first, second, strict=True)))):
        parts = model.predict(rows)
        variance = (parts.std**2).mean() + parts.mean.var()
        np.testing.assert_allclose(found.mean[row], parts.mean.mean(), rtol=1e-10)
        np.testing.assert_allclose(found.std[row], np.sqrt(variance), rtol=1e-10)
    alone = model.predict([[0.3, 0.5]])
    np.testing.assert_allclose([found.mean[1], found.std[1]], [alone.mean[0], alone.std[0]], 1e-12)


def test_several_missing_values_are_paired_as_if_independent() -> None:
    orders = np.array([order_of(number, STAND_INS) for number in range(60)])
    assert (np.sort(orders) == np.arange(STAND_INS)).all()
    correlations = np.corrcoef(orders) - np.eye(60)
    assert np.abs(correlations[:6, :6]).max() < 0.15
    assert np.abs(correlations).max() < 0.75
    rms = np.sqrt((correlations**2).sum() / (60 * 59))
    assert rms < 1.1 / np.sqrt(STAND_INS - 1)  # that of independent orders


def gappy(columns: int) -> tuple[Coding, Standardiser]:
    """Columns of normal scores, a few missing; their inputs are not scaled."""
    scores = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(32.0) + 0.5) / 32)
    each = [
        CodedColumn(Column(f"x{i}"), (0.0,), indicator=True, stand_ins=tuple(scores.tolist()))
        for i in range(columns)
    ]
    return Coding(tuple(each), missing="mean"), Standardiser(2 * columns)


def test_any_number_of_columns_may_lack_values() -> None:
    coding, scaler = gappy(40)
    x = torch.from_numpy(coding.columns[0].inputs(np.full(3, NAN))).repeat(1, 40)
    x[0, 2:] = 0.0
    x[1, 1::2] = 0.0
    found = completions(x, coding, scaler)
    assert found is not None
    rows, filled = found
    assert rows.tolist() == [0, 2]
    assert torch.equal(filled[:, 0, 2:], torch.zeros(STAND_INS, 78))
    values = filled[:, 1, ::2]
    assert len({tuple(column.tolist()) for column in values.mT}) == 40
    # sums as uncertain as those of independent values
    assert float(values.sum(1).var()) == pytest.approx(40 * float(values[:, 0].var()), rel=0.3)
    alone = completions(x[:1], coding, scaler)
    assert alone is not None
    assert torch.equal(alone[1][:, 0], filled[:, 0])


def test_so_are_those_of_the_function_and_those_with_known_noise(model: Predictor) -> None:
    rows = [[NAN, 0.5], [0.3, 0.5]]
    noisy, known = model.predict(rows), model.predict(rows, noise=[0.5, 0.0])
    np.testing.assert_allclose(known.mean, noisy.mean, rtol=1e-12)
    np.testing.assert_allclose(known.std**2 - noisy.std**2, [0.5, 0.0], rtol=1e-9, atol=1e-12)
    noise = float(model.likelihood.noise_variance.detach()) * float(model.scaler.target_scale) ** 2
    latent = model.latent(rows)
    np.testing.assert_allclose(latent.mean, noisy.mean, rtol=1e-12)
    np.testing.assert_allclose(noisy.std**2 - latent.std**2, noise, rtol=1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "rbf+linear"])
def test_rows_that_lack_a_value_are_predicted_with_the_spread_they_have(kernel: str) -> None:
    x, y = slope(1)
    new, truth = slope(2, gaps=400, rows=400)
    fitted = gpx.fit(x, y, *FEW, f"kernel={kernel}", quiet=True, keep=False)
    found = fitted.predict(new)
    away = (truth - found.mean) / found.std
    # uniform inputs under a normal law of their variance: no residual is 3 deviations away
    assert np.abs(away).max() < 3.0
    assert np.sqrt(np.mean((truth - found.mean) ** 2)) < 1.1 * truth.std()
    assert 0.8 < np.sqrt(np.mean(away**2)) < 1.2


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_of_classes_are_averaged(classes: int) -> None:
    x, y = slope(3)
    labels = np.digitize(y, [0.0] if classes == 2 else [-2.0, 2.0])
    likelihood = "bernoulli" if classes == 2 else "softmax"
    options = ("approx=laplace", "kernel=rbf", f"likelihood={likelihood}", "trainer.max_steps=3")
    fitted = gpx.fit(x, labels, *FEW, *options, quiet=True, keep=False).model
    assert fitted.coding is not None
    found = fitted.predict_classes([[NAN, 0.5], [0.3, 0.5]]).probability
    parts = fitted.predict_classes([[v, 0.5] for v in fitted.coding.columns[0].stand_ins])
    np.testing.assert_allclose(found[0], parts.probability.mean(0), rtol=1e-10)
    np.testing.assert_allclose(found[1], fitted.predict_classes([[0.3, 0.5]]).probability[0])


def test_a_folder_of_before_predicts_as_it_did(tmp_path: Path) -> None:
    x, y = slope(0)
    gpx.fit(x, y, *FEW, "kernel=rbf", quiet=True, folder=tmp_path / "run")
    path, rows = tmp_path / "run" / "checkpoint.pt", [[NAN, 0.5], [0.3, 0.5]]
    new = gpx.load(path.parent)
    with torch.no_grad():  # what the model itself says where the indicator is 1
        at_rows = new.placed(new.scaler.transform_inputs(torch.from_numpy(new.coded(rows))))
        law = new.posterior.predictive(at_rows, new.likelihood)
    kept = torch.load(path, weights_only=False)
    for column in kept["coding"]["columns"]:
        del column["stand_ins"]
    torch.save(kept, path)
    old = gpx.load(path.parent).predict(rows)
    np.testing.assert_allclose(old.mean, new.scaler.original_mean(law.mean), rtol=1e-12)
    np.testing.assert_allclose(old.std, new.scaler.original_std(law.stddev), rtol=1e-12)
    assert abs(new.predict(rows).std[0] - old.std[0]) > 1e-3


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of a latent function at inputs: the first two, and indicators."""
    return x[:, 0] + 0.3 * x[:, 2], 0.05 + 0.1 * (x[:, 0] - 1.0).square()


def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = moments(x)
    return torch.stack([mean, 1.0 - mean], 1), torch.stack([variance, 0.5 * variance], 1)


def two_draws(likelihood: Likelihood, x: torch.Tensor) -> torch.distributions.Distribution:
    """Mixture over two draws with weights that depend on the inputs."""
    mean, variance = moments(x)
    share = torch.stack([x[:, 0].sigmoid(), (-x[:, 0]).sigmoid()], 1)
    each = torch.stack([mean, mean - 0.5], 1), torch.stack([variance, variance + 0.01], 1)
    return MixtureSameFamily(Categorical(probs=share), likelihood.predictive(*each))


def several_draws(x: torch.Tensor) -> torch.distributions.Distribution:
    mean, variance = two(x)
    parts = Normal(torch.stack([mean, mean.flip(1)], -1), variance.sqrt()[..., None])
    return Independent(MixtureSameFamily(Categorical(torch.ones(len(x), 2, 2)), parts), 1)


LAWS: dict[str, Law] = {
    "student": lambda x: StudentT(0.3, 5.0).predictive(*moments(x)),
    "laplace": lambda x: LaplaceNoise(0.3).predictive(*moments(x)),
    "heteroscedastic": lambda x: Heteroscedastic().predictive(*two(x)),
    "draws": lambda x: two_draws(Gaussian(0.1), x),
    "draws, student": lambda x: two_draws(StudentT(0.3, 5.0), x),
    "functions": lambda x: Normal(two(x)[0], two(x)[1].sqrt()),
    "outputs": lambda x: GaussianOutputs(2).predictive(*two(x)),
    "mixed outputs": lambda x: MixedOutputs(2).predictive(*two(x)),
    "draws of outputs": several_draws,
    "poisson": lambda x: Poisson().predictive(*moments(x)),
    "negative binomial": lambda x: NegativeBinomial().predictive(*moments(x)),
    "draws, poisson": lambda x: two_draws(Poisson(), x),
    "beta": lambda x: Beta().predictive(*moments(x)),
    "one's own": lambda x: torch.distributions.Laplace(moments(x)[0], 0.3),
}


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("name", LAWS)
def test_laws_of_every_kind_are_averaged(name: str) -> None:
    coding, scaler = gappy(2)
    x = torch.from_numpy(coding.columns[0].inputs(np.array([0.4, NAN, -1.0, NAN]))).repeat(1, 2)
    x[:, 2:] = torch.tensor([0.7, 0.0])
    completed = completions(x, coding, scaler)
    assert completed is not None
    rows, filled = completed
    with torch.no_grad():
        found = averaged_over_gaps(lambda at, _: LAWS[name](at), x, coding, scaler)
        marginal = target_marginals(found)
        each = [target_marginals(LAWS[name](at)) for at in filled]
        means = torch.stack([part.mean for part in each])
        variance = torch.stack([part.variance for part in each]).mean(0)
        known, complete = [0, 2], target_marginals(LAWS[name](x))
        assert_close(marginal.mean[rows], means.mean(0))
        assert_close(marginal.variance[rows], variance + means.var(0, correction=0))
        assert_close(marginal.mean[known], complete.mean[known])
        assert_close(marginal.variance[known], complete.variance[known])
        y = quantile(marginal, 0.9)
        assert (cdf(marginal, y) >= 0.9 - 1e-9).all()
        assert_close(marginal.log_prob(y)[known], complete.log_prob(y)[known])
        if isinstance(found, MultivariateNormal):
            inside = torch.stack([LAWS[name](at).covariance_matrix for at in filled]).mean(0)
            between = torch.stack([m.mT.cov(correction=0) for m in means.unbind(1)])
            assert_close(found.covariance_matrix[rows], inside + between)
        if isinstance(found, RowsReplaced):
            for of in (cdf, lambda law, at: law.log_prob(at).exp()):
                mixed = torch.stack([of(part, y[rows]) for part in each]).mean(0)
                assert_close(of(marginal, y)[rows], mixed)
            if name in ("poisson", "beta"):
                scores = crps(found, y)
                assert_close(crps(select_rows(found, rows), y[rows]), scores[rows])
                assert_close(scores[known], crps(complete, y)[known])
            assert_close(select_rows(found, torch.tensor(known)).mean, complete.mean[known])
            assert found.sample((3,)).shape == (3, 4)
        if name == "one's own":
            wide = widened(found, torch.tensor(2.0))
            assert_close(wide.mean, found.mean)
            assert_close(wide.variance, 4.0 * found.variance)


def test_a_law_that_cannot_be_averaged_is_named(caplog: pytest.LogCaptureFixture) -> None:
    coding, scaler = gappy(1)
    x = torch.from_numpy(coding.columns[0].inputs(np.array([NAN])))
    found = averaged_over_gaps(
        lambda at, _: torch.distributions.Gumbel(at[:, 0], 1.0), x, coding, scaler
    )
    assert isinstance(found, torch.distributions.Gumbel)
    assert "a Gumbel cannot be averaged over missing values" in caplog.text


def test_predictions_with_heavy_tails_have_the_mean_of_the_function() -> None:
    x, y = slope(0)
    options = ("approx=svgp", "approx.num_inducing=20", "likelihood=student_t", "kernel=rbf")
    model = gpx.fit(x, y, *FEW, *options, quiet=True, keep=False).model
    assert model.coding is not None
    rows = [[NAN, 0.5], [0.3, 0.5]]
    found, latent = model.predict(rows), model.latent(rows)
    np.testing.assert_allclose(found.mean, latent.mean, rtol=1e-5)
    parts = model.predict([[v, 0.5] for v in model.coding.columns[0].stand_ins])
    np.testing.assert_allclose(found.mean[0], parts.mean.mean(), rtol=1e-5)
    variance = (parts.std**2).mean() + parts.mean.var()
    np.testing.assert_allclose(found.std[0], np.sqrt(variance), rtol=1e-5)
    assert found.lower[0] < parts.mean.min() + parts.std[0]
