"""E log sum exp on one lattice, against Gauss sums over each latent function."""

import itertools
import math

import numpy as np
import pytest
import torch

from gpx.likelihoods import Softmax, gumbel_lattice, log_sum_exp
from gpx.likelihoods.gumbel_lattice import lattice_for, value_and_slopes


def problem(widest, narrowest=0.0, rows=50, classes=4):
    generator = torch.Generator().manual_seed(3)
    share = torch.rand(rows, classes, generator=generator, dtype=torch.float64)
    deviation = narrowest + (widest - narrowest) * share
    deviation[0, 0] = widest
    normal = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return (1.0 + widest) * normal, deviation.square()


def by_lattice(mean, variance, num_steps=48):
    lattice = lattice_for(variance, num_steps)
    return value_and_slopes(mean, variance, lattice, slopes=True)


@pytest.mark.parametrize("widest", [0.0, 0.2, 1.0, 3.0])
def test_two_latents_agree_with_a_product_rule(widest):
    """Log-normaliser and softmax by 200 x 200 Gauss-Hermite nodes."""
    mean, variance = problem(widest, rows=12, classes=2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    pairs = torch.tensor(list(itertools.product(nodes, nodes)))
    weight = torch.tensor([a * b for a, b in itertools.product(weights, weights)])
    weight /= weight.sum()
    f = mean.unsqueeze(1) + variance.sqrt().unsqueeze(1) * pairs
    value, by_mean, _ = by_lattice(mean, variance)
    # the product rule itself is exact to 1e-6 for the widest
    torch.testing.assert_close(value, f.logsumexp(-1) @ weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        by_mean, (f.softmax(-1) * weight.unsqueeze(-1)).sum(1), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("widest", [0.3, 2.0, 4.0, 8.0])
def test_the_default_is_exact_to_1e_7_whatever_the_widths(widest):
    """The rules before erred by up to 1e-5 nats where latents are up to 4 wide."""
    mean, variance = problem(widest)
    value, by_mean, by_variance = by_lattice(mean, variance)
    fine, fine_by_mean, fine_by_variance = by_lattice(mean, variance, 96)
    torch.testing.assert_close(value, fine, rtol=0, atol=1e-7)
    torch.testing.assert_close(by_mean, fine_by_mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(by_variance, fine_by_variance, rtol=0, atol=3e-6)


def test_the_remainder_and_its_normal_part_make_the_gumbel_law():
    step = gumbel_lattice.STEP_TIMES / 48
    lowest = math.floor(gumbel_lattice.LOWEST / step)
    highest = math.ceil(gumbel_lattice.HIGHEST / step)
    weights = gumbel_lattice._remainder(step, lowest, highest)
    places = step * torch.arange(lowest, highest + 1, dtype=torch.float64)
    variance = (weights * places.square()).sum() - (weights @ places).square()
    spare = gumbel_lattice.SPARE * step
    assert float(weights @ places) == pytest.approx(-gumbel_lattice.EULER, abs=1e-12)
    assert float(variance + spare) == pytest.approx(math.pi**2 / 6.0, abs=1e-5)
    # P(f + u < v) of one latent that is constant: exp(-exp(u))
    u = torch.linspace(-8.0, 3.0, 23, dtype=torch.float64)
    below = torch.special.ndtr((places - u.unsqueeze(1)) / math.sqrt(spare)) @ weights
    torch.testing.assert_close(below, torch.exp(-u.exp()), rtol=0, atol=2e-6)


def test_rows_do_not_depend_on_others():
    """The lattice is as long as the widest row asks for: shorter ones must not cut off anything."""
    mean, variance = problem(8.0)
    narrow = variance.amax(-1) < 16.0
    alone = by_lattice(mean[narrow], variance[narrow])
    for one, other in zip(by_lattice(mean, variance), alone, strict=True):
        torch.testing.assert_close(one[narrow], other, rtol=0, atol=2e-9)


def test_rows_wider_than_the_lattice_take_the_rules():
    mean, variance = problem(12.0)
    wide = variance.amax(-1) > gumbel_lattice.MAX_DEVIATION**2
    assert 0 < int(wide.sum()) < len(wide)
    rules = Softmax(4)._rules
    found = log_sum_exp._value_and_slopes(mean, variance, rules, slopes=True)
    rest = log_sum_exp._value_and_slopes_by_rules(mean[wide], variance[wide], rules, slopes=True)
    for whole, part in zip(found, rest, strict=True):
        torch.testing.assert_close(whole[wide], part, rtol=1e-12, atol=1e-12)
    for whole, part in zip(found, by_lattice(mean[~wide], variance[~wide]), strict=True):
        torch.testing.assert_close(whole[~wide], part, rtol=1e-12, atol=1e-12)


def test_gradients_are_finite_where_a_sum_of_weights_is_rounded_up():
    """P(f < v) came out as -1e-16 with 60 nodes, by which the gradient was divided: 1e273."""
    mean, variance = problem(30.0, narrowest=1.3)
    mean.requires_grad_()
    value = Softmax(4, num_nodes=60).expected_logsumexp(mean, variance)
    (by_mean,) = torch.autograd.grad(value.sum(), mean)
    torch.testing.assert_close(
        by_mean.sum(-1), torch.ones(len(mean), dtype=torch.float64), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_classes_far_apart(dtype):
    mean = torch.linspace(-300.0, 0.0, 64, dtype=dtype).expand(3, -1)
    value, by_mean, by_variance = by_lattice(mean, torch.full_like(mean, 0.5))
    assert all(bool(each.isfinite().all()) for each in (value, by_mean, by_variance))
    torch.testing.assert_close(by_mean.sum(-1), torch.ones(3, dtype=dtype), rtol=0, atol=1e-5)


def test_layout_in_memory_does_not_matter():
    mean, variance = problem(2.0)
    turned = by_lattice(mean.mT.contiguous().mT, variance.mT.contiguous().mT)
    for one, other in zip(turned, by_lattice(mean, variance), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
