"""Change points: weights against their definition, limits, a change that is found in data."""

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, ChangePoints, Linear, Matern32, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.training import LBFGSB

PLACES, STEEPNESS = [-0.7, 0.4], [3.0, 8.0]


def three(**options):
    kernels = [RBF(2, [0.7, 1.2], 1.3), Matern32(2, 0.8, 0.6), Linear(2, 0.5)]
    return ChangePoints(kernels, PLACES, STEEPNESS, **options).double()


def draw(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, generator=generator, dtype=torch.float64)


def sigmoid(values):
    return 1.0 / (1.0 + np.exp(-values))


@pytest.mark.parametrize("axis", [0, 1])
def test_values_are_those_of_the_definition(axis):
    kernel, x, z = three(axis=axis), draw(7), draw(5, seed=1)

    def weights(rows):
        places = kernel.locations.detach().numpy()  # learned ones are made in torch's default dtype
        along = rows[:, axis].numpy()
        s, t = (sigmoid(b * (along - a)) for a, b in zip(places, STEEPNESS, strict=True))
        return [1.0 - s, s * (1.0 - t), t]

    with torch.no_grad():
        want = sum(
            np.outer(a, b) * part.evaluate(x, z).numpy()
            for a, b, part in zip(weights(x), weights(z), kernel.parts, strict=True)
        )
        np.testing.assert_allclose(kernel.evaluate(x, z).numpy(), want, rtol=1e-12, atol=1e-14)
        square = kernel.evaluate(x)
    np.testing.assert_allclose(square.diagonal().numpy(), kernel.diagonal(x).detach().numpy())


def test_far_from_a_steep_change_each_kernel_is_alone_and_both_sides_are_independent():
    before, after = RBF(1, 0.5, 1.3).double(), Linear(1, 0.5).double()
    kernel = ChangePoints([before, after], [0.2], 1e4).double()
    low = torch.linspace(-2.0, 0.1, 6, dtype=torch.float64).unsqueeze(1)
    high = torch.linspace(0.3, 2.0, 5, dtype=torch.float64).unsqueeze(1)
    with torch.no_grad():
        torch.testing.assert_close(kernel.evaluate(low), before.evaluate(low), rtol=0, atol=1e-12)
        torch.testing.assert_close(kernel.evaluate(high), after.evaluate(high), rtol=0, atol=1e-12)
        assert kernel.evaluate(low, high).abs().max() < 1e-12


def test_gradients_of_places_and_steepness():
    x = draw(6)

    def matrix(places, raw):
        kernel = three()
        state = {"locations": places, "parametrizations.steepness.original": raw}
        return torch.func.functional_call(kernel, state, (x,)).to_dense()

    kernel = three()
    raw = kernel.parametrizations.steepness.original.detach().clone().requires_grad_()
    places = kernel.locations.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(matrix, (places, raw))


def test_the_place_of_a_change_is_found():
    """A wave of period 0.5 turns into noise-like roughness at 0.6; the search starts at 0."""
    generator = torch.Generator().manual_seed(3)
    x = torch.linspace(-2.0, 2.0, 160, dtype=torch.float64).unsqueeze(1)
    rough = Matern32(1, 0.05).double()
    with torch.no_grad():
        root = torch.linalg.cholesky(rough.evaluate(x) + 1e-9 * torch.eye(160).double())
        drawn = root @ torch.randn(160, generator=generator, dtype=torch.float64)
        y = torch.where(x[:, 0] < 0.6, (4.0 * torch.pi * x[:, 0]).sin(), drawn)
        y = y + 0.05 * torch.randn(160, generator=generator, dtype=torch.float64)
    kernel = ChangePoints([Periodic(1, 1.0, period=0.5), Matern32(1, 0.3)])
    model = ExactGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.01)).double()
    objective = ExactMLL()
    LBFGSB().minimise(
        list(model.parameters()),
        lambda: -objective.evidence(model, x, y).value,
        80,
        lambda count, loss, replayed: None,
    )
    assert float(kernel.locations.detach()) == pytest.approx(0.6, abs=0.1)


def test_a_fit_from_an_expression_predicts_as_its_folder_does(tmp_path):
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(0.0, 10.0, 120))[:, None]
    y = np.where(x[:, 0] < 6.0, np.sin(3.0 * x[:, 0]), 0.2 * x[:, 0])
    y = y + 0.05 * generator.normal(size=120)
    options = ["kernel=change_points(rbf, linear)", "approx=exact", "trainer.max_steps=15"]
    fitted = gpx.fit(x, y, *options, folder=tmp_path / "run")
    again = gpx.load(tmp_path / "run")
    found = fitted.predict(x[:9]).mean
    np.testing.assert_allclose(np.asarray(again.predict(x[:9]).mean), np.asarray(found), rtol=1e-6)


@pytest.mark.parametrize(
    ("kernels", "options", "words"),
    [
        ([RBF()], {}, "got 1: give two"),
        ([RBF(), "rbf"], {}, "got a str"),
        ([RBF(), RBF()], {"locations": [0.0, 1.0]}, "2 places and 2 kernels have 1 changes"),
        ([RBF(), RBF(), RBF()], {"locations": [1.0, 0.0]}, "must increase"),
        ([RBF(), RBF()], {"locations": [float("nan")]}, "must increase"),
        ([RBF(), RBF()], {"axis": -1}, "numbered from 0"),
        ([RBF(), RBF()], {"steepness": [1.0, 2.0]}, "2 values were given for changes=1"),
        ([RBF(), RBF()], {"steepness": -1.0}, "steepness was set to -1"),
    ],
)
def test_what_is_refused(kernels, options, words):
    with pytest.raises(ConfigError, match=words):
        ChangePoints(kernels, **options)


def test_a_column_that_is_not_there():
    with pytest.raises(ShapeError, match="axis=2 asks for column 2"):
        three(axis=2).evaluate(draw(3))
