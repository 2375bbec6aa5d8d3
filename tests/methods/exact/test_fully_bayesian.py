"""The exact process averaged over its hyperparameters, as a model; its law: tests/inference."""

import pytest
import torch

import gpx
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.exact import fully_bayesian
from gpx.models import FullyBayesianGP

SHORT = ("optimizer.chains=2", "optimizer.burn_in=30", "optimizer.iterations=40")
QUIET = {"quiet": True, "keep": False}


def test_many_rows_are_told_what_they_cost(monkeypatch):
    monkeypatch.setattr(fully_bayesian, "MANY_ROWS", 10)
    model = FullyBayesianGP(kernel=RBF(), mean=Constant(), likelihood=Gaussian(0.1))
    model.check(torch.zeros(10, 1))
    with pytest.warns(UserWarning, match=r"factorisation of 11 rows.*FullyBayesianSGPR\(\)"):
        model.check(torch.zeros(11, 1))


@pytest.mark.filterwarnings("ignore:the 2 chains have not converged")
def test_known_noise_of_rows_is_taken():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 1, generator=generator).double()
    y = (6.0 * x[:, 0]).sin()
    y[0] += 5.0
    options = ("kernel=rbf", "approx=fully_bayesian", "data.test_fraction=0", *SHORT)
    noise = torch.full((20,), 1e-4)
    noise[0] = 100.0
    fitted = gpx.fit(x, y, *options, "trainer.figures=false", noise=noise, **QUIET)
    found = float(fitted.latent(x[:1]).mean[0])
    assert found == pytest.approx(float((6.0 * x[0, 0]).sin()), abs=0.2)
    assert fitted.hyperparameters["kernel.lengthscale"].shape == (6, 1)
