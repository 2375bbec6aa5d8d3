"""Log marginal likelihood: golden values, gradients against autograd and finite differences."""

import math

import golden_g1 as g1
import pytest
import torch
from model_gradients import KERNELS, gradients

from gpx.errors import ConfigError
from gpx.inference import dense_factor
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, Laplace
from gpx.means import Linear, Zero
from gpx.models import SGPR, ExactGP
from gpx.objectives import ExactMLL
from gpx.training.lbfgsb import LBFGSB


def autograd_value(model, x, y, relative_jitter=0.0):
    """The same quantity, plainly, differentiated by autograd."""
    matrix = model.kernel.evaluate(x, x)
    matrix = matrix + model.likelihood.noise_variance * torch.eye(len(x), dtype=x.dtype)
    shift = relative_jitter * matrix.diagonal().mean()
    matrix = matrix + shift * torch.eye(len(x), dtype=x.dtype)
    residual = y - model.mean(x)
    fit = residual @ torch.linalg.solve(matrix, residual)
    return -0.5 * (fit + torch.logdet(matrix) + len(x) * math.log(2 * math.pi))


def problem(kernel, n=50, dtype=torch.float64):
    torch.manual_seed(0)
    x = torch.randn(n, 3, dtype=torch.float64).to(dtype)
    y = x.sum(1).sin() + 0.1 * torch.randn(n, dtype=torch.float64).to(dtype)
    model = ExactGP(kernel=kernel, mean=Linear(3, bias=0.3), likelihood=Gaussian(0.07)).to(dtype)
    return model, x, y


@pytest.mark.parametrize("name", KERNELS)
def test_value_and_gradient_equal_autograd(name):
    model, x, y = problem(KERNELS[name]())
    evidence = ExactMLL().evidence(model, x, y)
    want = autograd_value(model, x, y)
    torch.testing.assert_close(evidence.value, want, rtol=1e-12, atol=0)
    for got, expected in zip(gradients(evidence.value, model), gradients(want, model), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    assert evidence.kind == "exact"
    assert evidence.report.jitter == 0.0
    torch.testing.assert_close(sum(evidence.parts.values()), evidence.value.detach())


def test_gradient_in_float32_is_close_to_float64():
    model, x, y = problem(KERNELS["matern32"](), dtype=torch.float32)
    value = ExactMLL().evidence(model, x, y).value
    got = gradients(value, model)
    wide = model.double()
    want_value = autograd_value(wide, x.double(), y.double())
    want = gradients(want_value, wide)
    # condition number of K here is about 1e3; float32 keeps 7 digits
    torch.testing.assert_close(value, want_value, rtol=1e-4, atol=1e-3)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=2e-3, atol=2e-3)


def test_gradient_equals_finite_differences():
    model, x, y = problem(KERNELS["matern32"]())
    grads = gradients(ExactMLL().evidence(model, x, y).value, model)
    step = 1e-6
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        flat = parameter.data.view(-1)
        for i in range(flat.numel()):
            ends = []
            for sign in (1.0, -1.0):
                flat[i] += sign * step
                with torch.no_grad():
                    ends.append(float(ExactMLL().evidence(model, x, y).value))
                flat[i] -= sign * step
            numeric = (ends[0] - ends[1]) / (2 * step)
            assert float(grad.view(-1)[i]) == pytest.approx(numeric, rel=1e-5, abs=1e-5)


def test_gradient_reaches_inputs_made_by_a_network():
    model, x, y = problem(KERNELS["matern32"]())
    layer = torch.nn.Linear(3, 3).double()
    params = list(layer.parameters())
    got = torch.autograd.grad(ExactMLL().evidence(model, layer(x), y).value, params)
    want = torch.autograd.grad(autograd_value(model, layer(x), y), params)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.* added to the noise variance")
def test_gradient_follows_the_jitter(monkeypatch):
    monkeypatch.setitem(
        __import__("gpx.linalg.cholesky", fromlist=["LADDER"]).LADDER, torch.float64, (1e-2,)
    )
    model, x, y = problem(KERNELS["sum"]())
    evidence = ExactMLL().evidence(model, x, y)
    assert evidence.report.relative == evidence.facts["jitter"] == 1e-2
    want = autograd_value(model, x, y, relative_jitter=1e-2)
    torch.testing.assert_close(evidence.value, want, rtol=1e-12, atol=0)
    for a, b in zip(gradients(evidence.value, model), gradients(want, model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_block_size_does_not_matter(monkeypatch):
    model, x, y = problem(KERNELS["matern32"]())
    want = ExactMLL().evidence(model, x, y).value
    want_grads = gradients(want, model)
    monkeypatch.setitem(dense_factor.BLOCK_BYTES, "cpu", 3 * len(x) * 8)
    got = ExactMLL().evidence(model, x, y).value
    torch.testing.assert_close(got, want, rtol=1e-13, atol=0)
    for a, b in zip(gradients(got, model), want_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_golden_value():
    with torch.no_grad():
        evidence = ExactMLL().evidence(g1.exact_model(ExactGP), g1.x[:, None], g1.y)
    assert float(evidence.value) == pytest.approx(-12.33457183, rel=1e-8)
    assert float(evidence.parts["fit"]) == pytest.approx(-0.5 * 173.1094506, rel=1e-8)
    assert float(evidence.parts["complexity"]) == pytest.approx(0.5 * 516.0157202, rel=1e-8)
    assert not evidence.value.requires_grad


def test_loss_is_minus_the_evidence_per_point():
    model, x, y = problem(KERNELS["matern32"]())
    objective = ExactMLL()
    loss = objective(model, x, y)
    torch.testing.assert_close(loss, -objective.evidence(model, x, y).value / len(x))
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_it_refuses_other_models_and_likelihoods():
    sparse = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=1, num_inducing=2)
    with pytest.raises(ConfigError, match=r"needs ExactGP, or a model with .*, got SGPR"):
        ExactMLL().check(sparse)
    model = ExactGP(kernel=RBF(), mean=Zero(), likelihood=Laplace())
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood, got Laplace"):
        ExactMLL().check(model)


@pytest.mark.parametrize(
    ("start", "evidence", "hyperparameters"),
    [
        ((0.5, 1.0, 0.1), -20.2996, (0.334, 0.539, 0.0389)),
        ((1.5, 1.0, 0.04), -64.9819, (0.924, 1.194, 0.0832)),  # the fast wave taken for noise
    ],
)
def test_two_optima_of_a_toy_problem(start, evidence, hyperparameters):
    """Lengthscale, outputscale, noise variance: where L-BFGS ends depends on where it starts."""
    index = torch.arange(200, dtype=torch.float64)
    x = index * (10.0 / 199.0)
    y = (2 * x).sin() + 0.3 * (7 * x).cos() + 0.2 * 2.0**0.5 * (1.7 * index.square()).sin()
    model = ExactGP(
        kernel=RBF(1, [start[0]], start[1]), mean=Zero(), likelihood=Gaussian(start[2])
    ).double()
    LBFGSB().minimise(
        list(model.parameters()),
        lambda: -ExactMLL().evidence(model, x[:, None], y).value / 200,
        60,
        lambda *_: None,
    )
    with torch.no_grad():
        found = ExactMLL().evidence(model, x[:, None], y).value.item()
        ends = model.kernel.lengthscale, model.kernel.outputscale, model.likelihood.noise_variance
    assert found == pytest.approx(evidence, abs=1e-3)
    assert [v.item() for v in ends] == pytest.approx(hyperparameters, rel=5e-3)
