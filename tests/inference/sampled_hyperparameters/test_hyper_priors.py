"""The prior density of a vector of hyperparameters."""

import math

import pytest
import scipy.stats
import torch
from torch.distributions import Gamma

from gpx.inference.sampled_hyperparameters.hyper_priors import FACTOR, HyperPriors
from gpx.kernels import RBF, Linear, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import FullyBayesianGP
from gpx.priors import LogNormal, Normal, Prior, Priors, SparseAxes


def model(**priors):
    made = FullyBayesianGP(kernel=RBF(2), mean=Constant(), likelihood=Gaussian(0.1)).double()
    if priors:
        made.hyperpriors = Priors({name.replace("__", "."): law for name, law in priors.items()})
    return made


def density(made, u):
    return HyperPriors(made, made.hyper_position(), 2).log_density(u)


@pytest.mark.parametrize(
    "law",
    [LogNormal(1.5, 3.0), Gamma(torch.tensor(2.0), torch.tensor(3.0)), None],
    ids=["log-normal", "gamma", "none"],
)
def test_the_density_of_a_logarithm_integrates_to_one(law):
    """Along the first lengthscale, relative to the others: with the Jacobian, in u."""
    made = model(lengthscale=law) if law is not None else model()
    grid = torch.linspace(-12.0, 12.0, 4001).double()
    whole = made.hyper_position().read()
    logs = torch.stack([density(made, torch.cat([u[None], whole[1:]])) for u in grid])
    # the same with the first lengthscale left out
    if law is None:
        alone = -0.5 * ((grid - math.log(2.0 * 2.0**0.5)) / math.log(FACTOR)).square()
    else:
        prior = Priors({"lengthscale": law}).parameters["lengthscale"]
        alone = prior.log_prob(grid.exp()) + grid
        assert float(torch.trapezoid(alone.exp(), grid)) == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(logs - logs[2000], alone - alone[2000], rtol=1e-10, atol=1e-10)


def test_it_is_that_of_priors_with_the_jacobian_where_all_have_one():
    made = model(
        lengthscale=LogNormal(1.0, 2.0),
        outputscale=LogNormal(3.0, 2.0),
        noise_variance=LogNormal(0.1, 2.0),
        mean__constant=Normal(0.5, 2.0),
    )
    u = torch.tensor([0.3, -0.2, 0.8, 0.9, -2.0]).double()
    place = made.hyper_position()
    names = list(place.names)
    positive = [
        name != "constant" for name in names for _ in range(2 if name == "lengthscale" else 1)
    ]
    place.move(u)
    want = made.hyperpriors.log_prob(made) + u[torch.tensor(positive)].sum()
    torch.testing.assert_close(density(made, u), want)


def test_a_hyperparameter_without_a_prior_is_around_its_median():
    """log-normal about 2 sqrt(2 inputs), roots half-Cauchy about those of 1 and 0.05; the mean's
    constant about what it was made with."""
    made = model()
    made.mean.constant.data.fill_(0.7)  # as a fit to the data would
    place = made.hyper_position()
    u = HyperPriors(made, place, 2).centre
    place.move(u)
    assert made.kernel.lengthscale.tolist() == pytest.approx([8.0**0.5] * 2)
    assert made.kernel.outputscale.item() == pytest.approx(1.0)
    assert made.likelihood.noise_variance.item() == pytest.approx(0.05)
    assert made.mean.constant.item() == pytest.approx(0.0)
    gradient = torch.autograd.functional.jacobian(lambda v: density(made, v), u)
    assert gradient.abs().max() < 1e-12
    # half a nat below on the lower side; of the half-Cauchy one the curvature is 1/4
    of = {"lengthscale": 2 * [math.log(FACTOR)], "outputscale": [math.log(FACTOR)]}
    deviations = [s for name in place.names for s in of.get(name.rpartition(".")[2], [1.0])]
    for entry, deviation in enumerate(deviations[:-1]):
        low = u - deviation * torch.eye(len(u)).double()[entry]
        assert float(density(made, u) - density(made, low)) == pytest.approx(0.5)
    found = torch.autograd.functional.hessian(lambda v: density(made, v), u)
    assert float(found[-1, -1]) == pytest.approx(-0.25)


