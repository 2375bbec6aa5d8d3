"""Regression on features by dense algebra, float64; imports nothing of gpx."""

import math

import torch
from draws import draw


def features_and_targets(n, m, rank=None):
    """Phi (n, m), of a rank below both where asked for, and y (n,), mostly out of its span."""
    phi = draw(n, m, seed=1)
    if rank is not None:
        phi = draw(n, rank, seed=2) @ draw(rank, m, seed=3)
    return phi, draw(n, seed=4)


def position(count):
    """log g (count,) and log noise variance ()."""
    return draw(count, seed=5), torch.tensor(-0.7, dtype=torch.float64)


def log_density(y, covariance):
    """log N(y; 0, covariance), by the textbook; differentiable."""
    factor = torch.linalg.cholesky(covariance)
    half = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
    logs = factor.diagonal().log().sum()
    return -0.5 * half.square().sum() - logs - 0.5 * len(y) * math.log(2.0 * math.pi)


def evidence(phi, y, variances, noise):
    """log N(y; 0, phi diag(g) phi^T + s I)."""
    identity = torch.eye(len(y), dtype=torch.float64)
    return log_density(y, phi * variances @ phi.mT + noise * identity)


def value(weights):
    """log N(y; 0, C) from y^T C^-1 y (``fit``) and log det C."""
    constant = weights.num_data * math.log(2.0 * math.pi)
    return -0.5 * (weights.fit + weights.log_determinant + constant)


def assert_evidence_and_gradient(weights, phi, y, u, s):
    """Those of ``weights`` at log g = u and log noise s are those of ``evidence``."""
    u, s = u.clone().requires_grad_(), s.clone().requires_grad_()
    want = evidence(phi, y, u.exp(), s.exp())
    slopes = torch.autograd.grad(want, [u, s])
    torch.testing.assert_close(value(weights), want.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(weights.weight_gradient(), slopes[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(weights.noise_gradient(), slopes[1], rtol=1e-8, atol=1e-8)


def posterior(phi, y, prior, noise, at):
    """Mean (t,) and covariance (t, t) of f = at w, w ~ N(0, prior), in function space."""
    matrix = phi @ prior @ phi.mT + noise * torch.eye(len(y), dtype=torch.float64)
    cross = at @ prior @ phi.mT
    solve = torch.linalg.solve(matrix, cross.mT)
    return solve.mT @ y, at @ prior @ at.mT - cross @ solve


def expected_information(covariance, slopes):
    """tr(C^-1 dC C^-1 dC) / 2 along every slope dC."""
    solved = [torch.linalg.solve(covariance, slope) for slope in slopes]
    return torch.stack([0.5 * (a @ a).trace() for a in solved])


def reflectors_of(rotation):
    """Rows (m, m) whose Householder reflections make U (m, m), up to the signs of its columns."""
    packed, tau = torch.geqrf(rotation)
    v = packed.tril(-1)
    v.diagonal().fill_(1.0)
    return (v * (tau != 0.0)).mT.contiguous()  # LAPACK says "identity" by a zero coefficient
