"""Golden problem G1 of certified bounds: one-dimensional, n = 200, closed form.

x_n = 10 n / 199, y_n = sin 2 x_n + 0.3 cos 7 x_n; squared exponential with lengthscale 0.7 and
variance 1.3, noise variance 0.05; every tenth point from the fifth is an inducing point.
"""

import torch

NOISE = 0.05
VARIANCE = 1.3
LOGDET = -516.0157202
LOGDET_Q = -516.7462575
INV_QUAD = 173.1094506

x = torch.arange(200, dtype=torch.float64) * 10 / 199
y = torch.sin(2 * x) + 0.3 * torch.cos(7 * x)
z = x[5::10]


def covariance(a, b):
    return VARIANCE * torch.exp(-0.5 * (a[:, None] - b[None, :]).square() / 0.49)


K_xx = covariance(x, x)
K = K_xx + NOISE * torch.eye(200, dtype=torch.float64)
K_zz = covariance(z, z)
K_zx = covariance(z, x)
Q = K_zx.mT @ torch.linalg.solve(K_zz, K_zx) + NOISE * torch.eye(200, dtype=torch.float64)
