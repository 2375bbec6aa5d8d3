"""Posteriors of Laplace's approximation: their cached factors follow their state."""

import torch
from class_problems import parts, points

from gpx.likelihoods import Bernoulli
from gpx.models import LaplaceGP


def test_another_state_and_another_precision_are_factorised_anew():
    x, y = points(20)
    whole, half = (
        LaplaceGP(**parts(Bernoulli())).double().condition(x[:n], y[:n]) for n in (20, 10)
    )
    want = whole.predict(x)
    half.predict(x)
    half.load_state_dict(whole.state_dict())
    for found, expected in zip(half.predict(x), want, strict=True):
        assert torch.equal(found, expected)
    fresh = whole.float()
    again = LaplaceGP(**parts(Bernoulli())).float().new_posterior()
    again.load_state_dict(fresh.state_dict())
    assert torch.equal(fresh.predict(x.float()).variance, again.predict(x.float()).variance)
