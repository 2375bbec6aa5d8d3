"""Products with hand-written gradients: first derivatives only, and changes are noticed."""

import pytest
import torch

from gpx.operators import Toeplitz


def column(n=200):
    return torch.exp(-torch.arange(n, dtype=torch.float64) / 9.0)


def test_a_change_between_the_passes_is_refused():
    k = column().requires_grad_()
    scaled = 2.0 * k
    right = torch.ones(200, 1, dtype=torch.float64)
    out = Toeplitz(scaled) @ right
    with torch.no_grad():
        scaled.mul_(3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_second_derivatives_are_refused_aloud():
    k = column().requires_grad_()
    right = torch.ones(200, 1, dtype=torch.float64, requires_grad=True)
    out = (Toeplitz(k) @ right).square().sum()
    (first,) = torch.autograd.grad(out, k, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_only_wanted_gradients_are_computed(monkeypatch):
    def never(*args):
        raise AssertionError("computed")

    k, right = column().requires_grad_(), torch.ones(200, 1, dtype=torch.float64)
    out = Toeplitz(k) @ right
    monkeypatch.setattr(Toeplitz, "_t_multiply", never)
    out.sum().backward()
    assert k.grad is not None
    plain = Toeplitz(k.detach()) @ right
    assert not plain.requires_grad
