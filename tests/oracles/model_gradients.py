"""Kernels of three inputs, and gradients of a model's evidence to compare."""

import torch

from gpx.kernels import RBF, Matern32, Matern52

KERNELS = {
    "matern32": lambda: Matern32(ard_num_dims=3, lengthscale=[0.8, 1.5, 2.0]),
    "fixed_scale": lambda: RBF(outputscale=None),
    "sum": lambda: RBF(lengthscale=0.7) + Matern52(active_dims=[1]) * 0.5,
}


def gradients(value, model):
    """With respect to all parameters."""
    return torch.autograd.grad(value, list(model.parameters()))


def same_gradients(got, want, tolerance):
    """Check each, relative to its own size and to its largest entry."""
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance * b.abs().max())
