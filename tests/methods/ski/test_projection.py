"""Projections before the grid: constraints, gradients through the weights, a direction found."""

import copy
import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.ski.projection import LinearProjection, NetworkProjection
from gpx.models import SKI
from gpx.objectives import SKIEvidence

MAPS = {
    "unit": lambda d: LinearProjection(4, d, "unit", seed=1),
    "orthonormal": lambda d: LinearProjection(4, d, "orthonormal", seed=1),
    "free": lambda d: LinearProjection(4, d, "free", seed=1),
    "network": lambda d: NetworkProjection(4, d, [5], seed=1),
}


def data(n=30, inputs=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    return x, x[:, 0].sin() + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


def build(projection, kernel=RBF, **options):
    d = projection.num_outputs
    model = SKI(
        kernel=kernel(d, 0.9, 1.3),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=projection.num_inputs,
        projection=projection,
        **{"grid_size": 40 if d == 1 else 14, "tolerance": 1e-10, **options},
    )
    return model.double()


def placed(x, y, *arguments, **options):
    model = build(*arguments, **options)
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("constraint", ["unit", "orthonormal", "free"])
def test_constraints_hold_wherever_the_parameters_go(constraint):
    projection = LinearProjection(6, 3, constraint, seed=2).double()
    with torch.no_grad():
        projection.raw.mul_(torch.tensor([[3.0], [0.2], [7.0]]))
    found = projection.matrix
    if constraint == "free":
        torch.testing.assert_close(found, projection.raw)
    if constraint == "unit":
        torch.testing.assert_close(found.norm(dim=1), torch.ones(3).double(), rtol=0, atol=1e-12)
    if constraint == "orthonormal":
        eye = torch.eye(3, dtype=torch.float64)
        torch.testing.assert_close(found @ found.mT, eye, rtol=0, atol=1e-12)
        # the same rows span it, and a start that fulfils the constraint is kept
        torch.testing.assert_close(projection.raw @ found.mT @ found, projection.raw.data)


@pytest.mark.parametrize("kind", sorted(MAPS))
@pytest.mark.parametrize(("d", "kernel"), [(1, RBF), (1, Matern32), (2, RBF), (2, Matern32)])
def test_gradients_reach_the_projection_through_the_weights(monkeypatch, kind, d, kernel):
    """With every unit vector as probe, evidence and gradient are those of the dense definition."""
    x, y = data()
    model = placed(x, y, MAPS[kind](d), kernel, rank=6)
    found = with_every_probe(monkeypatch).evidence(model, x, y).value
    found.backward()
    mine = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    grid = model.grid
    points = torch.cartesian_prod(*[axis.points(x) for axis in grid.axes]).reshape(grid.size, d)
    weights = grid.weights(model.projection(x)).to_dense()
    noise = model.likelihood.noise_variance * torch.eye(30, dtype=torch.float64)
    matrix = weights @ model.kernel.evaluate(points) @ weights.mT + noise
    want = MultivariateNormal(torch.zeros(30, dtype=torch.float64), matrix).log_prob(y)
    want.backward()
    torch.testing.assert_close(found, want, rtol=1e-8, atol=0.0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-6, atol=1e-6)


def with_every_probe(monkeypatch):
    """An evidence without random numbers: every unit vector of 36 rows is a probe."""
    eye = torch.eye(36, dtype=torch.float64) * math.sqrt(36)
    monkeypatch.setattr("gpx.methods.ski.quad_logdet.probe_vectors", lambda *a, **k: eye)
    monkeypatch.setattr("gpx.methods.ski.quad_logdet.control_variate_of", lambda *a: None)
    return SKIEvidence(probes=36, most_probes=36, accuracy=1.0)


@pytest.mark.parametrize("constraint", ["unit", "orthonormal"])
def test_on_a_fixed_grid_the_gradient_is_that_of_finite_differences(monkeypatch, constraint):
    """The grid holds all that the projection can reach, and stays where it is while P moves."""
    x, y = data()
    model = placed(x, y, MAPS[constraint](2), Matern32, grid="fixed", rank=6)
    before, longest = model.grid, float(x.norm(dim=1).max())
    for axis in before.axes:
        assert axis.start < -longest < longest < axis.start + (len(axis) - 1) * axis.spacing
    objective = with_every_probe(monkeypatch)
    value = objective.evidence(model, x, y).value
    (found,) = torch.autograd.grad(value, model.projection.raw)
    step = 1e-5 * torch.randn(2, 4, generator=torch.Generator().manual_seed(5)).double()
    ends = []
    for sign in (1.0, -1.0):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            moved.projection.raw.add_(sign * step)
            ends.append(objective.evidence(moved, x, y).value)
        assert moved.grid == before
    difference = 0.5 * (ends[0] - ends[1])
    torch.testing.assert_close((found * step).sum(), difference, rtol=1e-5, atol=1e-10)


def test_the_eigenvalue_determinant_of_a_fixed_grid_does_not_know_the_projection():
    """So that P is learned by the fit alone. Source: Hultin 2017, section 3.2.2."""
    x, y = data()
    objective = SKIEvidence(logdet="eigenvalues")
    values = []
    for seed in (1, 2):
        projection = LinearProjection(4, 2, seed=seed)
        model = placed(x, y, projection, grid="fixed")
        values.append(objective.evidence(model, x, y).parts)
    one, two = values
    torch.testing.assert_close(one["complexity"], two["complexity"], rtol=1e-12, atol=0.0)
    assert abs(one["fit"] - two["fit"]) > 0.1


def test_the_identity_changes_nothing():
    x, y = data(inputs=2)
    projection = LinearProjection(2, 2, "free")
    projection.raw.data = torch.eye(2)
    projected = placed(x, y, projection)
    plain = SKI(
        kernel=RBF(2, 0.9, 1.3),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=2,
        grid_size=14,
        tolerance=1e-10,
    ).double()
    plain.initialise(x, y, generator=torch.Generator())
    objective = SKIEvidence()
    one, two = objective.evidence(projected, x, y), objective.evidence(plain, x, y)
    torch.testing.assert_close(one.value, two.value, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(
        projected.condition(x, y).predict(x), plain.condition(x, y).predict(x)
    )


def test_the_best_of_five_starts_finds_the_direction():
    """y = sin(1.5 a^T x) + noise with a in R^10: |cos(P, a)| > 0.99. Source: Hultin 2017."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1000, 10, generator=generator, dtype=torch.float64)
    a = torch.nn.functional.normalize(
        torch.randn(10, generator=generator, dtype=torch.float64), dim=0
    )
    noise = 0.05 * torch.randn(1000, generator=generator, dtype=torch.float64)
    y = (1.5 * x @ a).sin() + noise
    found = []
    for seed in range(5):
        model = placed(x, y, LinearProjection(10, 1, seed=seed), tolerance=1e-6, grid_size=30)
        objective = SKIEvidence(probes=2)
        optimiser = torch.optim.LBFGS(
            model.parameters(), max_iter=15, line_search_fn="strong_wolfe"
        )

        def closure(model=model, objective=objective, optimiser=optimiser):
            optimiser.zero_grad()
            loss = -objective.evidence(model, x, y).value / 1000
            loss.backward()
            return loss

        optimiser.step(closure)
        value = objective.evidence(model, x, y).value.item()
        found.append((value, abs(float(model.projection.matrix.detach() @ a))))
    assert max(found)[1] > 0.99


def test_a_posterior_carries_its_projection():
    x, y = data()
    model = placed(x, y, MAPS["orthonormal"](2))
    posterior = model.condition(x, y)
    other = build(LinearProjection(4, 2, "orthonormal", seed=9)).new_posterior()
    other.load_state_dict(posterior.state_dict())
    torch.testing.assert_close(other.predict(x), posterior.predict(x))
    again = build(LinearProjection(4, 2, "orthonormal", seed=9))
    again.load_state_dict(model.state_dict())
    objective = SKIEvidence()
    one, two = objective.evidence(model, x, y), objective.evidence(again, x, y)
    torch.testing.assert_close(one.value, two.value)


def test_invalid_setups_are_refused():
    with pytest.raises(ConfigError, match="num_outputs=0 must be at least 1"):
        LinearProjection(6, 0)
    with pytest.raises(ConfigError, match="num_outputs=5: a grid has one to four axes; additive"):
        build(LinearProjection(6, 5))
    with pytest.raises(ConfigError, match="constraint=loose: expected one of unit"):
        LinearProjection(6, 2, "loose")
    with pytest.raises(ConfigError, match="no projection of 1 inputs has more outputs"):
        NetworkProjection(1, 2)
    with pytest.raises(ConfigError, match="at least one unit"):
        NetworkProjection(3, 2, [0])
    for projection in (LinearProjection(4, 2, "free"), NetworkProjection(4, 2)):
        with pytest.raises(ConfigError, match="grid=fixed lies where projections of rows of norm"):
            build(projection, grid="fixed")
    with pytest.raises(ConfigError, match="the projection takes 4 inputs and the data have 5"):
        SKI(
            kernel=RBF(2),
            mean=Zero(),
            likelihood=Gaussian(0.1),
            num_inputs=5,
            projection=LinearProjection(4, 2),
        )