def test_a_positive_hyperparameter_of_no_known_kind_is_log_normal():
    """Within ``FACTOR`` of the value with which the model was made."""
    made = FullyBayesianGP(
        kernel=Periodic(period=3.0), mean=Constant(), likelihood=Gaussian(0.1)
    ).double()
    place = made.hyper_position()
    (period,) = (i for i, name in enumerate(place.names) if name.endswith("period"))
    u = HyperPriors(made, place, 1).centre
    assert float(u[period]) == pytest.approx(math.log(3.0))
    steps = torch.zeros(2, len(u)).double()
    steps[1, period] = 2.0 * math.log(FACTOR)
    low, high = density(made, u + steps)
    assert float(low - high) == pytest.approx(2.0)


def test_noise_is_half_cauchy_in_its_standard_deviation():
    made = model()
    u = made.hyper_position().read().repeat(5, 1)
    u[:, -1] = torch.tensor([-14.0, -6.0, math.log(0.05), 0.0, 3.0])
    roots = (0.5 * u[:, -1]).exp()
    law = scipy.stats.halfcauchy(scale=0.05**0.5)
    want = torch.from_numpy(law.logpdf(roots)) + 0.5 * u[:, -1]  # with the Jacobian of log variance
    found = density(made, u)
    torch.testing.assert_close(found - found[0], want - want[0])


def test_outputscales_have_a_heavy_tail_above_alone():
    """Half-Cauchy in the root there, and log-normal below, with one slope where they meet."""
    made = model()
    u = made.hyper_position().read().repeat(5, 1)
    u[:, 2] = torch.tensor([-9.0, -3.0, 0.0, 4.0, 9.0])
    roots = (0.5 * u[3:, 2]).exp()
    above = torch.from_numpy(scipy.stats.halfcauchy.logpdf(roots)) + 0.5 * u[3:, 2]
    peak = float(scipy.stats.halfcauchy.logpdf(1.0))
    below = -0.5 * (u[:3, 2] / math.log(FACTOR)).square()
    found = density(made, u)
    torch.testing.assert_close(found - found[2], torch.cat([below, above - peak]))


def test_slopes_have_the_same_law_about_the_value_with_which_the_model_was_made():
    kernel = RBF(2) + Linear(2, slope_variance=[3.0, 3.0])
    made = FullyBayesianGP(kernel=kernel, mean=Constant(), likelihood=Gaussian(0.1)).double()
    place = made.hyper_position()
    priors = HyperPriors(made, place, 2)
    entries = [3, 4]  # after two lengthscales and an outputscale
    assert priors.centre[entries].exp().tolist() == pytest.approx([3.0, 3.0])
    assert priors.half_cauchy.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    assert priors.normal.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]


class Shared(Prior):
    """Of all entries together, whatever their number."""

    def log_prob(self, value):
        return -value.square().sum()


class Alike(Prior):
    """Of every entry, but about the mean of all."""

    def log_prob(self, value):
        return -(value - value.mean()).square()


@pytest.mark.parametrize("lengthscale", [SparseAxes(), Alike()], ids=["sparse", "of one's own"])
def test_densities_of_many_positions_are_those_of_each(lengthscale):
    made = model(
        lengthscale=lengthscale,
        outputscale=LogNormal(3.0, 2.0),
        noise_variance=Shared(),
        mean__constant=Normal(0.5, 2.0),
    )
    positions = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).double()
    apart = torch.stack([density(made, u) for u in positions])
    assert len(apart.unique()) == 3
    torch.testing.assert_close(density(made, positions), apart)


def test_lengthscales_are_longer_by_the_root_of_the_number_of_inputs():
    """As many as each part of the kernel has; of a period they have not the unit of inputs."""
    kernel = RBF(9) + RBF(active_dims=[1]) + Periodic()
    made = FullyBayesianGP(kernel=kernel, mean=Constant(), likelihood=Gaussian(0.1)).double()
    place = made.hyper_position()
    place.move(HyperPriors(made, place, 9).centre)
    found = [part.lengthscale.detach().unique().tolist() for part in made.kernel.kernels]
    assert found == [pytest.approx([6.0]), pytest.approx([2.0]), pytest.approx([2.0])]
