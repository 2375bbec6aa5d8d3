"""The best q(v) under Gaussian noise, from sums over all data, against dense algebra."""

import pytest
import torch

from gpx.inference.variational import InducingVariables, optimum, row_scale, whitened_optimum
from gpx.inference.variational.optimum import observed_sums
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant

N, M = 23, 5
DRAW = torch.Generator().manual_seed(2)
X = torch.randn(N, 2, generator=DRAW, dtype=torch.float64)
Y = torch.stack([X[:, 0].sin(), X[:, 1].cos()], 1)
NOISE = RowNoise(
    torch.rand(N, generator=DRAW, dtype=torch.float64),
    1.0 + torch.rand(N, generator=DRAW, dtype=torch.float64),
)
MEAN = Constant(0.3).double()


def variables():
    kernel = RBF(2, [0.8, 1.3], 1.7).double()
    return InducingVariables(kernel, X[:M] + 0.1, 1e-10)


def dense(y, noise):
    """Mean and covariance of v given targets (n,) with noise variances (n,)."""
    made = variables()
    root = torch.linalg.cholesky(made.kernel.evaluate(made.z) + 1e-10 * 1.7 * torch.eye(M).double())
    a = torch.linalg.solve_triangular(root, made.kernel.evaluate(made.z, X), upper=False)
    rows = ~y.isnan()
    a, noise, residual = a[:, rows], noise[rows], y[rows] - 0.3
    precision = torch.eye(M).double() + (a / noise) @ a.mT
    return torch.linalg.solve(precision, (a / noise) @ residual), precision.inverse()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("outputs", "missing"), [(1, False), (2, False), (2, True)])
def test_it_is_the_dense_one_whatever_rows_are_summed_together(
    outputs, known, missing, monkeypatch
):
    monkeypatch.setattr(optimum, "SUMS_CHUNK", 7)
    likelihood = (Gaussian(0.2) if outputs == 1 else GaussianOutputs(2, 0.2)).double()
    y = Y.clone() if outputs == 2 else Y[:, 0]
    if missing:
        y[3:15, 1] = float("nan")
    noise = torch.full((N,), 0.2).double()
    scale = None
    if known:
        row_noise = NOISE if outputs == 1 else NOISE._replace(known=torch.zeros(N).double())
        noise, scale = row_noise.variance(noise), row_scale(row_noise, likelihood)
    sums = observed_sums(variables(), MEAN, X, y, scale)
    assert sums.counts == ([N, N - 12] if missing else [N] * outputs)
    mean, root = whitened_optimum(sums, likelihood)
    for j in range(outputs):
        want_mean, want = dense(y if outputs == 1 else y[:, j], noise)
        torch.testing.assert_close(mean[j], want_mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(root[j] @ root[j].mT, want, rtol=1e-6, atol=1e-8)
