"""Sums over axes of functions of one input each, against the dense definition."""

import copy

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.errors import ConfigError
from gpx.kernels import RBF, AxisProduct, Matern32, Periodic, SpectralMixture
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.ski import gathered, system
from gpx.methods.ski.additive import additive_kernel, with_scales
from gpx.methods.ski.projection import LinearProjection
from gpx.models import SKI, ExactGP, SKIStream
from gpx.objectives import ExactMLL, SKIEvidence
from gpx.operators import Interpolation


def problem(d=5, n=60, kernel=RBF, projection=None, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = x[:, 0].sin() + x[:, 1] + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    model = SKI(
        kernel=kernel(lengthscale=0.8),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=d,
        additive=True,
        projection=projection,
        **{"grid_size": 24, "tolerance": 1e-10, **options},
    ).double()
    model.initialise(x, y, generator=generator)
    with torch.no_grad():  # no two functions alike
        for i, part in enumerate(model.kernel.parts):
            part.lengthscale = 0.8 + 0.1 * i + torch.zeros_like(part.lengthscale)
            part.outputscale = torch.tensor(0.1 + 0.05 * i, dtype=torch.float64)
    return model, x, y


def dense(model, x, other=None):
    """sum_l W_l K_l W_l^T of every axis' own weights and points."""
    grid, total = model.grid, 0.0
    for i, part in enumerate(model.kernel.parts):
        own = copy.copy(grid.single(i))
        points = torch.zeros(grid.shape[i], len(grid.axes), dtype=torch.float64)
        points[:, i] = grid.axes[i].points(points)
        left, right = (
            own.weights(model.projected(z)[:, i : i + 1], "clamp").to_dense()
            for z in (x, x if other is None else other)
        )
        total = total + left @ part.evaluate(points) @ right.mT
    return total


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.reshape(-1).clone() for p in model.parameters()])


