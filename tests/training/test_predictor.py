import numpy as np
import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from gpx.data import Standardiser
from gpx.errors import ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP
from gpx.training.predictor import Predictor, central_interval


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


def test_intervals_are_quantiles_or_normal():
    normal = Normal(torch.tensor([1.0]), torch.tensor([2.0]))
    lower, upper = central_interval(normal, 0.95)
    assert lower.item() == pytest.approx(1 - 1.959964 * 2, rel=1e-5)
    mixture = MixtureSameFamily(
        Categorical(torch.ones(1, 2)), Normal(torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2))
    )
    lower, upper = central_interval(mixture, 0.95)
    assert upper.item() == pytest.approx(1.959964 * 2**0.5, rel=1e-5)
    assert lower.item() == pytest.approx(-upper.item())
