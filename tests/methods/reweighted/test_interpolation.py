"""Fixed interpolation: dense structured kernel interpolation, singular kernels, sums, streams."""

import math

import pytest
import torch
from draws import uniform
from linear_features import log_density

from gpx.bases.sufficient_statistics import SufficientStatistics, interpolation_statistics
from gpx.kernels import RBF, Matern32
from gpx.linalg.interpolation import RegularAxis
from gpx.methods.reweighted.interpolation import InterpolatedWeights
from gpx.methods.reweighted.weights import CompressedStatistics
from gpx.operators import Interpolation

NOISE = torch.tensor(0.2, dtype=torch.float64)
AXIS = torch.linspace(-0.2, 1.2, 8, dtype=torch.float64)


def problem(n=60):
    """Two inputs on an 8 x 8 grid: 64 functions, 16 of them at every point."""
    x = uniform(n, 2)
    y = (5.0 * x).sin().sum(1) + 0.3 * uniform(n, seed=1)
    return interpolation(x), y - y.mean()


def interpolation(x):
    axis = RegularAxis(float(AXIS[0]), float(AXIS[1] - AXIS[0]), len(AXIS))
    return Interpolation.of(x, [axis, axis])


def factors(kind=RBF, lengthscale=0.4):
    kernel = kind(1, lengthscale=lengthscale).double()
    return kernel.evaluate(AXIS[:, None], AXIS[:, None]).detach()


def dense(w, y, covariance):
    noise = NOISE * torch.eye(len(y), dtype=torch.float64)
    return log_density(y, w @ covariance @ w.mT + noise)


def test_sparse_statistics_equal_dense_products():
    w, y = problem()
    matrix = w.to_dense()
    found = interpolation_statistics(w, y)
    torch.testing.assert_close(found.gram, matrix.mT @ matrix, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.projected, matrix.mT @ y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "lengthscale"), [(RBF, 0.4), (Matern32, 0.2), (RBF, 3.0)])
def test_evidence_and_posterior_equal_dense_interpolation_without_the_data(kind, lengthscale):
    w, y = problem()
    matrix, kept = w.to_dense(), y.clone()
    compressed = CompressedStatistics(interpolation_statistics(w, y))
    y[:] = math.nan
    del w
    one = factors(kind, lengthscale)
    covariance = torch.kron(one, one)
    found = InterpolatedWeights(compressed, covariance, NOISE)
    torch.testing.assert_close(
        found.log_marginal_likelihood(), dense(matrix, kept, covariance), rtol=1e-9, atol=0
    )
    at = interpolation(uniform(7, 2, seed=2)).to_dense()
    train = matrix @ covariance @ matrix.mT + NOISE * torch.eye(len(kept), dtype=torch.float64)
    cross = at @ covariance @ matrix.mT
    solve = torch.linalg.solve(train, cross.mT)
    prior = ((at @ covariance) * at).sum(1)
    marginals = found.marginals(at)
    torch.testing.assert_close(marginals.mean, solve.mT @ kept, rtol=1e-8, atol=1e-8)
    want = prior - (cross * solve.mT).sum(1)
    torch.testing.assert_close(marginals.variance, want, rtol=1e-7, atol=1e-8)


def test_singular_kernels_and_gradients():
    w, y = problem()
    compressed = CompressedStatistics(interpolation_statistics(w, y))
    root = (uniform(64, 3, seed=3) - 0.5).requires_grad_()
    found = InterpolatedWeights(compressed, root @ root.mT, NOISE).log_marginal_likelihood()
    want = dense(w.to_dense(), y, root @ root.mT)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=0)
    (got,), (wanted,) = (torch.autograd.grad(v, [root]) for v in (found, want))
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-7)


def test_additive_kernels_collapse_to_their_sum():
    """Phi = (W, W) with a block-diagonal prior: the same evidence from matrices twice the size."""
    w, y = problem()
    matrix = w.to_dense()
    parts = [torch.kron(a, a) for a in (factors(), factors(Matern32, 0.2))]
    phi = torch.cat([matrix, matrix], 1)
    want = dense(phi, y, torch.block_diag(*parts))
    compressed = CompressedStatistics(interpolation_statistics(w, y))
    found = InterpolatedWeights(compressed, parts[0] + parts[1], NOISE).log_marginal_likelihood()
    torch.testing.assert_close(found, want, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        phi @ torch.block_diag(*parts) @ phi.mT,
        matrix @ (parts[0] + parts[1]) @ matrix.mT,
        rtol=0,
        atol=1e-12,
    )


def test_a_stream_equals_the_batch_after_every_update():
    x, y = uniform(25, 2), uniform(25, seed=1)
    covariance = torch.kron(factors(), factors())
    stream = SufficientStatistics.empty(64)
    for start in range(0, 25, 5):
        rows = slice(start, start + 5)
        stream = stream + interpolation_statistics(interpolation(x[rows]), y[rows])
        seen = slice(0, start + 5)
        want = dense(interpolation(x[seen]).to_dense(), y[seen], covariance)
        found = InterpolatedWeights(
            CompressedStatistics(stream), covariance, NOISE
        ).log_marginal_likelihood()
        torch.testing.assert_close(found, want, rtol=1e-9, atol=0)
