"""Distribution functions and quantiles against SciPy's, and against each other."""

import pytest
import torch
from scipy import stats
from torch.distributions import (
    Categorical,
    Gamma,
    Geometric,
    Laplace,
    MixtureSameFamily,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    TransformedDistribution,
    Weibull,
)
from torch.distributions.transforms import ExpTransform

from gpx.likelihoods import Beta as BetaLikelihood
from gpx.likelihoods import Gamma as GammaLikelihood
from gpx.likelihoods import Laplace as LaplaceLikelihood
from gpx.likelihoods import StudentT as StudentLikelihood
from gpx.likelihoods import quantiles
from gpx.likelihoods.quantiles import cdf, cdf_before, central_interval, quantile, select_rows

pytestmark = pytest.mark.usefixtures("float64_by_default")

DOUBLE = {"dtype": torch.float64}
MEAN = torch.tensor([-1.0, 0.0, 2.5], **DOUBLE)
VARIANCE = torch.tensor([1e-4, 0.3, 4.0], **DOUBLE)
LAWS = {
    "Student's t": StudentT(
        torch.tensor([2.1, 5.0, 60.0], **DOUBLE), MEAN, torch.tensor(0.7, **DOUBLE)
    ),
    "Laplace": Laplace(MEAN, torch.tensor(0.2, **DOUBLE)),
    "normals far apart": MixtureSameFamily(
        Categorical(torch.tensor([[0.5, 0.5], [0.97, 0.03], [0.3, 0.7]], **DOUBLE)),
        Normal(torch.tensor([[-50.0, 50.0]] * 3, **DOUBLE), torch.tensor(1e-3, **DOUBLE)),
    ),
    "mixture of Student's t": StudentLikelihood(0.1, 2.5).double().predictive(MEAN, VARIANCE),
    "mixture of Laplace": LaplaceLikelihood(0.05).double().predictive(MEAN, VARIANCE),
}


def test_students_t():
    law, y = LAWS["Student's t"], torch.tensor([-3.0, 0.1, 9.0])
    for place, df in enumerate((2.1, 5.0, 60.0)):
        expected = stats.t(df, float(MEAN[place]), 0.7)
        assert float(cdf(law, y)[place]) == pytest.approx(expected.cdf(float(y[place])), rel=1e-12)
        found = float(quantile(law, 0.975)[place])
        assert found == pytest.approx(expected.ppf(0.975), rel=1e-10)


@pytest.mark.parametrize("shape", [0.5, 1.0, 7.0])
def test_gamma(shape):
    law, expected = Gamma(torch.tensor([shape]), torch.tensor([2.0])), stats.gamma(shape, scale=0.5)
    for q in (0.025, 0.5, 0.975):
        assert float(quantile(law, q)) == pytest.approx(expected.ppf(q), rel=1e-8)


def test_mixtures_of_laws_above_zero():
    weights = Categorical(torch.tensor([[0.5, 0.5], [0.1, 0.9]]))
    scale = torch.tensor([[1.0, 1.1], [0.01, 5.0]])
    for law in (Weibull(scale, torch.tensor(1.5)), Gamma(torch.tensor(0.7), scale)):
        mixture = MixtureSameFamily(weights, law)
        for q in (0.025, 0.5, 0.975):
            found = cdf(mixture, quantile(mixture, q))
            torch.testing.assert_close(found, torch.full((2,), q), rtol=1e-8, atol=0)


@pytest.mark.parametrize("shape", [0.01, 0.05, 0.3, 4.0, 1e4])
def test_ends_of_intervals_of_positive_numbers_keep_their_digits(shape):
    """Of small shapes they are many orders of magnitude below the mean and the deviation."""
    expected = stats.gamma(shape, scale=2.0 / shape)
    with torch.no_grad():
        law = GammaLikelihood(shape).predictive(torch.tensor([2.0]).log(), torch.zeros(1))
    for q in (0.025, 0.2, 0.5, 0.975):
        found = float(quantile(law, q))
        assert found == pytest.approx(expected.ppf(q), rel=1e-5)
        assert float(cdf(law, torch.tensor([found]))) == pytest.approx(q, rel=1e-9)


@pytest.mark.parametrize("rate", [0.3, 40.0])
def test_poisson(rate):
    y, law = torch.tensor([-1.0, 0.0, 3.0, 41.0]), Poisson(torch.full((4,), rate))
    expected = torch.from_numpy(stats.poisson.cdf(y.numpy(), rate))
    # torch's incomplete gamma function has no more digits
    torch.testing.assert_close(cdf(law, y), expected, rtol=2e-9, atol=0)
    torch.testing.assert_close(
        cdf_before(law, y) + law.log_prob(y.clamp_min(0.0)).exp() * (y >= 0), cdf(law, y)
    )


