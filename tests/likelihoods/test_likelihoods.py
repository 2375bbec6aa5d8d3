"""One suite for every likelihood: expectations, limits, gradients and predictive distributions."""

import math

import pytest
import torch
from draws import double
from scipy import integrate, stats
from torch.special import ndtr
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.errors import ConfigError, ShapeError
from gpx.likelihoods import (
    Bernoulli,
    Gaussian,
    GaussianOutputs,
    Laplace,
    NegativeBinomial,
    Poisson,
    Softmax,
    StudentT,
)
from gpx.likelihoods.gaussian import expected_log_normal
from gpx.likelihoods.softmax import class_shares

CASES = {
    "gaussian": (lambda: Gaussian(0.3), [-1.2, 0.1, 0.4, 2.0]),
    "laplace": (lambda: Laplace(0.4), [-1.2, 0.1, 0.4, 2.0]),
    "student_t": (lambda: StudentT(0.7, 3.5, num_nodes=60), [-1.2, 0.1, 0.4, 2.0]),
    "logit": (lambda: Bernoulli("logit"), [1.0, -1.0, -1.0, 1.0]),
    "logit_101": (lambda: Bernoulli("logit", num_nodes=101), [1.0, -1.0, -1.0, 1.0]),
    "probit": (lambda: Bernoulli("probit"), [1.0, -1.0, -1.0, 1.0]),
    "poisson": (lambda: Poisson(), [0.0, 1.0, 3.0, 7.0]),
}
MEAN = [0.1, 0.4, -0.9, 1.1]
VARIANCE = [0.05, 0.5, 1.5, 0.9]


@pytest.fixture(params=list(CASES))
def case(request):
    make, targets = CASES[request.param]
    likelihood = make().double()
    return likelihood, *map(double, (targets, MEAN, VARIANCE))


def _integral(likelihood, y, mean, variance):
    """Adaptive quadrature of E log p(y | f): an oracle independent of Gauss-Hermite nodes."""
    scale = math.sqrt(variance)

    def integrand(f):
        value = likelihood.log_prob(y.view(1), torch.tensor([f], dtype=torch.float64))
        return value.item() * stats.norm.pdf(f, mean, scale)

    points = sorted({min(max(y.item(), mean - 9 * scale), mean + 9 * scale), mean})
    return integrate.quad(
        integrand, mean - 10 * scale, mean + 10 * scale, points=points, limit=400
    )[0]


def test_expectation_equals_adaptive_integration(case):
    likelihood, y, mean, variance = case
    with torch.no_grad():
        found = likelihood.expected_log_prob(y, mean, variance)
        for i in range(len(y)):
            exact = _integral(likelihood, y[i], mean[i].item(), variance[i].item())
            # 20 nodes leave about 1e-5 for the logistic at a variance of 1.5
            assert found[i].item() == pytest.approx(exact, abs=3e-5)


def test_zero_variance_gives_the_log_density_and_finite_gradients(case):
    likelihood, y, mean, _ = case
    mean = mean.clone().requires_grad_(True)
    variance = torch.zeros_like(mean).requires_grad_(True)
    found = likelihood.expected_log_prob(y, mean, variance)
    torch.testing.assert_close(found, likelihood.log_prob(y, mean), rtol=0, atol=1e-9)
    gradients = torch.autograd.grad(found.sum(), [mean, variance])
    assert all(torch.isfinite(g).all() for g in gradients)
    slope = torch.autograd.grad(likelihood.log_prob(y, mean).sum(), mean)[0]
    torch.testing.assert_close(gradients[0], slope, rtol=1e-6, atol=1e-6)


def test_laplace_at_the_kink_has_no_nan():
    likelihood = Laplace(0.5).double()
    y = torch.zeros(3, dtype=torch.float64)
    mean = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.0, 1e-320, 1e-12], dtype=torch.float64, requires_grad=True)
    found = likelihood.expected_log_prob(y, mean, variance)
    torch.testing.assert_close(
        found, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-5
    )  # -log(2 * 0.5) = 0
    found.sum().backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(variance.grad).all()


