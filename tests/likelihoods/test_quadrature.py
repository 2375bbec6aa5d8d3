import math

import numpy as np
import pytest
import torch
from scipy.special import expit

from gpx.errors import ConfigError
from gpx.likelihoods import (
    Bernoulli,
    GaussHermite,
    Gaussian,
    GaussLogExponential,
    GaussLogistic,
)


def test_polynomials_are_exact_up_to_the_known_degree():
    rule = GaussHermite(5)
    mean, variance = torch.tensor([[0.3], [1.7]], dtype=torch.float64)
    moments = {2: 0.3**2 + 1.7, 4: 0.3**4 + 6 * 0.3**2 * 1.7 + 3 * 1.7**2}
    for power, exact in moments.items():
        found = rule.expectation(lambda f, k=power: f**k, mean, variance)
        assert found.item() == pytest.approx(exact, rel=1e-12)
    # degree 10 is one more than 2 * 5 - 1: the tenth moment 945 must be missed
    tenth = rule.expectation(lambda f: f**10, torch.zeros(1).double(), torch.ones(1).double())
    assert abs(tenth.item() - 945.0) > 1.0


def test_exponential_moment():
    mean, variance = torch.tensor([[-0.4, 0.2], [0.5, 2.0]], dtype=torch.float64)
    found = GaussHermite(20).expectation(torch.exp, mean, variance)
    torch.testing.assert_close(found, torch.exp(mean + variance / 2), rtol=1e-10, atol=0)


def test_gradients_are_those_of_the_expectation_even_at_zero_variance():
    mean = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.0, 0.7], dtype=torch.float64, requires_grad=True)
    GaussHermite(30).expectation(torch.sin, mean, variance).sum().backward()
    damping = torch.exp(-variance.detach() / 2)
    torch.testing.assert_close(mean.grad, damping * torch.cos(mean.detach()), rtol=1e-9, atol=1e-9)
    assert torch.isfinite(variance.grad).all()
    exact = -0.5 * damping * torch.sin(mean.detach())
    torch.testing.assert_close(variance.grad[1], exact[1], rtol=1e-9, atol=1e-9)


def test_nodes_survive_a_round_trip_through_float32():
    rule = GaussHermite(20).float().double()
    assert rule.nodes.dtype == torch.float64
    assert torch.equal(rule.nodes, GaussHermite(20).nodes)
    assert rule.weights.sum().item() == pytest.approx(1.0, abs=1e-15)
    assert rule.average(rule.nodes.square()).item() == pytest.approx(1.0, abs=1e-12)


def test_trailing_dimensions_are_kept():
    mean = torch.zeros(4, 3)
    assert GaussHermite(7).points(mean, torch.ones(4, 3)).shape == (7, 4, 3)


def test_no_nodes_is_refused():
    with pytest.raises(ConfigError, match=r"num_nodes=\S+ must be at least 1"):
        GaussHermite(0)
    assert math.isclose(GaussHermite(1).nodes.item(), 0.0)


def test_published_numbers_of_the_probit_link():
    mean, variance = torch.tensor([0.7]).double(), torch.tensor([2.3]).double()
    probit = Bernoulli("probit")
    closed = probit.predictive(mean, variance).probs
    assert float(closed) == pytest.approx(0.650006, abs=5e-7)
    summed = GaussHermite(20).expectation(torch.special.ndtr, mean, variance)
    assert float(summed) == pytest.approx(float(closed), abs=1e-6)
    one = torch.ones(1).double()
    tilted = probit.tilted(one, mean, variance).log_normaliser.exp()
    assert float(tilted) == pytest.approx(0.650006, abs=5e-7)
    few, many = (
        float(Bernoulli("probit", nodes).expected_log_prob(one, mean, variance))
        for nodes in (20, 100)
    )
    assert few == pytest.approx(-0.789904, abs=5e-7)
    assert few == pytest.approx(many, abs=2e-7)


