"""Greedy sets that certify themselves: against dense evidence, smallest size, where they end."""

import importlib.util
from pathlib import Path

import pytest
import torch

from gpx.inducing import GreedyConditionalVariance
from gpx.kernels import RBF, Matern32, Matern52
from gpx.models.certified_selection import (
    SLACK,
    certified_kl,
    certified_selection,
    least_kl_bound,
    prefix_sums,
)
from gpx.models.nystrom import BlockStore, factorise, nystrom_sums


def oracle():
    path = Path(__file__).parents[1] / "oracles" / "dense_gaussian_process.py"
    spec = importlib.util.spec_from_file_location("dense_gaussian_process", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DENSE = oracle()
CASES = [
    (RBF(lengthscale=0.8), 1, 0.1, 0.1),
    (RBF(lengthscale=1.5), 2, 0.02, 1.0),
    (Matern52(lengthscale=2.0), 1, 0.05, 0.5),
    (Matern32(lengthscale=3.0, outputscale=2.0), 1, 0.3, 2.0),
]


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def data(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = x.sum(1).sin() + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y


def sums_of(kernel, x, z, y):
    whitener, _ = factorise(kernel, z, escalate=False)
    return nystrom_sums(BlockStore(whitener, x), y)


@torch.no_grad()
def exact_kl(kernel, x, z, y, noise):
    matrices = [m.numpy() for m in (kernel.evaluate(x), kernel.evaluate(z), kernel.evaluate(z, x))]
    bound = DENSE.collapsed_bound(kernel.diagonal(x).numpy(), *matrices[1:], y.numpy(), noise)
    return DENSE.log_marginal_likelihood(matrices[0], y.numpy(), noise) - bound


@pytest.mark.parametrize(("kernel", "d", "noise", "tolerance"), CASES)
@torch.no_grad()
def test_the_exact_divergence_is_within_the_tolerance(kernel, d, noise, tolerance):
    kernel = kernel.double()
    x, y = data(400, d)
    found = certified_selection(kernel, x, y, double(noise), tolerance=tolerance, max_points=400)
    assert found.met
    assert "nats" in str(found)
    assert "above" not in str(found)
    exact = exact_kl(kernel, x, found.points, y, noise)
    assert -1e-6 <= exact <= found.kl + 1e-6 <= tolerance + 1e-6
    size = len(found.points)
    greedy = GreedyConditionalVariance().select(x, kernel, size)
    assert torch.equal(found.points, greedy.points)
    fewer = size - 1 - round(SLACK * size)  # bisection may stop this far above the smallest
    too_few = sums_of(kernel, x, found.points[:fewer], y)
    assert certified_kl(too_few, double(noise)) > tolerance


@torch.no_grad()
def test_sums_of_a_prefix_are_those_of_the_first_points():
    kernel, noise = Matern32().double(), double(0.1)
    x, y = data(200, 2)
    z = x[:40]
    whole = sums_of(kernel, x, z, y)
    for m in (1, 17, 39, 40):
        got, want = prefix_sums(whole, m), sums_of(kernel, x, z[:m], y)
        for name in ("gram", "projected", "trace_error", "squared_residual"):
            torch.testing.assert_close(
                getattr(got, name), getattr(want, name), rtol=1e-9, atol=1e-10
            )
        assert certified_kl(got, noise) == pytest.approx(certified_kl(want, noise), rel=1e-7)
        assert float(least_kl_bound(got.trace_error, noise)) <= certified_kl(got, noise)


@torch.no_grad()
def test_no_targets_make_the_bound_smaller_than_its_trace_part():
    x, _ = data(100, 1)
    for noise in (1e-3, 1.0):
        none = sums_of(RBF().double(), x, x[:5], torch.zeros(100, dtype=torch.float64))
        least = float(least_kl_bound(none.trace_error, double(noise)))
        assert 0.0 < least <= certified_kl(none, double(noise))


@torch.no_grad()
def test_what_ends_the_growth_is_said():
    x, y = data(150, 2)
    kernel = Matern32(lengthscale=0.1).double()
    few = certified_selection(kernel, x, y, double(1e-2), tolerance=0.1, max_points=7)
    assert not few.met
    assert len(few.points) == 7
    assert "approx.max_inducing=7 is the limit set" in str(few)
    assert "above the 0.1 asked for" in str(few)
    repeated, kernel = x[:30].repeat(5, 1), Matern32(lengthscale=0.5).double()
    found = certified_selection(kernel, repeated, y, double(1e-2), tolerance=0.1, max_points=150)
    assert found.met
    assert len(found.points) == 30
    # a kernel of rounding: nothing further can be told apart, and the targets are huge
    flat = RBF(lengthscale=1e4).double()
    found = certified_selection(flat, x, 1e12 * y, double(1e-6), tolerance=1e-6, max_points=150)
    assert not found.met
    assert "further points add nothing" in str(found)
    assert exact_kl(flat, x, found.points, y, 1e-6) <= found.kl


@torch.no_grad()
def test_all_of_the_data_is_the_last_set():
    x, y = data(20, 3)
    kernel = Matern32(lengthscale=1e-2).double()
    found = certified_selection(kernel, x, 1e9 * y, double(1e-6), tolerance=1e-9, max_points=50)
    assert len(found.points) == 20
    assert found.met or "all of the training data" in str(found)
