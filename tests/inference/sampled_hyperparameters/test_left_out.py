"""Leave-one-out predictions of mixtures over samples of the hyperparameters."""

import numpy as np
import pytest
import torch
from scipy import stats

from gpx.errors import NotAvailable
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.models import FullyBayesianGP, FullyBayesianSGPR

SAMPLES = np.array([[-0.5, 0.1, 0.2, -2.0], [0.3, 0.6, -0.3, -3.0], [0.1, -0.4, 0.0, -1.0]])
"""log lengthscale, log outputscale, mean, log noise."""


def data(n=9):
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 4, n)
    return x, np.sin(x) + 0.3 * generator.normal(size=n)


def condition(x, y, samples=SAMPLES, noise=None, dtype=torch.float64):
    model = FullyBayesianGP(kernel=RBF(), mean=Constant(), likelihood=Gaussian(0.1)).to(dtype)
    model.samples, model.row_noise = torch.as_tensor(samples), noise
    return model.condition(torch.as_tensor(x, dtype=dtype)[:, None], torch.as_tensor(y).to(dtype))


def law(sample, x, known=0.0):
    """Mean (n,) and covariance (n, n) of the observations under a sample."""
    lengthscale, outputscale, _, noise = np.exp(sample)
    gap = np.subtract.outer(x, x) / lengthscale
    covariance = outputscale * np.exp(-0.5 * gap**2) + np.diag(noise + known * np.ones_like(x))
    return sample[2] * np.ones_like(x), covariance


def without_each(x, y, prior, known=0.0):
    """Mean, variance and log density (n,) of y_i by Bayes' rule from the other rows alone.

    The samples are all values that the hyperparameters may have, of probabilities ``prior``.
    """
    found = []
    for i in range(len(x)):
        rest, logs, means, variances = np.arange(len(x)) != i, [], [], []
        for sample, share in zip(SAMPLES, prior, strict=True):
            mean, covariance = law(sample, x, known)
            own, cross = covariance[np.ix_(rest, rest)], covariance[rest, i]
            logs.append(np.log(share) + stats.multivariate_normal(mean[rest], own).logpdf(y[rest]))
            means.append(mean[i] + cross @ np.linalg.solve(own, y[rest] - mean[rest]))
            variances.append(covariance[i, i] - cross @ np.linalg.solve(own, cross))
        weights = np.exp(np.array(logs) - max(logs))
        weights /= weights.sum()
        means, variances = np.array(means), np.array(variances)
        center = weights @ means
        density = weights @ stats.norm(means, np.sqrt(variances)).pdf(y[i])
        found.append((center, weights @ (variances + (means - center) ** 2), np.log(density)))
    return np.array(found).T


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # one batch; one by one
@pytest.mark.parametrize("known", [0.0, 0.5])
def test_it_is_bayes_rule_without_the_row(known, dtype):
    x, y = data()
    prior, varying = np.array([0.5, 0.2, 0.3]), known * (1.0 + x)
    noise = None if not known else RowNoise(torch.as_tensor(varying), torch.ones(9).double())
    posterior = condition(x, y, noise=noise, dtype=dtype)
    densities = [stats.multivariate_normal(*law(s, x, varying)).logpdf(y) for s in SAMPLES]
    weights = prior * np.exp(np.array(densities) - max(densities))
    posterior.weights = torch.as_tensor(weights / weights.sum()).to(posterior.weights)
    left = posterior.leave_one_out()
    mean, variance, density = without_each(x, y, prior, varying)
    digits = (
        {"rtol": 1e-8, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
    )
    np.testing.assert_allclose(y - left.residual.numpy(), mean, **digits)
    np.testing.assert_allclose(left.variance, variance, **digits)
    np.testing.assert_allclose(left.log_density(), density, **digits)
    shares = left.shares.double().numpy()
    np.testing.assert_allclose(shares.sum(0), 1.0, rtol=1e-6)
    np.testing.assert_allclose(left.effective_samples(), 1 / (shares**2).sum(0), rtol=1e-5)
    np.testing.assert_allclose(posterior.training_targets(), y, rtol=1e-6)


def test_one_sample_is_the_exact_process():
    x, y = data()
    left = condition(x, y, SAMPLES[:1]).leave_one_out()
    mean, covariance = law(SAMPLES[0], x)
    precision = np.linalg.inv(covariance)
    residual = precision @ (y - mean) / precision.diagonal()
    np.testing.assert_allclose(left.residual, residual, rtol=1e-9)
    np.testing.assert_allclose(left.variance, 1 / precision.diagonal(), rtol=1e-9)
    assert (left.effective_samples() == 1).all()


def test_sparse_components_have_none():
    x, y = data()
    parts = {"kernel": RBF(), "mean": Constant(), "likelihood": Gaussian(0.1)}
    model = FullyBayesianSGPR(**parts, num_inputs=1, num_inducing=4).double()
    rows = torch.as_tensor(x)[:, None], torch.as_tensor(y)
    model.initialise(*rows, generator=torch.Generator().manual_seed(0))
    with pytest.raises(NotAvailable, match="components of HyperparameterMixture are each a SGPR"):
        model.condition(*rows).leave_one_out()
