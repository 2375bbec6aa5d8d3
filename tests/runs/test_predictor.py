import warnings

import numpy as np
import pytest
import torch
from frames import Column, Frame
from scipy import stats

import gpx
from gpx.calibration import Variance
from gpx.data import Standardiser
from gpx.data.target_transform import TargetTransform
from gpx.errors import ConfigError, DataError, DTypeError, NoSpectrum, NotAvailable, ShapeError
from gpx.kernels import RBF, Linear
from gpx.likelihoods import Bernoulli, Gaussian, GaussianOutputs, Poisson, Softmax, StudentT
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant, Zero
from gpx.models import SSGP, SVGP, ExactGP, LaplaceGP, Posterior
from gpx.runs import Fitted, function_draws
from gpx.runs.predictor import Predictor


@pytest.fixture
def predictor():
    generator = torch.Generator().manual_seed(0)
    x = 100 + 10 * torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = 5000 + 20 * (x[:, 0] - 100)
    scaler, _ = Standardiser.fit(x, y, scale_targets=True)
    model = ExactGP(kernel=RBF(ard_num_dims=2), mean=Zero(), likelihood=Gaussian(0.01)).double()
    posterior = model.condition(scaler.transform_inputs(x), scaler.transform_targets(y))
    return Predictor(posterior, model.likelihood, scaler, ("east", "north"), "height"), x, y


def test_own_units_in_own_units_out(predictor):
    model, x, y = predictor
    prediction = model.predict(x.numpy())
    assert np.abs(prediction.mean - y.numpy()).mean() < 20
    noise = 0.1 * y.std(correction=0).item()  # standard deviation of the noise in the data's units
    assert (prediction.std > noise * 0.999).all()
    assert np.allclose(prediction.upper - prediction.mean, 1.959964 * prediction.std, rtol=1e-5)


def dense(model, x, y):
    """Posterior mean and covariance of the function (n,), (n, n) by dense algebra."""
    scaler = model.scaler
    inputs, targets = scaler.transform_inputs(x).numpy(), scaler.transform_targets(y).numpy()
    gram = np.exp(-0.5 * ((inputs[:, None] - inputs[None]) ** 2).sum(-1))
    inner = np.linalg.solve(gram + 0.01 * np.eye(len(x)), np.c_[targets, gram])
    scale = float(scaler.target_scale)
    mean = gram @ inner[:, 0] * scale + float(scaler.target_mean)
    return mean, (gram - gram @ inner[:, 1:]) * scale**2


def test_without_noise_it_is_the_function(predictor):
    model, x, y = predictor
    mean, covariance = dense(model, x, y)
    found = model.latent(x.numpy())
    np.testing.assert_allclose(found.mean, mean, rtol=1e-7)
    np.testing.assert_allclose(found.std**2, covariance.diagonal(), rtol=1e-5)
    np.testing.assert_allclose(found.upper - found.lower, 2 * 1.959963985 * found.std, rtol=1e-6)
    noisy = model.predict(x.numpy())
    extra = 0.01 * y.var(correction=0).item()
    np.testing.assert_allclose(noisy.std**2 - found.std**2, extra, rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_rows_of_some_weight_scatter_less_under_gaussian_noise_of_any_number_of_outputs(outputs):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=draw, dtype=torch.float64)
    y = torch.randn(30, outputs, generator=draw, dtype=torch.float64).squeeze(1)
    scaler, _ = Standardiser.fit(x, y, scale_targets=True)
    noise = Gaussian(0.3) if outputs == 1 else GaussianOutputs(outputs, 0.3)
    model = SVGP(
        kernel=RBF(2), mean=Zero(), likelihood=noise, num_inputs=2, num_inducing=5
    ).double()
    model.initialise(x, y, generator=draw)
    model.likelihood.noise_variance = 0.3 * torch.ones(y.shape[1:]).double()
    made = Predictor(model.condition(x, y), noise, scaler, ("a", "b"), "y")
    relative = torch.linspace(0.1, 1.0, 30).double()
    plain = made.distribution(x)
    found = made.distribution(x, RowNoise(torch.zeros(30).double(), relative))
    less = (plain.variance - found.variance).view(30, outputs)
    expected = 0.3 * (1.0 - relative)[:, None].expand(30, outputs)
    torch.testing.assert_close(less, expected, rtol=1e-4, atol=1e-9)


