import numpy as np
import pytest
import torch
from frames import Column, Frame
from omegaconf import OmegaConf

from gpx.data import Standardiser
from gpx.errors import ConfigError, DataError, DTypeError, ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian, Softmax
from gpx.means import Zero
from gpx.models import SSGP, SVGP, ExactGP
from gpx.training import predictor as predictor_module
from gpx.training.predictor import Predictor


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


def test_a_number_is_not_a_class(predictor):
    with pytest.raises(ConfigError, match="height is a number"):
        predictor[0].predict_classes([[100.0, 100.0]])


def test_budgets_of_a_larger_machine_are_lowered(monkeypatch):
    monkeypatch.setattr(predictor_module, "available_memory", lambda device: 2**33)
    here = torch.device("cpu")
    made = {"approx": {"memory_budget": 2**40, "iterative": {"memory_budget": 2**32}}}
    found = predictor_module.within_memory(OmegaConf.create(made), here)
    assert found.approx.memory_budget == 2**31
    assert found.approx.iterative.memory_budget == 2**32
    monkeypatch.setattr(predictor_module, "available_memory", lambda device: None)
    assert predictor_module.within_memory(OmegaConf.create(made), here) == made


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