def test_gradients_match_finite_differences(case):
    likelihood, y, mean, variance = case
    inputs = [t.clone().requires_grad_(True) for t in (mean, variance)]
    assert torch.autograd.gradcheck(
        lambda m, v: likelihood.expected_log_prob(y, m, v), inputs, atol=1e-6
    )
    for name, parameter in likelihood.named_parameters():
        value = likelihood.expected_log_prob(y, mean, variance).sum()
        (slope,) = torch.autograd.grad(value, parameter)
        with torch.no_grad():
            original = parameter.clone()
            ends = []
            for step in (1e-5, -1e-5):
                parameter.copy_(original + step)
                ends.append(likelihood.expected_log_prob(y, mean, variance).sum().item())
            parameter.copy_(original)
        assert slope.item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("name", ["gaussian", "laplace", "logit", "probit", "poisson"])
def test_log_concave_flag(name):
    likelihood = CASES[name][0]().double()
    y = torch.tensor(CASES[name][1], dtype=torch.float64).unsqueeze(-1)
    f = torch.linspace(-4, 4, 101, dtype=torch.float64).expand(4, -1)
    curvature = likelihood.log_prob(y, f).detach().diff(dim=-1).diff(dim=-1)
    assert likelihood.log_concave
    assert curvature.max() < 1e-10


def test_student_t_is_not_log_concave():
    f = torch.linspace(-9, 9, 101, dtype=torch.float64)
    value = StudentT(0.5, 3.0).double().log_prob(torch.zeros(1).double(), f).detach()
    assert value.diff().diff().max() > 1e-3
    assert not StudentT.log_concave


@pytest.mark.parametrize("name", ["gaussian", "laplace", "student_t"])
def test_real_predictive_distributions_integrate_to_one(name):
    likelihood = CASES[name][0]().double()
    mean, variance = double([0.3]), double([0.4])
    with torch.no_grad():
        predictive = likelihood.predictive(mean, variance)
        grid = torch.linspace(-60, 60, 120_001, dtype=torch.float64)
        density = predictive.log_prob(grid.view(-1, 1)).exp().squeeze(-1)
        total = torch.trapezoid(density, grid)
    assert total.item() == pytest.approx(1.0, abs=1e-5)  # a t of 3.5 degrees has heavy tails
    assert predictive.mean.item() == pytest.approx(0.3, abs=1e-12)


def test_predictive_variances_are_exact():
    mean, variance = double([0.3]), double([0.4])
    noise = {Gaussian(0.3): 0.3, Laplace(0.4): 2 * 0.16, StudentT(0.5, 5.0): 0.25 * 5 / 3}
    for likelihood, extra in noise.items():
        found = likelihood.double().predictive(mean, variance).variance.item()
        # parameters were made in float32
        assert found == pytest.approx(0.4 + extra, rel=1e-6)
    rate = math.exp(0.3 + 0.2)
    counts = Poisson().double().predictive(mean, variance)
    assert counts.mean.item() == pytest.approx(rate, rel=1e-10)
    assert counts.variance.item() == pytest.approx(rate + rate**2 * math.expm1(0.4), rel=1e-8)


def test_expectations_of_counts_in_float32_convert_each_number_once():
    """To float64 and back, forward and backward: steps on a device have that many launches."""
    conversions = []

    class Conversions(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.overloadpacket.__name__ == "_to_copy":
                conversions.append(kwargs["dtype"])
            return function(*args, **(kwargs or {}))

    y, mean = torch.tensor([3.0]), torch.tensor([0.3], requires_grad=True)
    variance = torch.tensor([0.2], requires_grad=True)
    with Conversions():
        value = Poisson().expected_log_prob(y, mean, variance)
        assert conversions == [torch.float64] * 3 + [torch.float32]
        value.sum().backward()
    assert sorted(map(str, conversions[4:])) == ["torch.float32"] * 2 + ["torch.float64"]


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial()])
@pytest.mark.parametrize(
    ("mean", "variance"), [(1e6, 1e-3), (1e6, 4.0), (0.0, 1e12), (200.0, 1e3), (-1e3, 1e4)]
)
def test_moments_of_counts_stay_finite_however_large_the_rate(likelihood, mean, variance):
    """Networks and linear kernels extrapolate: the rate's logarithm may be a million."""
    found = likelihood.predictive(double([mean]), double([variance]))
    assert bool(found.mean.isfinite().all() & found.stddev.isfinite().all())


def test_poisson_predictive_sums_to_one():
    predictive = Poisson().double().predictive(double([0.3]), double([0.4]))
    counts = torch.arange(200, dtype=torch.float64).view(-1, 1)
    assert predictive.log_prob(counts).exp().sum().item() == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("count", [1e5, 1e6])