def test_under_other_noise_weights_change_no_prediction():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).double()
    parts = {"kernel": RBF(2), "mean": Zero(), "likelihood": StudentT()}
    model = SVGP(**parts, num_inputs=2, num_inducing=5).double()
    model.initialise(x, x[:, 0], generator=torch.Generator().manual_seed(0))
    scaler, _ = Standardiser.fit(x, x[:, 0], scale_targets=True)
    posterior = model.condition(x, x[:, 0])
    made = Predictor(posterior, model.likelihood, scaler, ("a", "b"), "y")
    known = RowNoise(torch.zeros(20).double(), torch.full((20,), 0.2).double())
    y = x[:, 0]
    assert torch.equal(made.distribution(x, known).log_prob(y), made.distribution(x).log_prob(y))


def test_joint_covariance(predictor):
    model, x, y = predictor
    _, covariance = dense(model, x, y)
    size = covariance.diagonal().max()
    np.testing.assert_allclose(model.covariance(x.numpy()), covariance, rtol=0, atol=1e-6 * size)
    noisy = model.covariance(x.numpy(), targets=True)
    np.testing.assert_allclose(noisy.diagonal(), model.predict(x.numpy()).std ** 2, rtol=1e-6)
    off = ~np.eye(len(x), dtype=bool)
    np.testing.assert_array_equal(noisy[off], model.covariance(x.numpy())[off])


def test_draws_have_the_moments_of_the_posterior(predictor):
    model, x, _ = predictor
    some, num = x[:4].numpy(), 4000
    functions = model.sample(some, num)
    targets = model.sample(some, num, targets=True)
    assert functions.shape == targets.shape == (num, 4)
    for drawn, prediction in (
        (functions, model.latent(some)),
        (targets, model.predict(some)),
    ):
        # means of 4,000 draws within 4.5 standard errors: a false alarm in 1e5 runs of 8 figures.
        # The seed is fixed; variances of functions are off by what random features leave
        error = np.abs(drawn.mean(0) - prediction.mean) / prediction.std * num**0.5
        assert error.max() < 4.5
    noise = (targets - functions).var(0)
    expected = model.predict(some).std ** 2 - model.latent(some).std ** 2
    np.testing.assert_allclose(noise, expected, rtol=6 * (2 / num) ** 0.5)


def test_functions_of_one_seed_are_the_same_everywhere(predictor):
    model, x, _ = predictor
    whole = model.sample(x.numpy(), 3, seed=5)
    np.testing.assert_allclose(model.sample(x[7:9].numpy(), 3, seed=5), whole[:, 7:9], rtol=1e-9)
    assert not np.allclose(model.sample(x.numpy(), 3, seed=6), whole)
    for num, seed in ((0, 5), (3, -1), (3, 2**63)):
        with pytest.raises(ConfigError, match=f"num={num} must be at least 1, and seed={seed} a"):
            model.sample(x.numpy(), num, seed=seed)
    before = torch.random.get_rng_state()
    model.sample(x.numpy(), 2, targets=True)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_kernels_without_features_are_drawn_jointly_with_a_warning(predictor, monkeypatch):
    model, x, y = predictor
    scaler = model.scaler
    made = ExactGP(kernel=Linear() + RBF(), mean=Zero(), likelihood=Gaussian(0.01)).double()
    posterior = made.condition(scaler.transform_inputs(x), scaler.transform_targets(y))
    model = Predictor(posterior, made.likelihood, scaler, ("east", "north"), "height")
    some = x[:5].numpy()
    with pytest.warns(UserWarning, match="joint draws at the given rows") as said:
        drawn = model.sample(some, 3, seed=1)
    assert said[0].filename == __file__
    with pytest.warns(UserWarning, match="joint draws at the given rows") as said:
        Fitted(model, {}, None).sample(some, 3, seed=1)
    assert said[0].filename == __file__
    np.testing.assert_array_equal(drawn, model.sample(some, 3, seed=1, jointly=True))
    with pytest.raises(NoSpectrum):
        model.sample(some, 3, jointly=False)
    monkeypatch.setattr(function_draws, "MAX_JOINT_ROWS", 4)
    with pytest.raises(NoSpectrum):
        model.sample(some, 3)


def test_what_has_neither_features_nor_a_joint_law_is_told_of_its_kernel():
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    made = LaplaceGP(kernel=Linear(), mean=Zero(), likelihood=Softmax(3)).double()
    posterior = made.condition(x, (x[:, 0] > 0).double())
    model = Predictor(posterior, made.likelihood, Standardiser(1), ("x",), "kind", (0.0, 1.0, 2.0))
    with pytest.raises(NoSpectrum, match="Linear has no such spectral"):
        model.sample(x.numpy())


