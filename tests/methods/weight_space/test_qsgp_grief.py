"""QSGP on the eigenfunctions of a grid: the exact posterior of GRIEF, any likelihood."""

from functools import partial

import pytest
import torch

from gpx.bases import GridFeatures
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GRIEF, QSGP

GRID = partial(GridFeatures, num_inputs=2)


def data(n=120):
    torch.manual_seed(0)
    x = torch.randn(n, 2, dtype=torch.float64)
    return x, (2.0 * x[:, 0]).sin() + x[:, 1] + 0.1 * torch.randn(n, dtype=torch.float64)


def parts():
    kernel = RBF(ard_num_dims=2, lengthscale=[0.9, 1.6], outputscale=1.2)
    return {"kernel": kernel, "mean": Zero(), "likelihood": Gaussian(0.05)}


@torch.no_grad()
def test_a_full_covariance_gives_the_posterior_of_grief():
    x, y = data()
    common = {"num_eigenfunctions": 40, "num_inputs": 2, "noise_first": False}
    grief = GRIEF(**parts(), **common).double()
    grief.initialise(x, y, generator=torch.Generator())
    model = QSGP(
        **parts(), num_basis=40, basis=partial(GridFeatures, num_inputs=2), covariance="full"
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    assert isinstance(model.basis, GridFeatures)
    at = x[:9] * 0.8
    got, want = model.condition(x, y).predict(at), grief.condition(x, y).predict(at)
    torch.testing.assert_close(got.mean, want.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.variance, want.variance, rtol=1e-3, atol=1e-6)


def test_a_grid_that_is_too_small_is_explained():
    x, y = data()
    model = QSGP(
        **parts(), num_basis=400, basis=partial(GridFeatures, num_inputs=2), warm_start=False
    ).double()
    with pytest.raises(ConfigError, match="has only 100 functions"):
        model.initialise(x, y, generator=torch.Generator())
