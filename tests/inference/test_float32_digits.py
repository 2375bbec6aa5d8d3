"""Float32 predictions of functions far larger than their noise come with a warning."""

import warnings

import pytest
import torch

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.means import Constant
from gpx.models import DKL, SGPR, SVGP, DeepSVGP, EffectivePrior


def conditioned(cls, dtype, outputscale, likelihood=None, **options):
    x = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)
    kernel = RBF(2, lengthscale=3.0, outputscale=outputscale)
    given = {"num_inputs": 2, "num_data": 30, "num_inducing": 8, **options}
    noisy = likelihood or Gaussian(1e-3)
    model = cls(kernel=kernel, mean=Constant(), likelihood=noisy, **given).to(dtype)
    count = model.likelihood.num_outputs
    y = x.sum(1) if count == 1 else torch.stack([x.sum(1)] * count, 1)
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    model.likelihood.noise_variance = torch.full_like(model.likelihood.noise_variance, 1e-3)
    model.condition(x, y)


@pytest.mark.parametrize("options", [{}, {"likelihood": GaussianOutputs(2)}])
def test_svgp_warns_and_names_the_remedy(options):
    with pytest.warns(UserWarning, match="float32 has too few digits .*; take dtype=float64"):
        conditioned(SVGP, torch.float32, 1e4, **options)


@pytest.mark.parametrize(("cls", "options"), [(SGPR, {}), (EffectivePrior, {"prior": "fitc"})])
def test_full_batch_models_warn(cls, options):
    with pytest.warns(UserWarning, match="float32 has too few digits"):
        conditioned(cls, torch.float32, 1e4, **options)


@pytest.mark.parametrize("cls", [DeepSVGP, DKL])
def test_last_layers_with_inducing_points_warn(cls):
    options = {"pretrain_steps": 0, "backbone": "identity"} if cls is DKL else {"depth": 2}
    with pytest.warns(UserWarning, match="float32 has too few digits"):
        conditioned(cls, torch.float32, 1e4, **options)


@pytest.mark.parametrize(("dtype", "outputscale"), [(torch.float64, 1e4), (torch.float32, 100.0)])
@pytest.mark.parametrize("cls", [SVGP, SGPR, DeepSVGP])
def test_enough_digits_are_not_warned_of(cls, dtype, outputscale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conditioned(cls, dtype, outputscale)