def test_draws_of_classes_are_labels():
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    kernel = {"kernel": RBF(lengthscale=0.5), "mean": Zero()}
    y = torch.where(x[:, 0] > 0, 1.0, -1.0).double()
    for likelihood, labels, targets in (
        (Bernoulli(), (3.0, 8.0), y),
        (Softmax(3), (3.0, 5.0, 8.0), (y > 0).double() * 2),
    ):
        model = LaplaceGP(**kernel, likelihood=likelihood).double()
        posterior = model.condition(x, targets)
        found = Predictor(posterior, model.likelihood, Standardiser(1), ("x",), "kind", labels)
        drawn = found.sample(x.numpy(), 500, targets=True)
        assert set(np.unique(drawn)) <= set(labels)
        share = (drawn == 8.0).mean(0)
        probability = found.predict_classes(x.numpy()).probability[:, -1]
        # 500 draws: 4.5 standard errors, and 0.02 for what random features and quadrature leave
        assert np.abs(share - probability).max() < 4.5 * (0.25 / 500) ** 0.5 + 0.02
        latent = found.sample(x.numpy(), 2)
        assert latent.shape == ((2, 40) if len(labels) == 2 else (2, 40, 3))
        assert found.latent(x.numpy()).mean.shape == latent.shape[1:]
        with pytest.raises(ConfigError, match="is a class, a count, a proportion"):
            found.covariance(x.numpy())


def test_what_cannot_be_drawn_is_said(predictor):
    model, x, _ = predictor
    with pytest.raises(ConfigError, match="num=0 must be at least 1"):
        model.sample(x.numpy(), 0)
    model.calibration = object()
    with pytest.raises(NotAvailable, match="recalibration"):
        model.sample(x.numpy(), targets=True)
    with pytest.raises(NotAvailable, match="recalibration"):
        model.covariance(x.numpy(), targets=True)
    assert model.sample(x.numpy()).shape == (1, 60)
    assert model.covariance(x.numpy()).shape == (60, 60)
    with pytest.raises(NotAvailable, match="functions can be sampled from any posterior"):
        Posterior.joint_covariance(model.posterior, x)


def test_without_noise_through_a_transform_of_the_target(predictor):
    model, x, _ = predictor
    logarithm = TargetTransform("log", shift=2.0, scale=0.3)
    through = Predictor(
        model.posterior,
        model.likelihood,
        model.scaler,
        ("east", "north"),
        "height",
        target_transform=logarithm,
    )
    some = x[:6].numpy()
    mean, variance = model.posterior.predict(model.scaler.transform_inputs(x[:6]))
    law = stats.lognorm(0.3 * variance.sqrt().numpy(), scale=np.exp(0.3 * mean.numpy() + 2.0))
    found = through.latent(some)
    np.testing.assert_allclose(found.mean, law.mean(), rtol=1e-9)
    np.testing.assert_allclose(found.std, law.std(), rtol=1e-6)
    np.testing.assert_allclose(found.lower, law.ppf(0.025), rtol=1e-6)
    plain = model.sample(some, 5, seed=2)
    scaled = (plain - float(model.scaler.target_mean)) / float(model.scaler.target_scale)
    drawn = through.sample(some, 5, seed=2)
    np.testing.assert_allclose(drawn, np.exp(0.3 * scaled + 2.0), rtol=1e-9)
    assert (through.sample(some, 5, targets=True) > 0.0).all()
    with pytest.raises(ConfigError, match="this model transforms it"):
        through.covariance(some)


def test_one_row_and_wrong_columns(predictor):
    model, x, _ = predictor
    assert model.predict(x[0].numpy()).mean.shape == (1,)
    with pytest.raises(ShapeError, match=r"2 columns \(east, north\)"):
        model.predict(np.zeros((4, 3)))


def test_columns_of_a_frame_are_taken_by_name(predictor):
    model, x, _ = predictor
    east, north = x.numpy().T
    expected = model.predict(x.numpy()).mean
    for frame in (
        Frame(east=east, north=north),
        Frame(north=north, east=east),
        Frame(height=0 * east, north=north, east=east),
    ):
        np.testing.assert_array_equal(model.predict(frame).mean, expected)
    row = Column([north[3], east[3]], index=["north", "east"])
    assert model.predict(row).mean == pytest.approx(expected[3], rel=1e-12)
    with pytest.raises(DataError, match=r"no column 'north', .* they have east, nord"):
        model.predict(Frame(east=east, nord=north))
    np.testing.assert_array_equal(model.predict(x.numpy()).mean, expected)  # arrays by position


