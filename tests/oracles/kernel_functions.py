"""Kernels in NumPy, by direct differences and loops over nothing clever."""

import numpy as np
from scipy.special import gamma, kv


def _differences(x, z):
    return x[:, None, :] - z[None, :, :]


def squared_distance(x, z, lengthscale):
    return ((_differences(x, z) / lengthscale) ** 2).sum(-1)


def rbf(x, z, lengthscale, outputscale):
    return outputscale * np.exp(-0.5 * squared_distance(x, z, lengthscale))


def matern(x, z, lengthscale, outputscale, nu):
    """The Bessel form, any nu."""
    a = np.sqrt(2 * nu * squared_distance(x, z, lengthscale))
    safe = np.where(a == 0, 1.0, a)
    k = 2 ** (1 - nu) / gamma(nu) * safe**nu * kv(nu, safe)
    return outputscale * np.where(a == 0, 1.0, k)


def rational_quadratic(x, z, lengthscale, outputscale, alpha):
    return outputscale * (1 + squared_distance(x, z, lengthscale) / (2 * alpha)) ** (-alpha)


def periodic(x, z, lengthscale, outputscale, period):
    wave = np.sin(np.pi * _differences(x, z) / period) / lengthscale
    return outputscale * np.exp(-2 * (wave**2).sum(-1))


def linear(x, z, slope_variance):
    return (x[:, None, :] * z[None, :, :] * slope_variance).sum(-1)


def polynomial(x, z, degree, offset, outputscale):
    return outputscale * ((x[:, None, :] * z[None, :, :]).sum(-1) + offset) ** degree


def cosine(x, z, period, outputscale):
    return outputscale * np.cos(2 * np.pi * (_differences(x, z) / period).sum(-1))


def spectral_mixture(x, z, weight, frequency, scale):
    tau = _differences(x, z)
    total = 0.0
    for w, f, s in zip(weight, frequency, scale, strict=True):
        damping = np.exp(-2 * np.pi**2 * (tau * s) ** 2)
        total = total + w * (damping * np.cos(2 * np.pi * f * tau)).prod(-1)
    return total
