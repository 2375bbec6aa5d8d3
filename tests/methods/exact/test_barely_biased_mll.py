"""Barely biased evidence: the bias asked for, the bracket, the cap, the gradient."""

import pytest
import torch
from barely_biased_problem import problem

from gpx.errors import ConfigError
from gpx.linalg import UnconvergedWarning
from gpx.methods.exact import barely_biased_mll, iterative_mll
from gpx.objectives import BarelyBiasedMLL, ExactMLL


def test_a_larger_bound_takes_fewer_steps():
    model, x, y = problem()
    with torch.no_grad():
        steps = [
            BarelyBiasedMLL(bias=bias).evidence(model, x, y).report.iterations
            for bias in (0.01, 1.0, 100.0)
        ]
    assert steps[0] > steps[1] > steps[2] >= 1


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
        iterative_mll,
        "probe_vectors",
        lambda n, *_, **__: n**0.5 * torch.eye(n, dtype=torch.float64),
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


def test_mean_gradient_is_within_four_standard_errors_of_the_exact_one():
    """30 evaluations of 4 probes; four parameters: one false alarm in 600 (t, 29 degrees)."""
    model, x, y = problem(n=40)
    parameters = list(model.parameters())
    want = torch.autograd.grad(ExactMLL().evidence(model, x, y).value, parameters)
    objective, found = BarelyBiasedMLL(bias=0.01), []
    for seed in range(30):
        value = objective.evidence(model, x, y, generator=torch.Generator().manual_seed(seed)).value
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]))
    got = torch.stack(found)
    error = got.std(0) / 30**0.5
    expected = torch.cat([g.flatten() for g in want])
    # the bias of the gradient itself, from the steps left out, is of the order of that of the value
    assert bool(((got.mean(0) - expected).abs() <= 4.0 * error + 0.05).all())


def test_constant_targets_have_no_fit_and_finite_gradients():
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


def test_the_columns_reported_are_those_that_were_multiplied(monkeypatch):
    columns = []
    product = barely_biased_mll.PreconditionedKernel.matmul

    def counted(self, vectors):
        columns.append(1 if vectors.ndim == 1 else vectors.shape[1])
        return product(self, vectors)

    monkeypatch.setattr(barely_biased_mll.PreconditionedKernel, "matmul", counted)
    model, x, y = problem()
    with torch.no_grad():
        facts = BarelyBiasedMLL(bias=0.1, probes=3).evidence(model, x, y).facts
    assert facts["columns_multiplied"] == sum(columns)