def test_frames_for_a_model_trained_without_names(predictor):
    model, x, _ = predictor
    model.input_names = ("x1", "x2")
    first, second = x.numpy().T
    expected = model.predict(x.numpy()).mean
    np.testing.assert_array_equal(model.predict(Frame(a=first, b=second)).mean, expected)
    np.testing.assert_array_equal(model.predict(Frame(x2=second, x1=first)).mean, expected)
    with pytest.raises(DataError, match="no column 'x1'"):
        model.predict(Frame(x2=second, x3=first))
    with pytest.raises(ShapeError, match="2 columns"):
        model.predict(Frame(a=first, b=second, c=second))


def test_tensors_are_arrays_and_other_things_are_not(predictor):
    model, x, _ = predictor
    expected = model.predict(x.numpy()).mean
    np.testing.assert_array_equal(model.predict(x.clone().requires_grad_()).mean, expected)
    with pytest.raises(
        DataError, match=r"row 2, column 1 \('east'\): found nan, expected a finite"
    ):
        model.predict([[1.0, 2.0], [np.nan, 2.0]])
    for bad, found in ((["a", "b"], "could not convert"), ([1j, 2.0], "found complex128")):
        with pytest.raises(DTypeError, match=f"inputs must be an array of real numbers .*{found}"):
            model.predict(bad)


@pytest.mark.parametrize(
    ("likelihood", "labels"), [(Bernoulli(), (0.0, 1.0)), (Softmax(3), (3.0, 7.0, 20.0))]
)
def test_classes_come_back_in_their_own_labels(likelihood, labels):
    x = torch.linspace(-2, 2, 30, dtype=torch.float64)[:, None]
    model = SVGP(kernel=RBF(), mean=Zero(), likelihood=likelihood, num_inputs=1, num_inducing=5)
    model.double().initialise(x, x[:, 0], generator=torch.Generator().manual_seed(0))
    model.q.mean.data[-1] = 3.0  # of the last class
    scaler, _ = Standardiser.fit(x, x[:, 0], scale_targets=False)
    predictor = Predictor(model.condition(x, x[:, 0]), likelihood, scaler, ("a",), "kind", labels)
    label, probability = predictor.predict_classes(x.numpy())
    assert probability.shape == (30, len(labels))
    assert np.allclose(probability.sum(1), 1.0)
    assert (label == np.array(labels)[probability.argmax(1)]).all()
    marginals = predictor.posterior.predict(scaler.transform_inputs(x))
    if len(labels) == 2:
        assert ((probability[:, 1] > 0.5) == (marginals.mean.numpy() > 0)).all()
    with pytest.raises(ConfigError, match="call predict_classes"):
        predictor.predict(x.numpy())


def test_probabilities_of_a_float32_model_sum_to_one_in_float64():
    x = torch.linspace(-2, 2, 30)[:, None]
    model = SVGP(kernel=RBF(), mean=Zero(), likelihood=Softmax(3), num_inputs=1, num_inducing=5)
    model.initialise(x, x[:, 0], generator=torch.Generator().manual_seed(0))
    model.q.mean.data[-1] = 3.0
    names = (("a",), "kind", (0.0, 1.0, 2.0))
    predictor = Predictor(model.condition(x, x[:, 0]), Softmax(3), Standardiser(1), *names)
    assert predictor.posterior.predict(x).mean.dtype == torch.float32
    probability = predictor.predict_classes(x.numpy()).probability
    # scikit-learn's log_loss warns beyond 2e-8
    np.testing.assert_allclose(probability.sum(1), 1.0, rtol=4e-15)


def test_a_number_is_not_a_class(predictor):
    with pytest.raises(ConfigError, match="height is a number"):
        predictor[0].predict_classes([[100.0, 100.0]])


def test_rows_come_in_the_precision_of_the_hyperparameters():
    # the weights of this posterior are in float64 whatever the data
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator)
    scaler, _ = Standardiser.fit(x.double(), x[:, 0].double(), scale_targets=True)
    model = SSGP(
        kernel=RBF(2), mean=Zero(), likelihood=Gaussian(0.1), num_inputs=2, num_basis=10, draws=1
    )
    model.initialise(x, x[:, 0], generator=generator)
    posterior = model.condition(x, x[:, 0])
    assert next(posterior.buffers()).dtype == torch.float64
    found = Predictor(posterior, model.likelihood, scaler, ("a", "b"), "c").predict(x.numpy())
    assert np.isfinite(found.mean).all()