@pytest.mark.parametrize("count", [0.2, 3.0, 1e6])
def test_negative_binomial(count):
    y, logits = torch.tensor([-1.0, 0.0, 3.0, 41.0]), torch.tensor([-2.0, -1.0, 0.5, 3.0])
    law = NegativeBinomial(count, logits=logits)
    theirs = stats.nbinom(count, torch.sigmoid(-logits).numpy())
    expected = torch.from_numpy(theirs.cdf(y.numpy()))
    torch.testing.assert_close(cdf(law, y), expected, rtol=1e-8, atol=1e-300)
    some = select_rows(law, torch.tensor([2, 0]))
    assert torch.equal(cdf(some, y[[2, 0]]), cdf(law, y)[[2, 0]])
    if count < 10.0:
        ends = torch.stack(central_interval(law, 0.95))
        assert ends.tolist() == [theirs.ppf(0.025).tolist(), theirs.ppf(0.975).tolist()]


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("q", [0.001, 0.025, 0.5, 0.8, 0.975])
def test_a_quantile_is_where_the_distribution_function_has_its_probability(name, q):
    law = LAWS[name]
    with torch.no_grad():
        at = quantile(law, q)
        around = 1e-9 * (at.abs() + law.stddev)
        # a distribution function that is flat there has its probability at every point
        assert bool((cdf(law, at - around) <= q + 1e-14).all())
        assert bool((cdf(law, at + around) >= q - 1e-14).all())


def test_no_rows_have_no_quantiles():
    """A mixture cannot check the values of none against the support of its components."""
    law = BetaLikelihood().predictive(torch.zeros(0), torch.ones(0))
    assert quantile(law, 0.3).shape == (0,)
    assert [end.shape for end in central_interval(law, 0.9)] == [(0,), (0,)]


def test_one_probability_for_each_row():
    law = LAWS["mixture of Student's t"]
    with torch.no_grad():
        torch.testing.assert_close(
            quantile(law, torch.tensor([0.1, 0.5, 0.9])),
            torch.stack([quantile(law, q)[place] for place, q in enumerate((0.1, 0.5, 0.9))]),
        )


class WithoutCdf(Normal):
    """A law that has moments alone."""

    def cdf(self, value):
        raise NotImplementedError

    def icdf(self, value):
        raise NotImplementedError


def test_intervals_are_quantiles_or_normal():
    normal = Normal(torch.tensor([1.0]), torch.tensor([2.0]))
    lower, upper = central_interval(normal, 0.95)
    assert lower.item() == pytest.approx(1 - 1.959964 * 2, rel=1e-5)
    mixture = MixtureSameFamily(
        Categorical(torch.ones(1, 2)), Normal(torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2))
    )
    lower, upper = central_interval(mixture, 0.95)
    assert mixture.cdf(upper).item() == pytest.approx(0.975, abs=1e-12)
    assert lower.item() == pytest.approx(-upper.item(), rel=1e-10)
    # without a distribution function: the normal interval of the same moments
    same = central_interval(WithoutCdf(torch.tensor([1.0]), torch.tensor([2.0])), 0.95)
    assert same == central_interval(normal, 0.95)


class PoissonByProbabilities(Geometric):
    """Counts with probabilities alone, as most of torch's are."""

    def __init__(self, rate):
        super().__init__(torch.full_like(rate, 0.5))
        self.same = Poisson(rate)

    @property
    def mean(self):
        return self.same.mean

    @property
    def variance(self):
        return self.same.variance

    def log_prob(self, value):
        return self.same.log_prob(value)


@pytest.mark.parametrize("rate", [0.01, 0.7, 12.0, 300.0, 9000.0])
def test_intervals_of_counts_are_exact_quantiles(rate):
    law = stats.poisson(rate)
    for made in (Poisson, PoissonByProbabilities):
        lower, upper = central_interval(made(torch.tensor([rate, rate])), 0.95)
        assert lower.tolist() == [law.ppf(0.025)] * 2
        assert upper.tolist() == [law.ppf(0.975)] * 2


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("kind", [Weibull, Gamma])
def test_nothing_lies_below_the_end_of_a_law_of_positive_numbers(kind, validate):
    law = kind(torch.tensor([1.5, 2.0]), torch.tensor([1.2, 0.7]), validate_args=validate)
    y = torch.tensor([[-1.0, 0.3], [2.0, -1e-3]])
    found = cdf(law, y)
    assert found[0, 0] == found[1, 1] == 0.0
    assert found[0, 1] == law.cdf(torch.tensor([1.0, 0.3]))[1]
    assert found[1, 0] == law.cdf(torch.tensor([2.0, 1.0]))[0]


def test_the_cdf_needs_no_mean():
    log_normal = TransformedDistribution(Normal(torch.zeros(2), torch.ones(2)), ExpTransform())
    with pytest.raises(NotImplementedError):
        _ = log_normal.mean
    found = cdf(log_normal, torch.tensor([-1.0, 2.0]))
    assert found[0] == 0.0
    assert float(found[1]) == pytest.approx(stats.lognorm(1.0).cdf(2.0), rel=1e-6)


@pytest.mark.parametrize("shape", [(200,), (100, 2)])
def test_rows_that_have_settled_stay_settled_and_cost_nothing_more(monkeypatch, shape):
    """Some rows need many steps; they made all others move again, and be evaluated with them."""
    generator = torch.Generator().manual_seed(0)
    mean = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    law = BetaLikelihood(precision=20.0).double().predictive(mean, torch.full_like(mean, 0.05))
    evaluated, incomplete = [], quantiles.betainc

    def noted(a, b, y):
        evaluated.append(a.size)
        return incomplete(a, b, y)

    monkeypatch.setattr(quantiles, "betainc", noted)
    with torch.no_grad():
        found = quantile(law, 0.025)
    steps = sum(evaluated) / law.component_distribution.batch_shape.numel()
    assert len(shape) == 2 or steps < 12
    assert (cdf(law, found) / 0.025 - 1.0).abs().max() < 1e-7
