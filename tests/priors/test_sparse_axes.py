"""The prior of sparse axes against the integral over its common scale."""

import math

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import ConfigError
from gpx.kernels import Matern52
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import ExactGP
from gpx.priors import Priors, SparseAxes


def half_cauchy(value):
    return math.log(2.0 / math.pi) - torch.log1p(value.square())


def integrated(lengthscales, shrinkage):
    """Log density as it is defined, by a sum over log tau that needs no trick."""
    cube = torch.tensor(lengthscales, dtype=torch.float64) / math.sqrt(12.0)
    log_tau = torch.linspace(-60.0, 60.0, 200_001, dtype=torch.float64)
    tau = log_tau.exp()
    rho = cube**-2.0
    jacobian = (2.0 * cube**-3.0 / math.sqrt(12.0)).log().sum()
    logs = half_cauchy(tau / shrinkage) - math.log(shrinkage) + log_tau + jacobian
    for each in rho:
        logs += half_cauchy(each / tau) - log_tau
    return logs.logsumexp(0) + (log_tau[1] - log_tau[0]).log()


@pytest.mark.parametrize("shrinkage", [0.1, 3.0])
@pytest.mark.parametrize(
    "lengthscales",
    [
        [0.7],
        [1.0, 1.0],
        [0.1, 1e4],
        [1e-3] * 20 + [1e5] * 20,
        [3.0] * 300,
        np.exp(3.0 * np.random.default_rng(0).normal(size=50)).tolist(),
    ],
    ids=["one", "equal", "apart", "halves", "many", "any"],
)
def test_the_density_is_the_integral_over_the_common_scale(lengthscales, shrinkage):
    found = SparseAxes(shrinkage).log_prob(torch.tensor(lengthscales, dtype=torch.float64))
    assert found.shape == ()
    assert float(found) == pytest.approx(float(integrated(lengthscales, shrinkage)), abs=1e-8)


def test_gradients_are_those_of_the_density():
    values = torch.rand(3, 4, dtype=torch.float64) + 0.1
    torch.autograd.gradcheck(SparseAxes().log_prob, values.requires_grad_())


def test_rows_of_lengthscales_are_independent_and_one_lengthscale_is_a_row_of_one():
    prior, values = SparseAxes(), torch.rand(3, 4, dtype=torch.float64) + 0.1
    apart = torch.stack([prior.log_prob(row) for row in values])
    torch.testing.assert_close(prior.log_prob(values), apart)
    torch.testing.assert_close(prior.log_prob(values[0, 0]), prior.log_prob(values[0, :1]))


def test_the_density_of_one_lengthscale_integrates_to_one():
    logs = torch.linspace(-40.0, 40.0, 4001, dtype=torch.float64).unsqueeze(1)
    densities = (SparseAxes().log_prob(logs.exp()) + logs[:, 0]).exp()
    assert float(densities.sum() * (logs[1, 0] - logs[0, 0])) == pytest.approx(1.0, abs=1e-8)


def test_an_input_that_matters_tells_of_the_others():
    """With a short lengthscale beside them the common scale is larger, and others may be short."""
    prior = SparseAxes()

    def preference(beside):
        short, long = (torch.tensor([beside, own]).double() for own in (1.0, 100.0))
        return float(prior.log_prob(short) - prior.log_prob(long))

    assert preference(0.5) > preference(50.0) + 1.0


def test_the_joint_density_counts_once():
    kernel = Matern52(ard_num_dims=3, lengthscale=[1.0, 5.0, 30.0])
    model = ExactGP(kernel=kernel, mean=Constant(), likelihood=Gaussian(0.1)).double()
    found = Priors({"lengthscale": SparseAxes()}).log_prob(model)
    torch.testing.assert_close(found, SparseAxes().log_prob(kernel.lengthscale).detach())


@pytest.mark.filterwarnings("ignore:the 2 chains have not converged")  # they are short
def test_chains_find_the_inputs_that_matter():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(25, 6))
    y = np.sin(6.0 * x[:, 3]) + 0.05 * rng.normal(size=25)
    short = ("optimizer.chains=2", "optimizer.burn_in=20", "optimizer.iterations=20")
    options = (
        "approx=fully_bayesian",
        "prior=saas",
        "data.test_fraction=0",
        *short,
        "optimizer.thin=5",
    )
    fitted = gpx.fit(x, y, *options, "trainer.figures=false", quiet=True, keep=False)
    medians = np.median(fitted.hyperparameters["kernel.lengthscale"], axis=0)
    assert medians.argmin() == 3
    assert np.sort(medians)[1] > 10.0 * medians[3]


def test_a_shrinkage_that_is_not_positive_is_refused():
    with pytest.raises(ConfigError, match="shrinkage=0 of a sparse-axes prior must be positive"):
        SparseAxes(0)
