"""The sampled gradient of Gaussian weights that discrete ones are compared with is unbiased."""

import importlib.util
from pathlib import Path

import torch

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "direct" / "reparam.py"


def script():
    spec = importlib.util.spec_from_file_location("direct_reparam", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problem(n=7, m=4):
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(n, m, generator=draws, dtype=torch.float64)
    targets = torch.randn(n, generator=draws, dtype=torch.float64)
    mean, log_deviation = torch.randn(2, m, generator=draws, dtype=torch.float64)
    return features, targets, mean.requires_grad_(), log_deviation.requires_grad_()


def test_the_expected_gradient_is_that_of_the_bound():
    features, targets, mean, log_deviation = problem()
    m, noise = 4, 0.3
    # the fit is quadratic in the draws, whose first two moments these points have
    eye = m**0.5 * torch.eye(m, dtype=torch.float64)
    fit, divergence = script().sampled_bound(
        mean, log_deviation, features, targets, noise, torch.cat([eye, -eye])
    )
    square = (2.0 * log_deviation).exp()
    error = (targets - features @ mean).square().sum() + features.square().sum(0) @ square
    torch.testing.assert_close(fit, -0.5 * error / noise, rtol=1e-12, atol=1e-12)
    prior = torch.distributions.Normal(torch.zeros(m).double(), torch.ones(m).double())
    q = torch.distributions.Normal(mean, log_deviation.exp())
    want = -torch.distributions.kl_divergence(q, prior).sum()
    torch.testing.assert_close(divergence, want, rtol=1e-12, atol=1e-12)
    got = torch.autograd.grad(fit, (mean, log_deviation))
    exact = torch.autograd.grad(-0.5 * error / noise, (mean, log_deviation))
    for ours, theirs in zip(got, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_training_comes_near_the_exact_means():
    features, targets, *_ = problem(40)
    found = script().trained_means(features, targets, 0.3, 0.05, 1000, 0)
    precision = features.mT @ features / 0.3 + torch.eye(4).double()
    exact = torch.linalg.solve(precision, features.mT @ targets / 0.3)
    assert float((found - exact).abs().max()) < 0.1
