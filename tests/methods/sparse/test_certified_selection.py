"""Greedy sets that certify themselves: against dense evidence, smallest size, where they end."""

import dense_gaussian_process as dense
import golden_g1 as g1
import golden_g2 as g2
import pytest
import torch
from draws import double

from gpx.errors import DataError
from gpx.inducing import GreedyConditionalVariance
from gpx.inference.nystrom import BlockStore, Whitener, factorise, nystrom_sums
from gpx.kernels import RBF, Matern32, Matern52, Periodic
from gpx.methods.sparse import certified_selection as module
from gpx.methods.sparse.certified_selection import (
    BISECTION_SLACK,
    KLCertifier,
    certified_selection,
    least_kl_bound,
    prefix_sums,
)

CASES = [
    (RBF(lengthscale=0.8), 1, 0.1, 0.1),
    (RBF(lengthscale=1.5), 2, 0.02, 1.0),
    (Matern52(lengthscale=2.0), 1, 0.05, 0.5),
    (Matern32(lengthscale=3.0, outputscale=2.0), 1, 0.3, 2.0),
]


def data(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = x.sum(1).sin() + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y


def sums_of(kernel, x, z, y):
    whitener, report = factorise(kernel, z, escalate=False)
    return whitener, nystrom_sums(BlockStore(whitener, x), y), report


@torch.no_grad()
def exact_kl(kernel, x, z, y, noise):
    matrices = [m.numpy() for m in (kernel.evaluate(x), kernel.evaluate(z), kernel.evaluate(z, x))]
    bound = dense.collapsed_bound(kernel.diagonal(x).numpy(), *matrices[1:], y.numpy(), noise)
    return dense.log_marginal_likelihood(matrices[0], y.numpy(), noise) - bound


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize(("kernel", "d", "noise", "tolerance"), CASES)
@torch.no_grad()
def test_the_exact_divergence_is_within_the_tolerance(kernel, d, noise, tolerance, products):
    kernel = kernel.double()
    x, y = data(400, d)
    certifier = KLCertifier(kernel, x, y, double(noise), tolerance, products)
    found = certified_selection(certifier, max_points=400)
    assert found.met
    assert "nats" in str(found)
    assert "above" not in str(found)
    exact = exact_kl(kernel, x, found.points, y, noise)
    assert -1e-6 <= exact <= found.kl + 1e-6 <= tolerance + 1e-6
    size = len(found.points)
    greedy = GreedyConditionalVariance().select(x, kernel, size)
    assert torch.equal(found.points, greedy.points)
    fewer = (
        size - 1 - round(BISECTION_SLACK * size)
    )  # bisection may stop this far above the smallest
    assert certifier.bound(*sums_of(kernel, x, found.points[:fewer], y)) > tolerance


@pytest.mark.parametrize("fixture", ["g1", "g2"])
@torch.no_grad()
def test_golden_fixtures_reach_a_tenth_of_a_nat(fixture):
    g = {"g1": g1, "g2": g2}[fixture]
    kernel = RBF().double()
    kernel.lengthscale, kernel.outputscale = double(0.7), double(1.3)
    if fixture == "g2":  # condition number 2e7
        season = RBF(lengthscale=20.0, outputscale=2.4**2) * Periodic(1, 1.3, None)
        kernel = (RBF(lengthscale=67.0, outputscale=66.0**2) + season).double()
    certifier = KLCertifier(kernel, g.x[:, None], g.y, double(g.NOISE), 0.1)
    found = certified_selection(certifier, max_points=400)
    assert found.met
    assert len(found.points) < 70
    exact = exact_kl(kernel, g.x[:, None], found.points, g.y, g.NOISE)
    assert -1e-5 <= exact <= found.kl + 1e-5  # rounding of the dense evidence


@torch.no_grad()
def test_products_with_the_kernel_matrix_certify_with_fewer_points():
    kernel = Matern52(lengthscale=2.0).double()
    x, y = data(400, 1)
    certifiers = [KLCertifier(kernel, x, y, double(0.05), 0.5, p) for p in (False, True)]
    coarse, sharp = (certified_selection(c, max_points=400) for c in certifiers)
    assert len(sharp.points) < 0.8 * len(coarse.points)
    exact = exact_kl(kernel, x, sharp.points, y, 0.05)
    same = sums_of(kernel, x, sharp.points, y)
    assert exact <= certifiers[1].bound(*same) <= 0.5 < certifiers[0].bound(*same)


@torch.no_grad()
def test_products_are_made_for_few_data_only(monkeypatch):
    kernel = Matern52(lengthscale=2.0).double()
    x, y = data(200, 1)
    by_size, with_products, without = (
        KLCertifier(kernel, x, y, double(0.05), 0.5, p) for p in (None, True, False)
    )
    few = sums_of(kernel, x, certified_selection(with_products, max_points=200).points, y)
    assert by_size.bound(*few) == with_products.bound(*few) < without.bound(*few)
    monkeypatch.setitem(module.MAX_ROWS_FOR_PRODUCTS, "cpu", 199)
    assert by_size.bound(*few) == without.bound(*few)


@torch.no_grad()
def test_sums_of_a_prefix_are_those_of_the_first_points():
    kernel = Matern32().double()
    x, y = data(200, 2)
    certifier = KLCertifier(kernel, x, y, double(0.1), 0.1, products=False)
    z = x[:40]
    whitener, whole, report = sums_of(kernel, x, z, y)
    for m in (1, 17, 39, 40):
        got, want = prefix_sums(whole, m), sums_of(kernel, x, z[:m], y)
        for name in ("gram", "projected", "trace_error", "squared_residual"):
            torch.testing.assert_close(
                getattr(got, name), getattr(want[1], name), rtol=1e-9, atol=1e-10
            )
        part = Whitener(kernel, z[:m], whitener.factor[:m, :m])
        bound = certifier.bound(part, got, report)
        assert bound == pytest.approx(certifier.bound(*want), rel=1e-7)
        assert float(least_kl_bound(got.trace_error, double(0.1))) <= bound


@torch.no_grad()
def test_no_targets_make_the_bound_smaller_than_its_trace_part():
    x, _ = data(100, 1)
    nothing = torch.zeros(100, dtype=torch.float64)
    found = sums_of(RBF().double(), x, x[:5], nothing)
    for noise in (1e-3, 1.0):
        least = float(least_kl_bound(found[1].trace_error, double(noise)))
        for tolerance in (0.5 * least, 2.0 * least):
            certifier = KLCertifier(RBF().double(), x, nothing, double(noise), tolerance, True)
            assert 0.0 < least <= certifier.bound(*found)


@torch.no_grad()
def test_the_reason_for_stopping_is_reported():
    x, y = data(150, 2)

    def select(kernel, x, y, noise, tolerance, most):
        return certified_selection(
            KLCertifier(kernel.double(), x, y, double(noise), tolerance), max_points=most
        )

    few = select(Matern32(lengthscale=0.1), x, y, 1e-2, 0.1, 7)
    assert not few.met
    assert len(few.points) == 7
    assert "max_inducing=7 is the limit set" in str(few)
    assert "above the 0.1 asked for" in str(few)
    found = select(Matern32(lengthscale=0.5), x[:30].repeat(5, 1), y, 1e-2, 0.1, 150)
    assert found.met
    assert len(found.points) == 30
    # a kernel of rounding: nothing further can be told apart, and the targets are huge
    flat = RBF(lengthscale=1e4)
    found = select(flat, x, 1e12 * y, 1e-6, 1e-6, 150)
    assert not found.met
    assert "further points add nothing" in str(found)
    assert exact_kl(flat, x, found.points, y, 1e-6) <= found.kl


@torch.no_grad()
def test_all_of_the_data_is_the_last_set():
    x, y = data(20, 3)
    certifier = KLCertifier(
        Matern32(lengthscale=1e-2).double(), x, 1e9 * y, double(1e-6), tolerance=1e-9
    )
    found = certified_selection(certifier, max_points=50)
    assert len(found.points) == 20
    assert found.met or "all of the training data" in str(found)


@torch.no_grad()
def test_targets_that_are_not_finite_are_named():
    x, y = data(50, 1)
    y[7] = torch.nan
    certifier = KLCertifier(Matern52().double(), x, y, double(0.1), 0.1, True)
    with pytest.raises(DataError, match=r"1 of 50 targets are not finite"):
        certified_selection(certifier, max_points=50)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.no_grad()
def test_cuda_selects_the_same_points():
    x, y = data(400, 1)
    kernel = Matern52(lengthscale=2.0).double()
    here = certified_selection(KLCertifier(kernel, x, y, double(0.05), 0.5), max_points=400)
    there = certified_selection(
        KLCertifier(kernel.cuda(), x.cuda(), y.cuda(), double(0.05).cuda(), 0.5), max_points=400
    )
    assert abs(len(here.points) - len(there.points)) <= 1
    torch.testing.assert_close(there.points[:10].cpu(), here.points[:10])
