import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.likelihoods import GaussHermite


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
    with pytest.raises(ConfigError, match="num_nodes must be at least 1"):
        GaussHermite(0)
    assert math.isclose(GaussHermite(1).nodes.item(), 0.0)
