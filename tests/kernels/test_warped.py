"""Warped inputs: Kumaraswamy's distribution function, and what models do with kernels of it."""

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Kumaraswamy, Linear, Matern52, Warped
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.sampling import Frequencies, prior_functions

A, B, REACH = [0.6, 1.7], [1.4, 0.5], 2.0


def warp(a=A, b=B):
    return Kumaraswamy(2, a, b, reach=REACH).double()


def draw(n, seed=0, spread=1.9):
    generator = torch.Generator().manual_seed(seed)
    return spread * (2.0 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1.0)


def test_values_are_those_of_the_distribution_function():
    """Taken from EDGE = 1e-6 on: of the largest slope there, 0.6 (1e-6)^-0.4, 4e-4 are missing."""
    x = draw(50)
    with torch.no_grad():
        found = warp()(x).numpy()
    unit = (x.numpy() + REACH) / (2.0 * REACH)
    want = REACH * (2.0 * (1.0 - (1.0 - unit ** np.array(A)) ** np.array(B)) - 1.0)
    np.testing.assert_allclose(found, want, rtol=0, atol=5e-3)
    inner = np.abs(x.numpy()).max(1) < 0.5 * REACH
    np.testing.assert_allclose(found[inner], want[inner], rtol=0, atol=3e-3)


def test_it_is_the_identity_for_ones_and_beyond_its_reach():
    x = draw(50, spread=4.0)
    torch.testing.assert_close(warp(1.0, 1.0)(x), x, rtol=0, atol=1e-10)
    outside = x.abs() >= REACH
    assert outside.any()
    assert torch.equal(warp()(x)[outside], x[outside])


def test_it_increases_and_has_no_jumps():
    line = torch.linspace(-3.0, 3.0, 60_001, dtype=torch.float64)
    with torch.no_grad():
        values = warp()(torch.stack([line, line], 1))
    steps = values.diff(dim=0)
    assert (steps > 0.0).all()
    assert steps.max() < 0.05  # the steepest ends: 4 (1e-4 / 4)^0.5 is 0.02


@pytest.mark.parametrize(
    "shapes", [(0.02, 1.0), (0.003, 0.5), (30.0, 0.1), (8.0, 200.0), (0.6, 1.4)]
)
def test_extreme_shapes_have_gradients_in_float32(shapes):
    """At the upper end u^a rounds to one."""
    line = torch.linspace(-1.999, 1.999, 101).unsqueeze(-1)
    found = []
    for dtype in (torch.float32, torch.float64):
        module = Kumaraswamy(1, *shapes, reach=REACH).to(dtype)
        values = module(line.to(dtype))
        slopes = torch.autograd.grad(values.sum(), list(module.parameters()))
        found.append([values.detach().double(), *[s.double() for s in slopes]])
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(narrow, wide, rtol=2e-4, atol=2e-4)


def test_a_kernel_of_warped_inputs_is_that_of_their_images():
    kernel = Warped(RBF(2, [0.7, 1.2], 1.3), warp()).double()
    x, z = draw(6), draw(4, seed=1)
    with torch.no_grad():
        images = warp()(x), warp()(z)
        torch.testing.assert_close(kernel.evaluate(x, z), kernel.kernel.evaluate(*images))
        torch.testing.assert_close(kernel(x, z).to_dense(), kernel.kernel.evaluate(*images))
    unwarped = Warped(kernel.kernel, warp(1.0, 1.0))
    torch.testing.assert_close(unwarped.evaluate(x, z), kernel.kernel.evaluate(x, z))
    some = Warped(RBF(1, 0.7), Kumaraswamy(1, 0.6, 1.4, REACH), active_dims=[1]).double()
    alone = Warped(RBF(1, 0.7), Kumaraswamy(1, 0.6, 1.4, REACH)).double()
    torch.testing.assert_close(some.evaluate(x, z), alone.evaluate(x[:, 1:], z[:, 1:]))


def test_the_evidence_has_derivatives_in_the_warp():
    kernel = Warped(Matern52(2, [0.7, 1.2], 1.3), warp()).double()
    model = ExactGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.1)).double()
    x = draw(15)
    y = torch.sin(x[:, 0] ** 2)
    ExactMLL().evidence(model, x, y).value.backward()
    for name in ("a", "b"):
        raw = kernel.warp.parametrizations[name].original
        numeric = torch.zeros_like(raw)
        for place in range(2):
            values = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    raw[place] += step
                    values.append(float(ExactMLL().evidence(model, x, y).value))
                    raw[place] -= step
            numeric[place] = (values[0] - values[1]) / 2e-5
        torch.testing.assert_close(raw.grad, numeric, rtol=1e-6, atol=1e-7)


def test_prior_functions_have_its_covariance():
    """4000 draws of 1000 waves: five standard errors of both sums."""
    kernel = Warped(RBF(2, [0.7, 1.2], 1.3), warp()).double()
    x = draw(6)
    functions = prior_functions(
        kernel, 4000, 2, generator=torch.Generator().manual_seed(0), frequencies=Frequencies(1000)
    )
    with torch.no_grad():
        values, want = functions(x), kernel.evaluate(x)
    error = 1.3 * ((2.0 / 4000) ** 0.5 + (0.5 / 1000) ** 0.5)
    assert (values.mT @ values / 4000 - want).abs().max() < 5 * error
    own = torch.stack([x] * 4000)[:, :3]
    with torch.no_grad():
        torch.testing.assert_close(functions.each(own), values[:, :3])


@pytest.mark.parametrize(
    "options",
    [("approx=exact",), ("approx=svgp", "approx.num_inducing=20", "trainer.max_steps=20")],
)
def test_models_learn_it(options):
    """Waves that become ten times as short: a warp predicts better than none."""
    x = np.linspace(0.0, 1.0, 120)
    y = np.sin(25.0 * x**3) + 0.05 * np.random.default_rng(0).normal(size=120)
    quick = ("trainer.tensorboard=false", "trainer.figures=false", "trainer.baselines=false")
    fits = [
        gpx.fit(x, y, *options, f"kernel={kernel}", *quick, "init.max_evaluations=40",
                quiet=True, keep=False)
        for kernel in ("matern52", "warped(matern52)")
    ]  # fmt: skip
    a = fits[1].model.posterior.kernel.warp.a
    assert float(a) > 1.2  # the smooth end is pressed together
    assert fits[1].metrics["test.mnlp"] < fits[0].metrics["test.mnlp"]


def test_mistakes():
    with pytest.raises(ConfigError, match=r"reach=0 must be positive"):
        Kumaraswamy(2, reach=0)
    with pytest.raises(ConfigError, match="2 values were given for num_inputs=3"):
        Kumaraswamy(3, [1.0, 2.0])
    with pytest.raises(ShapeError, match="the warp is of 2 inputs, but the inputs have 3"):
        (Warped(RBF(2), warp()) + Linear()).evaluate(torch.zeros(4, 3, dtype=torch.float64))