@pytest.mark.parametrize("projection", [None, "unit"])
def test_evidence_and_gradient_are_the_dense_ones(projection):
    made = None if projection is None else LinearProjection(5, 4, projection, seed=1)
    model, x, y = problem(projection=made)
    found = SKIEvidence().evidence(model, x, y)
    matrix = dense(model, x) + model.likelihood.noise_variance * torch.eye(60).double()
    want = MultivariateNormal(torch.zeros_like(y), matrix).log_prob(y)
    assert found.facts["logdet_error"] < 2e-2
    torch.testing.assert_close(found.value, want, rtol=0.0, atol=1e-2)  # what is negligible
    torch.testing.assert_close(
        gradients(model, found.value), gradients(model, want), rtol=2e-2, atol=2e-2
    )
    exact = SKIEvidence(logdet="cholesky").evidence(model, x, y)
    want = MultivariateNormal(
        torch.zeros_like(y),
        dense(model, x) + model.likelihood.noise_variance * torch.eye(60).double(),
    ).log_prob(y)
    torch.testing.assert_close(exact.value, want, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(
        gradients(model, exact.value), gradients(model, want), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("points", [24, 80])  # W^T W is an array, or rows are summed in chunks
@pytest.mark.parametrize("projection", [None, "unit"])
def test_the_rank_does_not_fall_with_the_number_of_rows(points, projection, monkeypatch):
    """C times W^T need not fit into memory: the same numbers come from products over the grid."""
    made = None if projection is None else LinearProjection(5, 4, projection, seed=1)
    model, x, y = problem(n=4000, grid_size=points, projection=made)
    with monkeypatch.context() as at_rows:
        at_rows.setattr(system.SKISystem, "_stores_rows", lambda *_: True)
        want = SKIEvidence().evidence(model, x, y), model.condition(x, y)
        slopes = gradients(model, want[0].value)
    rank, grid = want[1].facts()["variance_rank"], model.grid.size
    limit = 16 * 150 * grid  # bytes of C and a copy, for 150 pivots
    assert limit < 8 * rank * len(x)
    assert (limit < 8 * grid**2) == (points == 80)
    monkeypatch.setattr(system, "MAX_FACTOR_BYTES", limit)
    monkeypatch.setattr(gathered, "MOMENT_ENTRIES", 20_000)
    found = SKIEvidence().evidence(model, x, y), model.condition(x, y)
    assert found[1].facts()["variance_rank"] == rank
    torch.testing.assert_close(found[0].value, want[0].value, rtol=1e-9, atol=0)
    torch.testing.assert_close(gradients(model, found[0].value), slopes, rtol=1e-6, atol=1e-6)
    ours, theirs = (posterior.predict(x[:50]) for _, posterior in (found, want))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_of_many_rows_no_product_has_a_column_for_every_pivot(monkeypatch):
    """All pivots see the rows through W^T W, made once; evidence and predictions stay the same."""
    model, x, y = problem(n=3000)
    probes = 8
    columns, made, multiply, moment = [], [], Interpolation._by_batch, gathered._second_moment

    def watched(weights, block, *, forward):
        columns.append(block.shape[-1] if len(weights.values) == len(x) else 0)
        return multiply(weights, block, forward=forward)

    monkeypatch.setattr(Interpolation, "_by_batch", watched)
    monkeypatch.setattr(gathered, "_second_moment", lambda *a: made.append(1) or moment(*a))

    def results():
        columns.clear()
        evidence = SKIEvidence(probes=probes).evidence(model, x, y)
        slopes = gradients(model, evidence.value)
        return evidence.value, slopes, model.condition(x, y).predict(x[:50]).variance

    found, _ = results(), results()
    rank = model.system(x).part.rank
    assert 0 < max(columns) <= 2 * probes < rank
    assert len(made) == 1
    monkeypatch.setattr(system.SKISystem, "_stores_rows", lambda *_: True)
    for ours, theirs in zip(found, results(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    assert max(columns) >= rank  # what is avoided


@pytest.mark.parametrize("learned", [False, True])
def test_pivots_are_stored_at_few_rows_and_at_rows_that_a_projection_moves(learned):
    """W^T W (m, m) would cost more for many points, and as much if it is new at every step."""
    projection = LinearProjection(5, 4, "unit", seed=1) if learned else None
    size = {"n": 3000} if learned else {"n": 60, "grid_size": 200}
    model, x, _ = problem(projection=projection, **size)
    made = model.system(x)
    assert made.data._second_moment is None
    assert made._stores_rows(made.part)


def test_of_pairs_of_weights_in_any_order_second_moments_are_those_of_the_array():
    """Over several blocks of the matrix, the last of which is not full."""
    generator = torch.Generator().manual_seed(0)
    points = 2 * gathered.BLOCK + 9
    order = torch.rand(400, points, generator=generator).argsort(1)[:, :4]
    values = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    w = Interpolation(values, order, num_columns=points)
    found = gathered._second_moment(values, order, points)
    torch.testing.assert_close(found, w.to_dense().mT @ w.to_dense(), rtol=0.0, atol=1e-13)


@pytest.mark.parametrize("variance", ["low_rank", "quadratic_form"])
@pytest.mark.parametrize("kernel", [RBF, Matern32])
def test_predictions_are_the_dense_ones(variance, kernel):
    model, x, y = problem(kernel=kernel, variance=variance)
    posterior = model.condition(x, y)
    new = x[:20] * 0.9
    with torch.no_grad():
        matrix = dense(model, x) + model.likelihood.noise_variance * torch.eye(60).double()
        cross = dense(model, new, x)
        mean = cross @ torch.linalg.solve(matrix, y)
        taken = (cross.mT * torch.linalg.solve(matrix, cross.mT)).sum(0)
        want = model.kernel.diagonal(new) - taken
    found = posterior.predict(new)
    torch.testing.assert_close(found.mean, mean, rtol=1e-7, atol=1e-8)
    # low_rank takes the whole prior variance for what interpolation lets through of it
    loose = variance == "low_rank"
    torch.testing.assert_close(
        found.variance, want, rtol=1e-2 if loose else 1e-6, atol=1e-3 if loose else 1e-8
    )
    again = model.new_posterior()
    again.load_state_dict(posterior.state_dict())
    assert torch.equal(again.predict(new).mean, found.mean)
    assert posterior.sample_paths(3, generator=torch.Generator())(new).shape == (3, 20)


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(outputscale=1.3),
        RBF(outputscale=None),
        2.0 * RBF(outputscale=None),
        RBF(outputscale=0.7) * Periodic(outputscale=1.9),
        RBF(outputscale=None) * Periodic(outputscale=None),
        0.5 * (RBF() + Matern32()),
        AxisProduct("matern32", 1, outputscale=1.3),
        AxisProduct("matern32", 1, outputscale=None),
        SpectralMixture(1, 2, weight=1.4),
    ],
    ids=lambda kernel: kernel.name,
)
@torch.no_grad()
def test_the_sum_over_axes_has_the_variance_of_the_kernel(kernel):
    """And every way to evaluate it gives the mean over the axes of the kernel itself."""
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = kernel.double()
    made = additive_kernel(kernel, 5).double()
    want = torch.stack([kernel.evaluate(x[:, i : i + 1]) for i in range(5)]).mean(0)
    torch.testing.assert_close(made.diagonal(x), kernel.diagonal(x[:, :1]))
    torch.testing.assert_close(made.evaluate(x), want)
    torch.testing.assert_close(made(x, backend="chunked").matmul(torch.eye(6).double()), want)
    torch.testing.assert_close(made.pairs(x, x.flip(0)), want.flip(0).diagonal())


@torch.no_grad()
def test_a_sum_of_one_kernel_for_each_input_is_taken_as_it_is():
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = Matern32(1, 0.7, active_dims=[0]), RBF(1, 1.3, 0.5, active_dims=[1])
    given = (second + 2.0 * first).double()
    made = additive_kernel(given, 2)
    torch.testing.assert_close(made.evaluate(x), given.evaluate(x))
    torch.testing.assert_close(made.kernels[0].evaluate(x), 2.0 * first.evaluate(x))
    for others in (first + RBF(active_dims=[0]), first + RBF(), first + second + Matern32()):
        with pytest.raises(ConfigError, match="or a sum of one kernel for each input"):
            additive_kernel(others, 2)


def test_per_input_on_additive_grids_is_the_exact_process():
    """Which ``kernel='rbf per input'`` asks for."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = x.sin().sum(1) + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64)
    kernel = RBF(1, 1.2, active_dims=[0]) + RBF(1, 0.9, active_dims=[1])
    parts = {"mean": Zero(), "likelihood": Gaussian(0.05)}
    model = SKI(kernel=kernel, num_inputs=2, grid_size=200, additive=True, **parts).double()
    model.initialise(x, y, generator=generator)
    exact = ExactGP(kernel=kernel, **parts).double()
    with torch.no_grad():
        found = SKIEvidence().evidence(model, x, y).value
        wanted = ExactMLL().evidence(exact, x, y).value
    assert found.item() == pytest.approx(wanted.item(), abs=0.05)


def test_unsupported_options_are_refused():
    for given in (lambda lengthscale: RBF(2, lengthscale), lambda lengthscale: 2.0 * RBF(2)):
        with pytest.raises(ConfigError, match="give one that is no sum"):
            problem(kernel=given)
    with pytest.raises(ConfigError, match="no active_dims"):
        additive_kernel(2.0 * RBF(active_dims=[1]), 3)
    with pytest.raises(ConfigError, match="variance=diagonal: choose low_rank or quadratic_form"):
        problem(variance="diagonal")
    with pytest.raises(ConfigError, match="needs equidistant grids"):
        problem(grid="kmeans", interpolation="linear")
    with pytest.raises(ConfigError, match=r"grid_size=\[24, 24\] has 2 axes for 5 inputs"):
        problem(grid_size=[24, 24])
    model, x, y = problem()
    with pytest.raises(ConfigError, match="logdet=circulant is of one grid"):
        SKIEvidence(logdet="circulant").evidence(model, x, y)
    with pytest.raises(ConfigError, match="additive grids have none"):
        SKIStream(model)


def test_the_trace_that_pivots_leave_is_within_its_bound_over_several_axes():
    x = 3.0 * torch.rand(400, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = SKI(
        kernel=Matern32(lengthscale=1.0),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=4,
        grid_size=[100, 100, 60, 60],
        additive=True,
    ).double()
    model.initialise(x, x.sin().sum(1), generator=torch.Generator())
    with torch.no_grad():
        system = model.system(x)
        assert system.part.complete
        low, high = system.logdet_bracket()
    assert 0.1 * system.left_out < high - low <= system.left_out


def test_states_of_copies_without_a_scale_load_with_a_scale_of_one():
    """As runs stored them whose kernel had a fixed outputscale."""
    kernel = additive_kernel(RBF(outputscale=None), 2).double()
    kernel.kernels[0].kernel.lengthscale = torch.tensor(0.7)
    old = {
        name.replace(".kernel.", "."): value
        for name, value in kernel.state_dict(prefix="kernel.").items()
        if "scale.original" not in name.replace("lengthscale.original", "")
    }
    assert len(old) == 2
    with_scales(old, "kernel.", kernel)
    kernel.load_state_dict({name.removeprefix("kernel."): value for name, value in old.items()})
    x = torch.randn(5, 2).double()
    torch.testing.assert_close(kernel.diagonal(x), torch.full((5,), 2.0).double())
    assert float(kernel.kernels[0].kernel.lengthscale.detach()) == pytest.approx(0.7)
    same = dict(old)
    with_scales(same, "kernel.", kernel)
    assert same == old
