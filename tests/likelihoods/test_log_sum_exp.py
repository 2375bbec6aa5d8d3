"""E log sum exp by blocks, and its gradient by hand, against the formula in torch operations."""

import pytest
import torch

from gpx.likelihoods import Softmax, log_sum_exp
from gpx.likelihoods.log_sum_exp import (
    _differentiable_shares,
    _differentiable_value,
    expected_log_sum_exp,
    expected_shares,
)

DEVIATIONS = {
    "narrow": (0.0, 1.2),
    "wide": (1.3, 6.0),
    "both kinds in a row": (0.5, 3.0),
    "uneven": (0.1, 60.0),
}


def problem(kind, rows=40, classes=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    low, high = DEVIATIONS[kind]
    deviation = low + (high - low) * torch.rand(rows, classes, generator=generator)
    mean = (1.0 + high) * torch.randn(rows, classes, generator=generator)
    inputs = mean.to(dtype).requires_grad_(), deviation.to(dtype).square().requires_grad_()
    return *inputs, Softmax(classes)._rules


def with_gradients(function, mean, variance, rules):
    value = function(mean, variance, rules)
    return value.detach(), *torch.autograd.grad(value.sum(), (mean, variance))


@pytest.mark.parametrize("kind", DEVIATIONS)
def test_value_and_gradients_are_those_of_the_formula(kind):
    inputs = problem(kind)
    found = with_gradients(expected_log_sum_exp, *inputs)
    expected = with_gradients(_differentiable_value, *inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", DEVIATIONS)
def test_float32_has_the_values_of_float64(kind):
    found = with_gradients(expected_log_sum_exp, *problem(kind, dtype=torch.float32))
    expected = with_gradients(expected_log_sum_exp, *problem(kind))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", DEVIATIONS)
def test_shares_are_the_same_with_and_without_a_graph(kind):
    mean, variance, rules = problem(kind)
    shares = expected_shares(mean.detach(), variance.detach(), rules)
    torch.testing.assert_close(shares, _differentiable_shares(mean, variance, rules).detach())
    torch.testing.assert_close(shares.sum(-1), torch.ones(len(shares), dtype=torch.float64))
    assert expected_shares(mean, variance, rules).requires_grad


def test_blocks_do_not_change_a_bit(monkeypatch):
    inputs = problem("both kinds in a row")
    whole = with_gradients(expected_log_sum_exp, *inputs)
    monkeypatch.setattr(log_sum_exp, "BLOCK_BYTES", 1)  # every row by itself
    for one, other in zip(with_gradients(expected_log_sum_exp, *inputs), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_leading_dimensions_are_rows():
    mean, variance, rules = problem("narrow", rows=24)
    stacked = expected_log_sum_exp(mean.view(2, 3, 4, 5), variance.view(2, 3, 4, 5), rules)
    torch.testing.assert_close(stacked.view(24), expected_log_sum_exp(mean, variance, rules))


def test_second_derivatives():
    mean, variance, rules = problem("both kinds in a row", rows=3, classes=3)
    assert torch.autograd.gradgradcheck(
        lambda m, v: expected_log_sum_exp(m, v, rules), (mean, variance), atol=1e-6
    )


def test_the_slope_by_a_variance_is_half_the_curvature_by_the_mean():
    """The heat equation, which ties the two derivatives of an expectation under a Gaussian."""
    mean, variance, rules = problem("both kinds in a row", rows=6, classes=3)
    value = expected_log_sum_exp(mean, variance, rules).sum()
    by_mean, by_variance = torch.autograd.grad(value, (mean, variance), create_graph=True)
    curvature = torch.stack(
        [torch.autograd.grad(by_mean[:, c].sum(), mean, retain_graph=True)[0][:, c] for c in (0, 1)]
    )
    torch.testing.assert_close(by_variance[:, :2].mT, 0.5 * curvature, rtol=1e-4, atol=1e-6)


def test_far_latents_stay_finite():
    mean = torch.tensor([[0.0, -1e4, 3.0], [1e6, -1e6, 0.0]], dtype=torch.float64)
    variance = torch.tensor([[1e-30, 1.0, 2.0], [1e8, 0.0, 1.0]], dtype=torch.float64)
    inputs = mean.requires_grad_(), variance.requires_grad_(), Softmax(3)._rules
    value, *gradients = with_gradients(expected_log_sum_exp, *inputs)
    assert bool(
        torch.stack([value.isfinite().all(), *(g.isfinite().all() for g in gradients)]).all()
    )
    torch.testing.assert_close(
        gradients[0].sum(-1), torch.ones(2, dtype=torch.float64), atol=2e-3, rtol=0
    )
