"""K and its Nystrom matrix Q: products, order, and the golden fixture on real data."""

import golden_g3 as g3
import pytest
import torch

from gpx.inference.noisy_kernel import NoisyKernel
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import EvidenceBound, conjugate_gradients
from gpx.means import Zero
from gpx.models import ExactGP, IterativeOptions
from gpx.objectives import ExactMLL


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def system(rank=10, dtype=None, n=50, noise=0.1):
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = RBF(lengthscale=0.2, outputscale=1.5).double()
    options = IterativeOptions(rank=rank, product_dtype=dtype)
    made = NoisyKernel(kernel, x, number(noise), options)
    with torch.no_grad():
        dense = kernel.evaluate(x, x) + noise * torch.eye(n, dtype=torch.float64)
    return made, dense


def test_products_are_those_of_the_dense_matrix():
    made, dense = system()
    block = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(made.matmul(block), dense @ block)
    torch.testing.assert_close(made.matmul(block[:, 0]), dense @ block[:, 0])
    reduced, _ = system(dtype="float32")
    narrow = reduced.matmul(block.float())
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), dense @ block, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(reduced.matmul(block), dense @ block)  # residuals stay float64


@pytest.mark.parametrize("rank", [1, 10, 50])
def test_the_nystrom_matrix_is_below_and_the_node_below_the_spectrum(rank):
    made, dense = system(rank)
    eye = torch.eye(50, dtype=torch.float64)
    gap = torch.linalg.eigvalsh(dense - made.preconditioner.matmul(eye))
    assert float(gap.min()) > -1e-12
    assert float(gap.sum()) == pytest.approx(float(made.trace_error), abs=1e-10)
    whitened = made.whitened(eye)
    lowest = float(torch.linalg.eigvalsh(0.5 * (whitened + whitened.mT)).min())
    assert made.node <= lowest
    assert made.node > 1.0 - 1e-6


@pytest.mark.skipif(not g3.AVAILABLE, reason="elevators is not in $GPX_DATA")
@pytest.mark.parametrize("setting", g3.SETTINGS)
def test_golden_g3(setting):
    lengthscale, noise, evidence, first, ranks, plain = g3.SETTINGS[setting]
    x, y = g3.load()
    model = ExactGP(kernel=Matern32(), mean=Zero(), likelihood=Gaussian()).double()
    model.kernel.lengthscale, model.kernel.outputscale = number(lengthscale), number(1.0)
    model.likelihood.noise_variance = number(noise)
    with torch.no_grad():
        found = ExactMLL().evidence(model, x, y).value
        assert float(found) == pytest.approx(evidence, rel=1e-6)
        for rank, (trace, *steps) in ranks.items():
            options = IterativeOptions(rank=rank)
            made = NoisyKernel(model.kernel, x, model.likelihood.noise_variance, options)
            assert made.pivots[:6].tolist() == first
            assert float(made.trace_error) == pytest.approx(trace, rel=1e-5)
            for epsilon, count in zip((1.0, 1e-3), steps, strict=True):
                solved = conjugate_gradients(
                    made.matmul, y, preconditioner=made.preconditioner, stop=EvidenceBound(epsilon)
                )
                assert abs(solved.report.iterations - count) <= 1
        for epsilon, count in zip((1.0, 1e-3), plain, strict=True):
            stop = EvidenceBound(epsilon, noise_variance=noise)
            solved = conjugate_gradients(made.matmul, y, stop=stop)
            assert abs(solved.report.iterations - count) <= 1
    if setting == "long":  # worth having only where the matrix is ill-conditioned
        assert ranks[50][1] <= 0.7 * plain[0]
