"""Models, posteriors and likelihoods called as GPyTorch's are: they say what to call instead."""

import pytest
import torch

from gpx.errors import NotAvailable
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.base.posterior import Marginals
from gpx.models import ExactGP

X = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)[:, None]


def model():
    return ExactGP(kernel=RBF(), mean=Constant(), likelihood=Gaussian(0.1)).double()


def test_a_model_that_is_called_names_the_evidence_and_the_posterior():
    with pytest.raises(NotAvailable, match=r"ExactGP is not called: .*model.condition\(x, y\)"):
        model()(X)


def test_a_posterior_that_is_called_names_its_predictions():
    posterior = model().condition(X, X[:, 0])
    with pytest.raises(NotAvailable, match=r"ExactPosterior is not called: take predict\(x\)"):
        posterior(X)


def test_a_likelihood_that_is_called_names_the_predictive_law():
    with pytest.raises(NotAvailable, match=r"Gaussian is not called: .*posterior.predictive\(x"):
        model().likelihood(X[:, 0])


def test_deviations_of_marginals_are_roots_of_variances_and_never_nan():
    variance = torch.tensor([4.0, 0.0, -1e-17])
    assert Marginals(torch.zeros(3), variance).stddev.tolist() == [2.0, 0.0, 0.0]


def test_arguments_that_are_missing_are_those_of_the_method():
    with pytest.raises(TypeError, match=r"condition\(\) missing 2 required positional arguments"):
        model().condition()
    with pytest.raises(TypeError, match=r"initialise\(\) missing .* 'generator'"):
        model().initialise(X, X[:, 0])
