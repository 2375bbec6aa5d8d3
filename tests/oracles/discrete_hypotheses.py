"""Every hypothesis of a few discrete weights, one by one: the oracle of this room."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.methods.direct.base import DiscreteRegression


def statistics_of(features, targets):
    """Sums over rows Phi (n, m) and r (n,)."""
    return SufficientStatistics(
        features.mT @ features, features.mT @ targets, targets @ targets, len(targets)
    )


def mean_field_terms(sums, logits, values, log_prior, noise):
    """Terms of the bound of a model that has nothing but what they ask for."""
    model = SimpleNamespace(
        statistics=sums,
        values=lambda: values,
        noise_terms=lambda: noise,
        effective_log_prior=lambda q: (log_prior, 0.0),
    )
    return DiscreteRegression.mean_field_terms(model, logits)


def problem(n=9, m=4, k=3, seed=0):
    """Features (n, m), targets (n,), values (k,), log q (m, k) and log prior (k,)."""
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    values = normal(k).sort().values
    return (
        normal(n, m),
        normal(n),
        values,
        normal(m, k).log_softmax(-1),
        normal(k).log_softmax(-1),
    )


def sine(n=9, seed=0):
    """Inputs (n, 1) in [-2, 2] and noisy values (n,) of a sine."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=draws, dtype=torch.float64) * 4.0 - 2.0
    return x, (2.0 * x[:, 0]).sin() + 0.2 * torch.randn(n, generator=draws, dtype=torch.float64)


def require_slopes(value, parameters):
    """Assert that gradients of ``value()`` are central differences, entry by entry."""
    gradients = torch.autograd.grad(value(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for place in range(parameter.numel()):
            ends = []
            for step in (1e-5, -2e-5):
                parameter.data.view(-1)[place] += step
                ends.append(float(value().detach()))
            parameter.data.view(-1)[place] += 1e-5
            slope = (ends[0] - ends[1]) / 2e-5
            assert float(gradient.flatten()[place]) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def hypotheses(log_q, values):
    """All weights (k^m, m) and their log probabilities (k^m,) under independent q (m, k)."""
    m, k = log_q.shape
    places = torch.tensor(list(itertools.product(range(k), repeat=m)))
    chosen = torch.gather(log_q.expand(len(places), m, k), 2, places.unsqueeze(2)).squeeze(2)
    return values[places], chosen.sum(1)


def log_likelihood(features, targets, weights, variance):
    """log N(r; Phi w, variance I) (h,) for every row w of weights (h, m)."""
    error = (targets - weights @ features.mT).square().sum(1)
    return -0.5 * (error / variance + len(targets) * math.log(2.0 * math.pi * variance))