def test_the_gaussian_expectation_is_its_closed_form():
    mean, variance = torch.tensor([0.7]).double(), torch.tensor([2.3]).double()
    y, gaussian = torch.tensor([-0.4]).double(), Gaussian(0.3).double()
    summed = GaussHermite(20).expectation(lambda f: gaussian.log_prob(y, f), mean, variance)
    noise = gaussian.noise_variance
    want = -0.5 * (2.0 * math.pi * noise).log() - ((y - mean) ** 2 + variance) / (2.0 * noise)
    torch.testing.assert_close(summed, want, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        gaussian.expected_log_prob(y, mean, variance), want, rtol=1e-12, atol=0
    )


def _averages_over_a_fine_grid(mean, deviation):
    """E sigmoid(f) and E log(1 + exp(f)): the trapezoid rule, exponentially exact for both."""
    step = 0.2 * min(1.0, 1.0 / deviation)
    z = np.arange(-9.0, 9.0, step)
    weights = np.exp(-0.5 * z**2)
    f = mean + deviation * z
    shares = weights / weights.sum()
    return shares @ expit(f), shares @ np.logaddexp(0.0, f)


@pytest.mark.parametrize(("num_nodes", "within"), [(20, 1.2e-5), (32, 1e-6)])
@pytest.mark.parametrize("deviation", [0.0, 0.1, 1.0, 1.99, 2.01, 4.0, 20.0, 64.0])
def test_the_logistic_function_is_averaged_over_any_width(deviation, num_nodes, within):
    # Gauss-Hermite nodes alone step over the logistic function: 0.09 off at a deviation of 64
    mean = torch.linspace(-5 * deviation - 3, 5 * deviation + 3, 23, dtype=torch.float64)
    exact = torch.tensor([_averages_over_a_fine_grid(m.item(), max(deviation, 1e-9)) for m in mean])
    rule, variance = GaussLogistic(num_nodes), torch.full_like(mean, deviation**2)
    torch.testing.assert_close(rule.sigmoid(mean, variance), exact[:, 0], rtol=0, atol=within)
    torch.testing.assert_close(rule.softplus(mean, variance), exact[:, 1], rtol=0, atol=within)


def test_gradients_of_the_logistic_averages_are_those_of_the_expectations():
    # d/dm E softplus = E sigmoid, and both are finite at no variance and at a very large one
    mean = torch.tensor([0.3, -1.0, 5.0, -400.0, 1.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.0, 0.7, 30.0, 9.0, 1e12], dtype=torch.float64, requires_grad=True)
    rule = GaussLogistic(32)
    rule.softplus(mean, variance).sum().backward()
    expected = rule.sigmoid(mean, variance).detach()
    torch.testing.assert_close(mean.grad, expected, rtol=0, atol=2e-6)
    assert torch.isfinite(variance.grad).all()


def test_unsure_probabilities_follow_the_sign_of_a_wide_latent():
    # far from a deviation of 1 the link is a step: P(y = 1) -> Phi(mean / deviation)
    mean, variance = torch.tensor([-15.3]).double(), torch.tensor([4141.0]).double()
    step = torch.special.ndtr(mean / variance.sqrt())
    found = Bernoulli("logit").predictive(mean, variance).probs
    torch.testing.assert_close(found, step, rtol=0, atol=1e-3)


@pytest.mark.parametrize("num_nodes", [1, 4, 20, 32])
def test_the_log_exponential_rule_has_the_moment_generating_function(num_nodes):
    """E exp(r e) = Gamma(1 + r); polynomials up to degree 2 Q - 1 are exact."""
    rule = GaussLogExponential(num_nodes)
    assert rule.average(rule.nodes).item() == pytest.approx(-0.5772156649015329, abs=1e-9)
    if num_nodes > 1:
        second = math.pi**2 / 6.0 + 0.5772156649015329**2
        assert rule.average(rule.nodes.square()).item() == pytest.approx(second, abs=1e-9)
    if num_nodes >= 20:
        found = rule.average(torch.exp(0.5 * rule.nodes)).item()
        assert found == pytest.approx(math.sqrt(math.pi) / 2.0, abs=1e-6)
