"""Barely biased evidence: the bias asked for, the bracket, the cap, the gradient."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError
from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import Lanczos, UnconvergedWarning, gauss, gauss_radau, probe_vectors
from gpx.means import Zero
from gpx.models import ExactGP, IterativeOptions
from gpx.models.noisy_kernel import NoisyKernel
from gpx.objectives import BarelyBiasedMLL, ExactMLL
from gpx.objectives import barely_biased_mll as module
from gpx.objectives.barely_biased_mll import (
    barely_biased_log_marginal_likelihood,
    quadrature_modes,
)


def problem(rank=8, n=60, noise=0.02):
    torch.manual_seed(0)
    x = torch.randn(n, 2, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, dtype=torch.float64)
    model = ExactGP(
        kernel=Matern32(ard_num_dims=2, lengthscale=[0.8, 1.5], outputscale=1.4),
        mean=Zero(),
        likelihood=Gaussian(noise),
        solver="barely_biased",
        iterative=IterativeOptions(rank=rank),
    ).double()
    return model, x, y


def system_of(model, x):
    return NoisyKernel(model.kernel, x, model.likelihood.noise_variance, model.iterative)


@pytest.mark.parametrize(
    ("bias", "kind", "estimate"),
    [(3.0, "rademacher", "below"), (0.3, "gaussian", "below"), (0.3, "rademacher", "middle")],
)
def test_measured_bias_is_within_the_bound_over_100_seeds(bias, kind, estimate):
    """Two-sided 4 standard errors: one false alarm in 16,000 per case."""
    n = 40
    model, x, y = problem(n=n)
    with torch.no_grad():
        exact = float(ExactMLL().evidence(model, x, y).value)
        system, errors = system_of(model, x), []
        for seed in range(100):
            found = barely_biased_log_marginal_likelihood(
                system,
                y,
                probe_vectors(n, 2, kind=kind, generator=torch.Generator().manual_seed(seed)),
                bias=bias,
                max_steps=n,
                estimate=estimate,
            )
            assert found.report.converged
            assert found.bias_bound <= 1.01 * bias
            errors.append(float(found.terms.value()) - exact)
    mean, room = statistics.mean(errors), 4 * statistics.stdev(errors) / 10
    assert -bias - room <= mean <= room + (bias if estimate == "middle" else 0.0)


@settings(max_examples=15, deadline=None)
@given(
    bias=st.floats(1e-6, 30.0),
    noise=st.floats(1e-4, 1.0),
    rank=st.integers(1, 20),
    smooth=st.booleans(),
    estimate=st.sampled_from(["below", "middle"]),
)
def test_the_bound_holds_whichever_column_rests_first(bias, noise, rank, smooth, estimate):
    """Probes sqrt(n) e_i: their mean is the trace itself, and nothing is left to chance."""
    n = 25
    model, x, y = problem(rank, n, noise)
    with torch.no_grad():
        system = system_of(model, x)
        y = system.matmul(torch.ones_like(y)) if smooth else y  # solved in few steps, or in many
        found = barely_biased_log_marginal_likelihood(
            system,
            y,
            n**0.5 * torch.eye(n, dtype=torch.float64),
            bias=bias,
            max_steps=n,
            estimate=estimate,
        )
        below = float(ExactMLL().evidence(model, x, y).value - found.terms.value())
    assert found.report.converged
    slack = 1e-9 * (1.0 + float(found.terms.fit.abs()))
    assert below <= found.bias_bound + slack
    assert below >= -slack - (found.bias_bound if estimate == "middle" else 0.0)
    assert found.bias_bound <= 1.01 * bias


def test_a_larger_bound_takes_fewer_steps():
    model, x, y = problem()
    with torch.no_grad():
        steps = [
            BarelyBiasedMLL(bias=bias).evidence(model, x, y).report.iterations
            for bias in (0.01, 1.0, 100.0)
        ]
    assert steps[0] > steps[1] > steps[2] >= 1


def test_the_gap_of_every_probe_shrinks_and_brackets_the_truth():
    model, x, _ = problem()
    with torch.no_grad():
        system = system_of(model, x)
        probes = probe_vectors(60, 5, generator=torch.Generator().manual_seed(0))
        process = Lanczos(system.whitened, probes, 60)
        dense = system.whitened(torch.eye(60, dtype=torch.float64))
        values, modes = torch.linalg.eigh(0.5 * (dense + dense.mT))
        exact = ((modes.mT @ probes).square() * values.log().unsqueeze(1)).sum(0)
        last = torch.full((5,), torch.inf, dtype=torch.float64)
        for _ in range(25):
            process.extend(1)
            scale = process.norms.square()
            upper = scale * gauss(torch.log, process.alphas, process.betas)
            lower = scale * gauss_radau(torch.log, process.alphas, process.betas, system.node)
            slack = 1e-9 * exact.abs()
            assert bool((upper >= exact - slack).all())
            assert bool((lower <= exact + slack).all())
            assert bool((upper - lower <= last + slack).all())
            last = upper - lower


def test_the_cap_voids_the_bound_and_is_flagged():
    model, x, y = problem(rank=1)
    with (
        torch.no_grad(),
        pytest.warns(UnconvergedWarning, match="4 steps were not enough: bias at most"),
    ):
        found = BarelyBiasedMLL(bias=1e-3, max_steps=4).evidence(model, x, y)
    assert not found.report.converged
    assert found.facts["solver_converged"] is False
    assert found.facts["bias_bound"] > 1e-3


def test_an_unreachable_bound_is_reported_with_the_one_that_holds():
    model, x, y = problem(n=20)
    with torch.no_grad(), pytest.warns(UnconvergedWarning, match="rounding allows no less"):
        found = BarelyBiasedMLL(bias=1e-300, max_steps=500).evidence(model, x, y)
    exact = ExactMLL().evidence(model, x, y).value.item()
    assert found.facts["bias_bound"] < 1e-8
    assert abs(found.value.item() - exact) < 10 * found.parts["standard_error"].item() + 1e-6


@pytest.mark.parametrize("rank", [1, 8, 60])
def test_expected_gradient_is_exact_when_the_spaces_are_complete(monkeypatch, rank):
    monkeypatch.setattr(
        module, "probe_vectors", lambda n, *_, **__: n**0.5 * torch.eye(n, dtype=torch.float64)
    )
    model, x, y = problem(rank, n=30)
    got = BarelyBiasedMLL(bias=1e-10).evidence(model, x, y)
    want = ExactMLL().evidence(model, x, y)
    torch.testing.assert_close(got.value, want.value, rtol=1e-9, atol=0)
    parameters = list(model.parameters())
    pairs = (torch.autograd.grad(e.value, parameters) for e in (got, want))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_gradient_at_a_practical_bound_is_close():
    """Few steps: the expected gradient is only nearly exact (an observation of the source)."""
    model, x, y = problem(rank=20)
    want = torch.autograd.grad(ExactMLL().evidence(model, x, y).value, list(model.parameters()))
    total = [torch.zeros_like(g) for g in want]
    objective = BarelyBiasedMLL(bias=0.1, probes=50)
    for seed in range(4):
        found = objective.evidence(model, x, y, generator=torch.Generator().manual_seed(seed))
        for sum_, g in zip(
            total, torch.autograd.grad(found.value, list(model.parameters())), strict=True
        ):
            sum_ += g / 4
    got, expected = torch.cat([g.flatten() for g in total]), torch.cat([g.flatten() for g in want])
    assert float((got - expected).norm() / expected.norm()) < 0.05


def test_modes_are_the_derivative_of_the_gauss_rule():
    model, x, _ = problem()
    with torch.no_grad():
        probes = probe_vectors(60, 2, generator=torch.Generator().manual_seed(3))
        process = Lanczos(system_of(model, x).whitened, probes, 9).extend(9)
    alphas = process.alphas[1].clone().requires_grad_()
    betas = process.betas[1].clone().requires_grad_()
    want = torch.autograd.grad(gauss(torch.log, alphas, betas), [alphas, betas])
    weights, modes = quadrature_modes(process, 1)
    matrix = modes @ (weights.unsqueeze(1) * modes.mT)
    torch.testing.assert_close(matrix.diagonal(), want[0], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(2 * matrix.diagonal(1), want[1][:-1], rtol=1e-7, atol=1e-9)


def test_targets_equal_to_their_mean_leave_the_determinant_alone():
    model, x, y = problem()
    found = BarelyBiasedMLL().evidence(model, x, torch.zeros_like(y))
    assert float(found.parts["fit"]) == 0.0
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.value, [*model.parameters()]))


def test_options_are_checked():
    with pytest.raises(ConfigError, match="bias=0"):
        BarelyBiasedMLL(bias=0.0)
    with pytest.raises(ConfigError, match="max_steps=0"):
        BarelyBiasedMLL(max_steps=0)
    with pytest.raises(ConfigError, match="kind_of_probes=x"):
        BarelyBiasedMLL(kind_of_probes="x")
