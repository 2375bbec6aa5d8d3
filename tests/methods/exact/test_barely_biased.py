"""Barely biased estimate: measured bias, brackets without chance, derivative of the rule."""

import statistics

import pytest
import torch
from barely_biased_problem import problem
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.linalg import BlockLanczos, block_gauss, probe_vectors
from gpx.methods.exact.barely_biased import barely_biased_log_marginal_likelihood, quadrature_modes
from gpx.objectives import ExactMLL


def system_of(model, x):
    return PreconditionedKernel(model.kernel, x, model.likelihood.noise_variance, model.iterative)


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
            errors.append(float(found.terms.total()) - exact)
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
        below = float(ExactMLL().evidence(model, x, y).value - found.terms.total())
    assert found.report.converged
    slack = 1e-9 * (1.0 + float(found.terms.fit.abs()))
    assert below <= found.bias_bound + slack
    assert below >= -slack - (found.bias_bound if estimate == "middle" else 0.0)
    assert found.bias_bound <= 1.01 * bias


def test_modes_are_the_derivative_of_the_block_rule():
    """d(e^T log(T) e) = <M, dT>, against autograd through the eigenproblem, for all starts."""
    model, x, _ = problem()
    with torch.no_grad():
        probes = probe_vectors(60, 3, generator=torch.Generator().manual_seed(3))
        process = BlockLanczos(system_of(model, x).whitened, probes, 12)
        while process.extend():
            pass
    projected = process.projected.clone().requires_grad_()
    value = block_gauss(torch.log, projected, process.coefficients).sum()
    (want,) = torch.autograd.grad(value, projected)
    weights, modes = quadrature_modes(process.projected, process.coefficients)
    matrix = modes @ (weights.unsqueeze(1) * modes.mT)
    torch.testing.assert_close(matrix, 0.5 * (want + want.mT), rtol=1e-7, atol=1e-8)