def test_numbers_in_a_row_are_rows_of_one_input():
    x = torch.linspace(0.0, 1.0, 12, dtype=torch.float64)
    scaler, _ = Standardiser.fit(x[:, None], x.sin(), scale_targets=True)
    model = ExactGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.01)).double()
    posterior = model.condition(
        scaler.transform_inputs(x[:, None]), scaler.transform_targets(x.sin())
    )
    one = Predictor(posterior, model.likelihood, scaler, ("east",), "height")
    want = one.predict(x[:, None].numpy()).mean
    for given in (x, x.numpy(), x.tolist()):
        np.testing.assert_array_equal(one.predict(given).mean, want)
    np.testing.assert_array_equal(one.predict(0.5).mean, one.predict([[0.5]]).mean)
    assert one.predict([0.5]).mean.shape == (1,)


def test_known_noise_is_refused_where_a_factor_would_scale_it(predictor):
    model, x, _ = predictor
    model.calibration = Variance()
    with pytest.raises(ConfigError, match="noise= cannot be used with recalibrated predictions"):
        model.predict(x[:2], noise=[3.0, 3.0])
    assert (model.predict(x[:2], noise=[0.0, 0.0]).std == model.predict(x[:2]).std).all()


def test_means_of_counts_that_a_far_tail_makes_are_warned_of():
    x = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)[:, None]
    y = torch.tensor([0.0, 0.0, 20.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    for outputscale, warned in ((1.0, False), (100.0, True)):
        model = LaplaceGP(
            kernel=RBF(1, 0.2, outputscale), mean=Constant(-5.0), likelihood=Poisson()
        ).double()
        scaler, _ = Standardiser.fit(x, y, scale_targets=False)
        posterior = model.condition(scaler.transform_inputs(x), y)
        predictor = Predictor(posterior, model.likelihood, scaler, ("x",), "count")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = predictor.predict([[-1.0], [-0.2], [0.9]])
            Fitted(predictor, {}, None).predict([[-1.0], [-0.2], [0.9]])
        assert bool((found.mean > found.upper + 1.0).any()) == warned == bool(said)
        if warned:
            assert "of 3 predicted means lie above their 95 % interval" in str(said[0].message)
            assert [warning.filename for warning in said] == [__file__, __file__]


def test_targets_are_drawn_with_the_noise_of_the_sample_of_hyperparameters():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (20, 1))
    y = 300 + 50 * np.sin(2 * x[:, 0]) + 10 * rng.normal(size=20)
    short = ("optimizer.burn_in=60", "optimizer.iterations=200", "optimizer.thin=20")
    options = ("approx=fully_bayesian", "kernel=rbf", *short, "data.test_fraction=0")
    fitted = gpx.fit(x, y, *options, quiet=True, keep=False)
    f, drawn = (fitted.sample(x[:3], 4000, targets=targets, seed=2) for targets in (False, True))
    np.testing.assert_allclose(drawn.std(0), fitted.predict(x[:3]).std, rtol=0.06)
    # noise of one function is of one size, and differs between functions
    noise = np.sqrt(fitted.hyperparameters["likelihood.noise_variance"].mean())
    unit = (drawn - f) / np.std(y)
    np.testing.assert_allclose(unit.std(), noise, rtol=0.06)
    np.testing.assert_allclose(np.corrcoef(drawn - f, rowvar=False)[0, 1], 0.0, atol=0.065)


def test_classes_of_a_kernel_without_features_are_drawn_jointly():
    x = torch.linspace(-2, 2, 14, dtype=torch.float64)[:, None]
    scaler, _ = Standardiser.fit(x, x[:, 0], scale_targets=False)

    def model(likelihood, y):
        parts = {"kernel": Linear(), "mean": Constant(), "likelihood": likelihood}
        posterior = LaplaceGP(**parts).double().condition(scaler.transform_inputs(x), y)
        labels = ("a", "b", "c")[: max(2, likelihood.num_latents)]
        return Predictor(posterior, likelihood, scaler, ("x",), "kind", labels=labels)

    two = model(Bernoulli(), x[:, 0].sign())
    with pytest.warns(UserWarning, match="joint draws at the given rows"):
        drawn = two.sample(x.numpy(), 400, targets=True)
    assert set(drawn[:, 0]) == set(drawn[:, -1]) == {"a", "b"}
    assert (drawn[:, -1] == "b").mean() > 0.6 > 0.4 > (drawn[:, 0] == "b").mean()
    three = model(Softmax(3), (x[:, 0] > 0).double())
    with pytest.raises(
        NoSpectrum, match=r"Matern52\(\); draws at given rows are not available eit"
    ):
        three.sample(x.numpy())
