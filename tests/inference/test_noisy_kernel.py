"""K and its Nystrom matrix Q: products, order, and the golden fixture on real data."""

import golden_g3 as g3
import pytest
import torch
from draws import double

from gpx.backends import Dense
from gpx.bases import GridEigenfunctions, GridOptions
from gpx.inference.noisy_kernel import NoisyKernel, PreconditionedKernel
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import EvidenceBound, conjugate_gradients, nystrom_preconditioner
from gpx.linalg.matmul import set_matmul
from gpx.linalg.thin_products import thin_product
from gpx.means import Zero
from gpx.models import ExactGP, IterativeOptions
from gpx.objectives import ExactMLL


def system(rank=10, dtype=None, n=50, noise=0.1):
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = RBF(lengthscale=0.2, outputscale=1.5).double()
    options = IterativeOptions(rank=rank, product_dtype=dtype)
    made = PreconditionedKernel(kernel, x, double(noise), options)
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
    model.kernel.lengthscale, model.kernel.outputscale = double(lengthscale), double(1.0)
    model.likelihood.noise_variance = double(noise)
    with torch.no_grad():
        found = ExactMLL().evidence(model, x, y).value
        assert float(found) == pytest.approx(evidence, rel=1e-6)
        for rank, (trace, *steps) in ranks.items():
            options = IterativeOptions(rank=rank)
            made = PreconditionedKernel(model.kernel, x, model.likelihood.noise_variance, options)
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


def problem(n, lengthscale):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(n, generator=generator, dtype=torch.float64)
    kernel = RBF(outputscale=None).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel, x, y


def eigenfunctions_below(kernel, x, noise, rank):
    options = IterativeOptions(preconditioner="grief", rank=rank)
    return PreconditionedKernel(kernel, x, double(noise), options).preconditioner


@torch.no_grad()
def test_eigenfunctions_make_the_dense_matrix_of_their_products():
    kernel, x, y = problem(60, 0.3)
    q = eigenfunctions_below(kernel, x, 0.1, 25)
    basis = GridEigenfunctions(kernel, 2, 25, GridOptions(points_per_dim=20, margin=0.0))
    basis.place(x)
    features, noise = basis(x), torch.full((60,), 0.1, dtype=torch.float64)
    dense = features @ features.mT + torch.diag(noise)
    torch.testing.assert_close(q.solve(y), torch.linalg.solve(dense, y), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.matmul(y), dense @ y, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.logdet(), torch.logdet(dense), rtol=1e-10, atol=0)
    assert q.below_kernel
    exact = kernel.evaluate(x, x) + torch.diag(noise)
    assert torch.linalg.eigvalsh(exact - dense).min() > -1e-8
    assert torch.linalg.eigvalsh(dense).min() > 0.0


@torch.no_grad()
@pytest.mark.parametrize(("lengthscale", "rank"), [(0.2, 100), (0.4, 60)])
def test_eigenfunctions_take_far_fewer_steps_than_none_and_fewer_than_a_subset(lengthscale, rank):
    kernel, x, y = problem(400, lengthscale)
    noise = 1e-4
    matrix = kernel.evaluate(x, x) + noise * torch.eye(400, dtype=torch.float64)
    chosen = x[:rank]
    subset = nystrom_preconditioner(
        kernel.evaluate(chosen, chosen), kernel.evaluate(chosen, x), noise
    )
    grid = eigenfunctions_below(kernel, x, noise, rank)
    plain = conjugate_gradients(matrix, y, max_iterations=5000)
    with_grid = conjugate_gradients(matrix, y, preconditioner=grid.solve)
    with_subset = conjugate_gradients(matrix, y, preconditioner=subset.solve)
    scale = plain.solution.abs().max()
    assert (with_grid.solution - plain.solution).abs().max() < 1e-2 * scale
    assert plain.report.iterations >= 20 * with_grid.report.iterations
    assert with_grid.report.iterations < with_subset.report.iterations


def test_tf32_is_for_products_of_a_solve_and_never_for_the_matrix(monkeypatch):
    seen, stored = [], Dense.stored

    def watched(self, entries):
        seen.append(("matrix", torch.get_float32_matmul_precision()))
        return stored(self, entries)

    def noted(*given, **options):
        seen.append(("product", torch.get_float32_matmul_precision()))
        return thin_product(*given, **options)

    monkeypatch.setattr(Dense, "stored", watched)
    for where in ("gpx.inference.noisy_kernel", "gpx.backends.dense"):
        monkeypatch.setattr(f"{where}.thin_product", noted)
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    system = NoisyKernel(RBF(2).double(), x, x.new_tensor(0.1), reduced=torch.float32)
    before = torch.get_float32_matmul_precision()
    try:
        set_matmul("tf32")
        system.matmul(x[:, 0].float())
        assert seen == [("matrix", "highest"), ("product", "high")]
        seen.clear()
        system.matmul(x[:, 0])  # a true residual, in float64
        assert seen == [("matrix", "highest"), ("product", "highest")]
        assert torch.get_float32_matmul_precision() == "highest"
        set_matmul("tf32x3")
        seen.clear()
        system.matmul(x[:, 0].float())
        assert seen[-1] == ("product", "highest")
    finally:
        set_matmul(None)
        torch.set_float32_matmul_precision(before)