def test_large_counts_keep_their_digits_in_single_precision(count):
    """Terms of the log-probability are 1e7 nats for a count of a million, and a few remain."""
    y, mean = torch.tensor([count]), torch.tensor([count]).log()
    variance = 1.0 / y
    exact, single = Poisson().double(), Poisson()
    wide = [part.double() for part in (mean, variance)]
    for found, want in (
        (single.predictive(mean, variance).log_prob(y), exact.predictive(*wide).log_prob(y)),
        (single.log_prob(y, mean), exact.log_prob(y.double(), wide[0])),
        (
            single.expected_log_prob(y, mean, variance),
            exact.expected_log_prob(y.double(), *wide),
        ),
    ):
        torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_sign_probabilities(link):
    likelihood = Bernoulli(link, num_nodes=60).double()
    mean, variance = double(MEAN), double(VARIANCE)
    predictive = likelihood.predictive(mean, variance)
    both = predictive.log_prob(torch.ones(4)).exp() + predictive.log_prob(-torch.ones(4)).exp()
    torch.testing.assert_close(both, torch.ones(4).double(), rtol=0, atol=1e-14)
    link_function = stats.logistic.cdf if link == "logit" else stats.norm.cdf
    for i in range(4):
        scale = math.sqrt(VARIANCE[i])
        exact = integrate.quad(
            lambda f, i=i, s=scale: link_function(f) * stats.norm.pdf(f, MEAN[i], s), -20, 20
        )[0]
        assert predictive.probs[i].item() == pytest.approx(exact, abs=1e-7)
    torch.testing.assert_close(predictive.mean, 2 * predictive.probs - 1)
    torch.testing.assert_close(predictive.variance, 1 - predictive.mean.square())
    torch.manual_seed(0)
    draws = predictive.sample((100_000,))
    assert set(draws.unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(draws.mean(0), predictive.mean, rtol=0, atol=0.015)


def test_tails_of_the_links_do_not_underflow():
    for link in ("logit", "probit"):
        value = Bernoulli(link).log_prob(torch.ones(1), torch.tensor([-60.0]))
        assert torch.isfinite(value).all()
        assert value.item() < -50


def test_float32_follows_float64(case):
    likelihood, y, mean, variance = case
    with torch.no_grad():
        exact = likelihood.expected_log_prob(y, mean, variance)
        found = likelihood.float().expected_log_prob(y.float(), mean.float(), variance.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=2e-5, atol=2e-6)


def test_unknown_link_is_refused():
    with pytest.raises(ConfigError, match="expected one of logit, probit"):
        Bernoulli("cauchit")


# --- softmax ---------------------------------------------------------------------------------


def _softmax_problem(scale=1.0, classes=4):
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(6, classes, generator=generator, dtype=torch.float64) * 1.5
    variance = (torch.rand(6, classes, generator=generator, dtype=torch.float64) + 0.5) * scale**2
    y = double([0.0, 1.0, 3.0, 2.0, 0.0, 1.0])
    return y, mean, variance


@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0])
def test_softmax_expectation_and_probabilities_equal_monte_carlo(scale):
    y, mean, variance = _softmax_problem(scale)
    likelihood = Softmax(4)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(100_000, *mean.shape, generator=generator, dtype=torch.float64)
    f = mean + variance.sqrt() * noise
    draws = likelihood.log_prob(y, f)
    error = draws.mean(0) - likelihood.expected_log_prob(y, mean, variance)
    assert (error.abs() / (draws.std(0) / 100_000**0.5)).max() < 4.5
    shares = f.softmax(-1)
    difference = shares.mean(0) - likelihood.class_probabilities(mean, variance)
    assert (difference.abs() / (shares.std(0) / 100_000**0.5 + 1e-9)).max() < 5


