"""The CRPS of every law against the integral that defines it, and that it is proper."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch.distributions import (
    Beta,
    Categorical,
    Gamma,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
)

from gpx.data.target_transform import TargetTransform, TransformedLaw
from gpx.likelihoods import Gamma as GammaLikelihood
from gpx.likelihoods import Laplace as LaplaceLikelihood
from gpx.likelihoods import NegativeBinomial as NegativeBinomialLikelihood
from gpx.likelihoods import Poisson as PoissonLikelihood
from gpx.likelihoods import StudentT as StudentLikelihood
from gpx.likelihoods.quantiles import cdf
from gpx.metrics import crps

pytestmark = [
    pytest.mark.usefixtures("float64_by_default"),
    pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning"),
]

MEAN = torch.tensor([-1.0, 0.0, 2.5]).double()
VARIANCE = torch.tensor([0.01, 0.3, 4.0]).double()
Y = torch.tensor([-1.1, 3.0, 0.4]).double()


def integral(distribution, y, low, high, kinks=()):
    """Of (F(t) - [t >= y])^2 by adaptive quadrature between points, and beyond them."""
    points = sorted({low, y, high, *(k for k in kinks if low < k < high)})
    total = integrate.quad(lambda t: distribution(t) ** 2, -np.inf, low, epsabs=1e-12)[0]
    total += integrate.quad(lambda t: (1.0 - distribution(t)) ** 2, high, np.inf, epsabs=1e-12)[0]
    for left, right in pairwise(points):
        above = float(left >= y)
        part = integrate.quad(lambda t, a=above: (distribution(t) - a) ** 2, left, right)
        total += part[0]
    return total


def mixed(law, row):
    """The distribution function of one row of a mixture of normals, by SciPy."""
    shares = law.mixture_distribution.probs[row].detach().numpy()
    places = law.component_distribution.mean[row].detach().numpy()
    widths = law.component_distribution.stddev[row].detach().numpy()
    return (lambda t: float((shares * stats.norm.cdf(t, places, widths)).sum())), places


def test_students_t():
    law = StudentT(torch.tensor([1.5, 4.0, 50.0]), MEAN, VARIANCE.sqrt())
    for row, df in enumerate((1.5, 4.0, 50.0)):
        one = stats.t(df, float(MEAN[row]), float(VARIANCE[row].sqrt()))
        expected = integral(one.cdf, float(Y[row]), -30.0, 30.0, np.linspace(-10.0, 10.0, 41))
        assert float(crps(law, Y)[row]) == pytest.approx(expected, rel=1e-8)


def test_laplace():
    law = Laplace(MEAN, VARIANCE)
    for row in range(3):
        one = stats.laplace(float(MEAN[row]), float(VARIANCE[row]))
        around = [float(MEAN[row]), *np.linspace(-10.0, 10.0, 41)]
        expected = integral(one.cdf, float(Y[row]), -30.0, 30.0, around)
        assert float(crps(law, Y)[row]) == pytest.approx(expected, rel=1e-8)


SHAPES = torch.tensor([[0.02, 0.3, 4.0], [0.9, 3.0, 60.0]]).double()
SHARES = torch.tensor([[0.2, 0.5, 0.3], [1.0, 2.0, 3.1]]).double()  # one of them sums to 1 - eps


@pytest.mark.parametrize("kind", ["gamma", "beta"])
def test_gamma_and_beta_laws_and_their_mixtures(kind):
    """Targets of 1e-30 of the mean, too, as shapes below 0.1 give; 1e260 was the score of some
    mixtures, whose shares sum to one only up to rounding."""
    make = (
        (lambda s: Gamma(s, 0.5 * s.sqrt())) if kind == "gamma" else (lambda s: Beta(s, s.sqrt()))
    )
    mixed = MixtureSameFamily(Categorical(probs=SHARES), make(SHAPES))
    top = 200.0 if kind == "gamma" else 1.0
    ends = torch.linspace(-150.0, 0.0, 30_001).exp(), torch.linspace(-30.0, -0.7, 9_001).exp()
    line = top * torch.cat([ends[0], torch.linspace(0.0, 1.0, 30_001), 1.0 - ends[1]])
    for y in (torch.tensor([1e-30, 0.4]).double(), torch.tensor([0.7, 1e-5]).double()):
        for law in (mixed, make(SHAPES[:, 0]), make(SHAPES[:, 1])):
            t = torch.cat([line, y, y * (1.0 + 1e-13)]).sort().values
            with torch.no_grad():
                below = cdf(law, t[:, None].expand(-1, 2))
            squares = (below - (t[:, None] >= y).double()).square()
            dense = torch.trapezoid(squares, t, dim=0)
            torch.testing.assert_close(crps(law, y), dense, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3, 1e6])
def test_mixtures_of_equal_parts_are_as_exact_as_one(size):
    """Narrow ones of shares, too, of which nodes evenly over 0 to 1 see little."""
    y = torch.tensor([0.02, 0.6]).double()
    for a, b in ((size, 20.0 * size), (3.0 * size, size)):
        one = torch.tensor([a, a]).double(), torch.tensor([b, b]).double()
        parts = [part[:, None].expand(2, 2) for part in one]
        for kind in (Beta, Gamma):
            mixed = MixtureSameFamily(Categorical(probs=SHARES[:, :2]), kind(*parts))
            torch.testing.assert_close(crps(mixed, y), crps(kind(*one), y), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", ["normal", "laplace", "student"])
def test_mixtures(kind):
    if kind == "student":
        law = StudentLikelihood(0.3, 2.5).double().predictive(MEAN, VARIANCE)
    elif kind == "laplace":
        law = LaplaceLikelihood(0.2).double().predictive(MEAN, VARIANCE)
    else:
        parts = Normal(MEAN[:, None] + torch.tensor([-0.5, 0.0, 2.0]), torch.tensor(0.4))
        law = MixtureSameFamily(Categorical(torch.tensor([[0.2, 0.5, 0.3]] * 3)), parts)
    with torch.no_grad():
        found = crps(law, Y)
    for row in range(3):
        one, places = mixed(law, row)
        expected = integral(one, float(Y[row]), -25.0, 25.0, places)
        assert float(found[row]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mean", [0.0, 3.0, 7.0])
def test_counts(mean):
    """Against the sum over every count."""
    latent = torch.tensor([mean, mean + 0.5])
    many = torch.arange(60_000, dtype=torch.float64)[:, None]
    mixture = PoissonLikelihood().double().predictive(latent, torch.tensor([0.1, 0.3]))
    y = mixture.mean.floor() + torch.tensor([0.0, 5.0])
    for law, density, precision in (
        (mixture, mixture.mixture, 1e-5),
        (mixture, mixture, 1e-3),  # of f, not of the mixture's nodes
        (Poisson(latent.exp()), Poisson(latent.exp()), 1e-7),
    ):
        probabilities = density.log_prob(many.expand(-1, 2)).exp().cumsum(0)
        expected = (probabilities - (many >= y).double()).square().sum(0)
        torch.testing.assert_close(crps(law, y), expected, rtol=precision, atol=0)


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_overdispersed_counts(mean):
    """Against the sum over every count."""
    latent, many = torch.tensor([mean, mean + 0.5]), torch.arange(20_000, dtype=torch.float64)
    likelihood = NegativeBinomialLikelihood(0.3).double()
    with torch.no_grad():
        mixture = likelihood.predictive(latent, torch.tensor([0.1, 0.3]))
        y = mixture.mean.floor() + torch.tensor([0.0, 5.0])
        for law in (mixture, NegativeBinomial(torch.tensor([0.5, 3.0]), logits=latent)):
            probabilities = law.log_prob(many[:, None].expand(-1, 2)).exp().cumsum(0)
            expected = (probabilities - (many[:, None] >= y).double()).square().sum(0)
            torch.testing.assert_close(crps(law, y), expected, rtol=1e-5, atol=0)


def test_overdispersed_counts_far_from_zero():
    """Beyond 4,096 steps are shares of where they are; the sum over every count is the truth."""
    mean, variance = torch.tensor([7.0, 8.5]).double(), torch.tensor([0.3, 0.1]).double()
    law = NegativeBinomialLikelihood(0.1).double().predictive(mean, variance)
    y = torch.tensor([900.0, 6000.0]).double()
    with torch.no_grad():
        below = cdf(law, torch.arange(60_000).double()[:, None].expand(-1, 2))
        passed = torch.arange(60_000)[:, None] >= y
        want = (below - passed.double()).square().sum(0)
        assert (1.0 - below[-1]).max() < 1e-6
        torch.testing.assert_close(crps(law, y), want, rtol=1e-4, atol=0.0)


def test_shares_in_single_precision_of_precise_counts():
    """Whose sum is one to 1e-7 only: no rest of probability is summed to the last count."""
    rates = torch.linspace(0.5, 8.0, 50)[None]
    exact = MixtureSameFamily(Categorical(torch.ones(1, 50)), Poisson(rates))
    single = MixtureSameFamily(Categorical(torch.ones(1, 50).float()), Poisson(rates))
    y = torch.tensor([2.0])
    torch.testing.assert_close(crps(single, y), crps(exact, y), rtol=1e-5, atol=0)


def test_counts_in_single_precision(monkeypatch):
    """Whose shares sum to a little less than one, so that no count has probability one below it."""
    asked = []
    monkeypatch.setattr(
        "gpx.metrics.ranked_probability.cdf", lambda *given: asked.append(0) or cdf(*given)
    )
    law = PoissonLikelihood().double().predictive(torch.full((40,), 2.0), torch.rand(40) * 0.3)
    y = law.mean.floor()
    found = crps(law, y)
    asked.clear()
    share = Categorical(law.mixture_distribution.probs.float())
    single = MixtureSameFamily(share, Poisson(law.component_distribution.rate.float()))
    torch.testing.assert_close(crps(single, y.float()), found, rtol=1e-4, atol=0)
    assert len(asked) < 400


def test_a_mixture_of_mixtures_is_the_flat_one():
    """Which only quadrature has, but for counts: to the error that is stated."""
    shift = torch.tensor([0.0, 0.4])
    share = Categorical(torch.full((3, 2), 0.5))
    for likelihood, y, precision in (
        (PoissonLikelihood(), Y.abs().ceil(), 1e-8),
        (StudentLikelihood(1.0, 4.0), Y, 1e-3),
    ):
        parts = likelihood.double().predictive(0.3 * MEAN[:, None] + shift, torch.full((3, 2), 0.3))
        inner = parts.component_distribution
        flat = {n: getattr(inner, n).detach().flatten(-2) for n in inner.arg_constraints}
        weights = 0.5 * parts.mixture_distribution.probs.flatten(-2)
        expected = MixtureSameFamily(Categorical(weights), type(inner)(**flat))
        with torch.no_grad():
            found = crps(MixtureSameFamily(share, parts), y)
        torch.testing.assert_close(found, crps(expected, y), rtol=precision, atol=0)


@pytest.mark.parametrize("shape", [0.3, 1.0, 20.0])
def test_positive_numbers(shape):
    """Closed form of the gamma law (Scheuerer and Möller 2015)."""
    with torch.no_grad():
        law = GammaLikelihood(shape).predictive(torch.zeros(5), torch.zeros(5))
    own, more = (stats.gamma(a, scale=1.0 / shape) for a in (shape, shape + 1.0))
    y = own.ppf([0.1, 0.3, 0.5, 0.9, 0.999])
    wanted = y * (2.0 * own.cdf(y) - 1.0) - 2.0 * more.cdf(y) + 1.0
    wanted -= 1.0 / (shape * special.beta(0.5, shape))
    np.testing.assert_allclose(crps(law, torch.from_numpy(y)), wanted, rtol=1e-4)


@pytest.mark.parametrize("deviation", [0.01, 1.0, 3.2])
def test_positive_numbers_over_orders_of_magnitude(deviation):
    """Closed form of the lognormal law (Baran and Lerch 2015)."""
    z = torch.tensor([-2.0, -0.5, 0.0, 1.0, 2.0])
    y, phi = (1.0 + deviation * z).exp(), torch.special.ndtr
    narrow = torch.tensor(deviation)
    twice = phi(z - narrow) + phi(narrow / 2.0**0.5) - 1.0
    wanted = y * (2.0 * phi(z) - 1.0) - 2.0 * torch.exp(1.0 + 0.5 * narrow.square()) * twice
    law = LogNormal(torch.ones(5), narrow)
    torch.testing.assert_close(crps(law, y), wanted, rtol=1e-3, atol=0.0)


def test_a_transformed_law():
    """exp(Z) against the closed form of the lognormal law (Baran and Lerch 2015)."""
    m, s, y = 0.3, 0.6, torch.tensor([0.2, 1.4, 9.0])
    law = TransformedLaw(Normal(torch.full((3,), m), s), TargetTransform("log"), 0.0, 1.0)
    z = (np.log(y.numpy()) - m) / s
    expected = y.numpy() * (2 * stats.norm.cdf(z) - 1) - 2 * np.exp(m + s * s / 2) * (
        stats.norm.cdf(z - s) + stats.norm.cdf(s / np.sqrt(2)) - 1
    )
    torch.testing.assert_close(crps(law, y), torch.from_numpy(expected), rtol=1e-3, atol=0)


def test_several_outputs_are_scored_each_alone():
    law = Normal(torch.stack([MEAN, -MEAN], 1), torch.stack([VARIANCE, VARIANCE + 1.0], 1))
    y = torch.stack([Y, Y.flip(0)], 1)
    for place in range(2):
        alone = crps(Normal(law.loc[:, place], law.scale[:, place]), y[:, place])
        assert torch.equal(crps(law, y)[:, place], alone)


@pytest.mark.parametrize("wrong", ["wider", "narrower", "shifted"])
@pytest.mark.parametrize("name", ["normal", "student", "counts"])
def test_the_law_of_the_targets_scores_best(name, wrong):
    """Exact expectations for counts; otherwise midpoint quantiles, so that nothing is by chance."""
    scale = {"wider": 1.4, "narrower": 0.7, "shifted": 1.0}[wrong]
    shift = 0.4 if wrong == "shifted" else 0.0
    levels = (torch.arange(4000).double() + 0.5) / 4000
    if name == "counts":
        y = torch.arange(200).double()
        weight = Poisson(torch.tensor(6.0)).log_prob(y).exp()
        true, other = Poisson(torch.full((200,), 6.0)), Poisson(torch.full((200,), 6.0 * scale))
        other = Poisson(other.rate + 2.0 * shift)
    else:
        weight = torch.full((4000,), 1 / 4000)
        law, make = (stats.norm, Normal) if name == "normal" else (stats.t(5.0), _five)
        y = torch.from_numpy(law.ppf(levels.numpy()))
        true, other = (make(torch.full((4000,), at), by) for at, by in ((0.0, 1.0), (shift, scale)))
    gain = float((weight * (crps(other, y) - crps(true, y))).sum())
    assert gain > 0.005


def _five(place, scale):
    return StudentT(5.0, place, scale)


def test_a_law_without_a_distribution_function():
    class Plain(torch.distributions.Distribution):
        support = torch.distributions.constraints.real
        mean = torch.zeros(2)
        stddev = torch.ones(2)

    with pytest.raises(NotImplementedError):
        crps(Plain(validate_args=False), torch.zeros(2))
