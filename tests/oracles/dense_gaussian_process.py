"""Exact and sparse Gaussian process regression by dense NumPy algebra; imports nothing of gpx."""

import numpy as np


def log_marginal_likelihood(kernel, y, noise):
    matrix = kernel + noise * np.eye(len(y))
    _, logdet = np.linalg.slogdet(matrix)
    return -0.5 * (y @ np.linalg.solve(matrix, y) + logdet + len(y) * np.log(2 * np.pi))


def nystrom(kzz, kzx):
    return kzx.T @ np.linalg.solve(kzz, kzx)


def trace_error(diagonal, kzz, kzx):
    return np.clip(diagonal - np.diag(nystrom(kzz, kzx)), 0, None).sum()


def collapsed_bound(diagonal, kzz, kzx, y, noise):
    trace = trace_error(diagonal, kzz, kzx)
    return log_marginal_likelihood(nystrom(kzz, kzx), y, noise) - 0.5 * trace / noise


def exact_posterior(kernel, cross, prior, y, noise):
    """cross (n, t), prior (t,) -> mean, variance (t,)."""
    matrix = kernel + noise * np.eye(len(y))
    mean = cross.T @ np.linalg.solve(matrix, y)
    return mean, prior - (cross * np.linalg.solve(matrix, cross)).sum(0)


def sparse_posterior(kzz, kzx, kzt, prior, y, noise):
    """kzt (M, t), prior (t,) -> mean, variance (t,)."""
    return exact_posterior(nystrom(kzz, kzx), kzx.T @ np.linalg.solve(kzz, kzt), prior, y, noise)