def test_two_classes_are_the_logistic_in_the_difference():
    y, mean, variance = _softmax_problem(classes=2)
    y = y.clamp_max(1)
    sign = 1 - 2 * y
    logistic = Bernoulli("logit", num_nodes=101)
    exact = logistic.expected_log_prob(sign, mean[:, 0] - mean[:, 1], variance.sum(-1))
    found = Softmax(2).expected_log_prob(y, mean, variance)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)
    probability = logistic.predictive(mean[:, 0] - mean[:, 1], variance.sum(-1)).probs
    torch.testing.assert_close(
        Softmax(2).class_probabilities(mean, variance)[:, 0], probability, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("deviation", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("classes", [20, 1000])
def test_the_stated_error_of_the_softmax_holds_for_many_classes(classes, deviation):
    """Against E max of p equal Gumbel sums: the integral of 1 - F^p on a dense line."""
    mean = torch.zeros(1, classes, dtype=torch.float64)
    found = Softmax(classes).expected_logsumexp(mean, mean + deviation**2).item()
    line = torch.linspace(-20.0, 60.0, 8_001, dtype=torch.float64)
    nodes = deviation * torch.linspace(-10.0, 10.0, 1_001, dtype=torch.float64)
    mass = (-0.5 * torch.linspace(-10.0, 10.0, 1_001, dtype=torch.float64).square()).softmax(0)
    below = torch.cat([torch.exp(-torch.exp(nodes - u[:, None])) @ mass for u in line.split(1000)])
    largest = -20.0 + torch.trapezoid(1.0 - below**classes, line).item()
    expected = largest - 0.5772156649015329  # the mean of a Gumbel variable
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "deviations",
    [(4, 4, 4), (16, 16, 16), (70, 70, 70), (1, 4, 8), (0.3, 0.3, 30), (1, 10, 100), (90, 90, 1)],
)
def test_softmax_expectation_holds_for_wide_latents(deviations):
    """Against E max_c (f_c + g_c): the integral of 1 - prod_c F_c on a dense line."""
    wide = double(deviations)
    mean = wide.max() * double([0.3, -0.4, 0.1])
    found = Softmax(3).expected_logsumexp(mean[None], wide.square()[None]).item()
    far = 10.0 * wide.max().item() + 40.0
    line = torch.linspace(-far, far, 12_001, dtype=torch.float64)
    gumbel = torch.linspace(-5.0, 40.0, 1_501, dtype=torch.float64)
    mass = torch.exp(-gumbel - torch.exp(-gumbel))
    offsets = line[:, None, None] - mean - gumbel[:, None]  # P(f_c < u - g)
    below = torch.cat(
        [torch.einsum("ugc,g->uc", ndtr(o / wide), mass / mass.sum()) for o in offsets.split(500)]
    )
    largest = -far + torch.trapezoid(1.0 - below.prod(-1), line).item()
    assert found == pytest.approx(largest - 0.5772156649015329, abs=1e-3)


def test_softmax_evidence_of_wide_latents_stays_that_of_a_probability():
    generator = torch.Generator().manual_seed(0)
    deviation = 60.0 * (0.5 + torch.rand(200, 3, generator=generator, dtype=torch.float64))
    mean = 60.0 * torch.randn(200, 3, generator=generator, dtype=torch.float64)
    mean[:, 1] += 300.0
    y = torch.ones(200, dtype=torch.float64)
    assert Softmax(3).expected_log_prob(y, mean, deviation.square()).max() < 1e-3


@pytest.mark.parametrize("deviation", [1.3, 20.0])
def test_softmax_probabilities_are_the_slopes_for_wide_latents(deviation):
    _, mean, _ = _softmax_problem(deviation)
    spread = double([0.8, 1.0, 1.2, 1.1]).expand_as(mean)  # at 1.3 by both rules
    inputs = [mean.requires_grad_(True), (deviation * spread).square().requires_grad_(True)]
    likelihood = Softmax(4)
    (slope,) = torch.autograd.grad(likelihood.expected_logsumexp(*inputs).sum(), mean)
    torch.testing.assert_close(slope, likelihood.class_probabilities(*inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("deviations", [(0.0, 0.3, 9.0), (1.0, 1.0, 100.0), (0.0, 40.0, 1000.0)])
@pytest.mark.parametrize("means", [(0.3, -0.4, 0.1), (3.0, 0.0, 1.0), (0.0, 0.0, -2.0)])
def test_softmax_probabilities_are_the_slopes_for_uneven_latents(means, deviations):
    mean = (max(deviations) * double([means])).requires_grad_(True)
    variance = double([deviations]).square()
    likelihood = Softmax(3)
    (slope,) = torch.autograd.grad(likelihood.expected_logsumexp(mean, variance).sum(), mean)
    probabilities = likelihood.class_probabilities(mean.detach(), variance)
    torch.testing.assert_close(slope, probabilities, rtol=0, atol=1e-4)


def test_softmax_expectation_of_one_wide_latent_among_many_classes():
    """A latent so wide that it is far above all others or far below: half of its mean size."""
    deviation = torch.full((1, 500), 3.0, dtype=torch.float64)
    deviation[0, 0] = 1e5
    mean = torch.zeros_like(deviation)
    found = Softmax(500).expected_logsumexp(mean, deviation.square()).item()
    others = Softmax(499).expected_logsumexp(mean[:, 1:], deviation[:, 1:].square()).item()
    # E max(f, c) = s density(c / s) + c P(f < c) for c small beside s
    assert found == pytest.approx(1e5 / math.sqrt(2.0 * math.pi) + 0.5 * others, abs=1.0)


def test_softmax_gradients_for_uneven_latents():
    mean = double([[0.5, -3.0, 20.0], [1.0, 2.0, 0.0]]).requires_grad_(True)
    variance = double([[0.1, 1.0, 900.0], [1.0, 2.0, 0.5]]).requires_grad_(True)
    assert torch.autograd.gradcheck(Softmax(3).expected_logsumexp, (mean, variance), atol=1e-5)


def test_uneven_latents_of_one_row_do_not_change_the_values_of_other_rows():
    _, mean, variance = _softmax_problem()
    uneven = variance.clone()
    uneven[0, 0] = 900.0
    likelihood = Softmax(4)
    found = likelihood.expected_logsumexp(mean, uneven)
    alone = likelihood.expected_logsumexp(mean[:1], uneven[:1])
    torch.testing.assert_close(found[:1], alone, rtol=1e-12, atol=0)
    even = likelihood.expected_logsumexp(mean, variance)
    torch.testing.assert_close(found[1:], even[1:], rtol=1e-12, atol=0)


def test_softmax_limits_shift_and_normalisation():
    y, mean, variance = _softmax_problem()
    likelihood = Softmax(4)
    sharp = likelihood.expected_log_prob(y, mean, torch.zeros_like(variance))
    torch.testing.assert_close(sharp, likelihood.log_prob(y, mean), rtol=0, atol=1e-6)
    shifted = likelihood.expected_log_prob(y, mean + 37.0, variance)
    torch.testing.assert_close(
        shifted, likelihood.expected_log_prob(y, mean, variance), rtol=0, atol=1e-10
    )
    probabilities = likelihood.predictive(mean, variance).probs
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(6).double())
    far = likelihood.class_probabilities(
        double([[300.0, 0.0, -300.0, 1.0]]), torch.ones(1, 4).double()
    )
    torch.testing.assert_close(far, double([[1.0, 0, 0, 0]]), rtol=0, atol=1e-12)


def test_softmax_gradients():
    y, mean, variance = _softmax_problem()
    likelihood = Softmax(4)
    inputs = [mean.requires_grad_(True), variance.requires_grad_(True)]
    # the grid follows the data without a gradient, whose effect is of the quadrature error
    assert torch.autograd.gradcheck(
        lambda m, v: likelihood.expected_log_prob(y, m, v), inputs, atol=1e-5
    )
    (slope,) = torch.autograd.grad(likelihood.expected_logsumexp(*inputs).sum(), mean)
    torch.testing.assert_close(
        slope, likelihood.class_probabilities(*inputs).detach(), rtol=0, atol=1e-6
    )


def test_a_softmax_pickled_without_the_wide_rule_is_read():
    softmax = Softmax(3)
    mean = torch.zeros(2, 3, dtype=torch.float64)
    state = dict(vars(softmax))
    state["_modules"] = {"quadrature": softmax.quadrature}  # of earlier versions
    earlier = Softmax.__new__(Softmax)
    earlier.__setstate__(state)
    expected = softmax.expected_logsumexp(mean, mean + 9.0)
    assert torch.equal(earlier.expected_logsumexp(mean, mean + 9.0), expected)


def test_softmax_float32():
    y, mean, variance = _softmax_problem()
    exact = Softmax(4).expected_log_prob(y, mean, variance)
    found = Softmax(4).float().expected_log_prob(y.float(), mean.float(), variance.float())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_softmax_float32_of_uneven_latents():
    y = torch.zeros(3)
    mean = torch.tensor([[0.0, 5.0, -3e4], [1e4, 0.0, 0.0], [0.0, 0.0, 0.0]])
    variance = torch.tensor([[1e6, 0.0, 1.0], [1e8, 0.0, 1.0], [1e4, 1.0, 0.0]])
    exact = Softmax(3).expected_log_prob(y.double(), mean.double(), variance.double())
    found = Softmax(3).expected_log_prob(y, mean, variance)
    torch.testing.assert_close(found.double(), exact, rtol=3e-5, atol=1e-3)


def test_softmax_needs_two_classes():
    with pytest.raises(ConfigError, match="at least two classes, got 1"):
        Softmax(1)


def test_outputs_of_gaussian_noise_are_single_likelihoods_beside_each_other():
    both = GaussianOutputs(2, noise_floor=1e-3).double()
    with torch.no_grad():
        both.noise_variance = double([0.3, 2.0])
    generator = torch.Generator().manual_seed(0)
    y, mean, variance = torch.rand(3, 4, 2, generator=generator, dtype=torch.float64)
    alone = [both.output(place) for place in (0, 1)]
    assert [each.noise_variance.item() for each in alone] == pytest.approx([0.3, 2.0])
    assert alone[0].parametrizations.noise_variance[0].floor == 1e-3
    for name, arguments in (("log_prob", (y, mean)), ("expected_log_prob", (y, mean, variance))):
        singles = [
            getattr(each, name)(*(values[:, place] for values in arguments))
            for place, each in enumerate(alone)
        ]
        torch.testing.assert_close(getattr(both, name)(*arguments), sum(singles))


def test_one_output_is_not_several():
    with pytest.raises(ConfigError, match="two outputs or more, got 1"):
        GaussianOutputs(1)


@pytest.mark.parametrize("label", [-1.0, 3.0])
def test_labels_out_of_range(label):
    likelihood, f = Softmax(3), torch.zeros(2, 3)
    y = torch.tensor([0.0, label])
    for ask in (
        lambda: likelihood.log_prob(y, f),
        lambda: likelihood.expected_log_prob(y, f, torch.ones(2, 3)),
    ):
        with pytest.raises(ShapeError, match="expected 0 to 2 for its 3 classes"):
            ask()


@pytest.mark.parametrize("shapes", [((4,), (4,), ()), ((4, 2), (3, 4, 2), (2,))])
def test_expected_normal_log_density_and_its_derivatives(shapes):
    generator = torch.Generator().manual_seed(0)
    y, mean, noise = (torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes)
    parts = [y, mean, torch.rand_like(mean) + 0.1, noise + 0.5]
    density = torch.distributions.Normal(parts[1], parts[3].sqrt()).log_prob(y)
    found = expected_log_normal(*parts)
    torch.testing.assert_close(found, density - 0.5 * parts[2] / parts[3])
    assert torch.autograd.gradcheck(expected_log_normal, [p.requires_grad_() for p in parts])


@pytest.mark.parametrize("link", ["logit", "probit"])
@pytest.mark.parametrize("probability", ["mean", "median"])
@pytest.mark.parametrize("mean", [-30.0, -12.0, 12.0, 30.0])
@pytest.mark.parametrize("variance", [0.5, 6.0, 30.0])
def test_a_certain_mistake_costs_what_it_should_in_float32(link, probability, mean, variance):
    """log P(y | x) of the unlikely label by integration; 1 - P is zero in float32 below e^-16."""
    law = Bernoulli(link, probability=probability).predictive(
        torch.tensor([mean]), torch.tensor([variance])
    )
    found = law.log_prob(torch.tensor([-math.copysign(1.0, mean)])).item()
    f = torch.linspace(-12.0, 12.0, 200_001, dtype=torch.float64)
    of_f = -abs(mean) + (math.sqrt(variance) * f if probability == "mean" else 0.0 * f)
    log_link = torch.nn.functional.logsigmoid if link == "logit" else torch.special.log_ndtr
    weights = -0.5 * f.square()
    want = (log_link(of_f) + weights).logsumexp(0) - weights.logsumexp(0)
    # the square of the smallest float32 is the least that can be told
    assert found == pytest.approx(max(want.item(), -87.4), rel=0.01)


class _Tempered(Softmax):
    def log_prob(self, y, f):
        return super().log_prob(y, 0.5 * f)


def test_shares_of_classes_are_those_of_the_likelihoods_own_density(monkeypatch):
    f = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tempered = class_shares(_Tempered(3), f)
    torch.testing.assert_close(tempered, (0.5 * f).softmax(-1))
    monkeypatch.setattr(Softmax, "_pick", None)  # the sum over classes is taken once
    torch.testing.assert_close(class_shares(Softmax(3), f), f.softmax(-1))


def test_gaussian_noise_is_one_variance_and_those_of_rows_are_known_to_the_model():
    with pytest.raises(ConfigError, match=r"set to 30 numbers.*model\.know_noise\(variances\)"):
        Gaussian(torch.linspace(0.01, 1.0, 30))
    assert Gaussian(torch.tensor([0.5])).noise_variance.item() == 0.5
