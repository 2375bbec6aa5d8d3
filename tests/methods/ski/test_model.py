"""Structured interpolation against its dense definition, and the exact model on fine grids."""

import math

import derivatives
import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.errors import ConfigError, DataError, ShapeError
from gpx.kernels import RBF, AxisProduct, Linear, Matern32, MaternNu, Periodic, Warped
from gpx.kernels import Constant as KernelConstant
from gpx.kernels.warped import Kumaraswamy, LinearWarp
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.linalg import RegularAxis
from gpx.means import Constant, Zero
from gpx.methods.ski import covariance as ski_covariance
from gpx.methods.ski.explained import explained_by_samples
from gpx.methods.ski.grid import kmeans_axis
from gpx.methods.ski.lengthscales import bound_lengthscales
from gpx.methods.ski.projection import LinearProjection
from gpx.methods.ski.system import SKISystem
from gpx.models import SKI, ExactGP
from gpx.objectives import ExactMLL, SKIEvidence
from gpx.operators import Interpolated, Interpolation, Toeplitz

KERNELS = {
    "rbf": lambda d: RBF(d, 0.9 if d < 4 else 6.0, 1.3),  # well above the spacing
    "matern": lambda d: Matern32(d, 1.5, 1.3),
    "sum": lambda d: RBF(d, 0.9, 1.0) + Matern32(d, 2.0, 0.4),
}
SIZES = {1: 40, 2: [14, 12], 4: [7, 6, 6, 7]}


def data(n=120, d=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 4.0 * torch.rand(n, d, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y


def build(d=1, kernel="rbf", mean=None, noise=0.05, **options):
    chosen = {"grid_size": SIZES[d], "rank": 400, "tolerance": 1e-10, **options}
    return SKI(
        kernel=KERNELS[kernel](d),
        mean=Constant(0.2) if mean is None else mean,
        likelihood=Gaussian(noise),
        num_inputs=d,
        **chosen,
    ).double()


def placed(x, y, **options):
    model = build(x.shape[1], **options)
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model


def dense_parts(model, x):
    """W and K_UU as matrices, differentiable in the kernel; points of the grid from its axes."""
    grid = model.grid
    points = torch.cartesian_prod(*[axis.points(x) for axis in grid.axes])
    points = points.reshape(grid.size, x.shape[1])
    return grid.weights(x).to_dense(), model.kernel.evaluate(points)


def dense_weights(model, x):
    """W as a matrix, and the model's grid."""
    return model.grid.weights(x).to_dense(), model.grid


def dense_evidence(model, x, y):
    weights, gram = dense_parts(model, x)
    eye = torch.eye(len(x), dtype=torch.float64)
    matrix = weights @ gram @ weights.mT + model.likelihood.noise_variance * eye
    return MultivariateNormal(model.mean(x), matrix).log_prob(y)


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.reshape(-1).clone() for p in model.parameters()])


def test_a_memory_budget_that_is_none_is_refused_before_it_is_needed():
    with pytest.raises(ConfigError, match="memory_budget=much is no number of bytes"):
        build(1, memory_budget="much")


@pytest.mark.parametrize(
    ("d", "kernel"), [*((d, kernel) for d in (1, 2) for kernel in sorted(KERNELS)), (4, "rbf")]
)
def test_evidence_and_gradient_equal_the_dense_ones(d, kernel):
    """Where the low-rank part is complete, probes scatter by rounding alone.

    Where it is not, the gradient is that of
    ``test_with_every_unit_vector_as_probe_the_evidence_is_exact``.
    """
    x, y = data(d=d)
    model = placed(x, y, kernel=kernel)
    objective = SKIEvidence()
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(1))
    found = objective.evidence(model, x, y)
    want = dense_evidence(model, x, y)
    error = float(found.facts["logdet_error"])
    # half the log-determinant's; 6 standard errors, or rounding of the solves
    apart = float((found.value - want).detach().abs())
    assert apart <= 3.0 * error + 1e-6 * float(want.detach().abs())
    complete = d == 1 or kernel == "rbf"  # the others do not factor over two inputs
    assert error < (0.05 if complete else 0.5)
    if complete:
        torch.testing.assert_close(
            gradients(model, found.value), gradients(model, want), rtol=2e-3, atol=2e-3
        )


@pytest.mark.parametrize(
    ("d", "kernel"), [(1, "matern"), (2, "matern"), (2, "rbf"), (2, "sum"), (4, "rbf")]
)
def test_with_every_unit_vector_as_probe_the_evidence_is_exact(monkeypatch, d, kernel):
    """Probes sqrt(n) e_i make trace estimates exact, whatever the low-rank part leaves out."""
    x, y = data(n=40, d=d)
    model = placed(x, y, kernel=kernel, rank=4)
    eye = torch.eye(44, dtype=torch.float64) * math.sqrt(44)
    monkeypatch.setattr("gpx.methods.ski.quad_logdet.probe_vectors", lambda *a, **k: eye)
    monkeypatch.setattr("gpx.methods.ski.quad_logdet.control_variate_of", lambda *a: None)
    found = SKIEvidence(probes=44, accuracy=1.0).evidence(model, x, y)
    want = dense_evidence(model, x, y)
    torch.testing.assert_close(found.value, want, rtol=1e-8, atol=0.0)
    torch.testing.assert_close(
        gradients(model, found.value), gradients(model, want), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("mean", [Zero(), Constant(0.2)], ids=["zero", "constant"])
def test_rows_gathered_by_cell_change_nothing(mean):
    """2,000 rows in 16 cells: the evidence is that of all of them."""
    x, y = data(n=2000)
    model = placed(x, y, mean=mean, grid_size=20, noise=0.3)
    assert "rows replace 2,000" in model.note
    assert len(model.gathered(x).weights.values) <= 4 * 16
    found = SKIEvidence().evidence(model, x, y)
    want = dense_evidence(model, x, y)
    torch.testing.assert_close(found.value, want, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(
        gradients(model, found.value), gradients(model, want), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("d", "size"), [(1, 150), (2, [14, 12])])
def test_products_by_the_dense_matrix_change_nothing(d, size):
    x, y = data(80, d)
    found = []
    for mvm in ("structured", "dense"):
        model = placed(x, y, grid_size=size, mvm=mvm)
        objective = SKIEvidence(resample=True)
        evidence = objective.evidence(model, x, y, generator=torch.Generator().manual_seed(1))
        evidence.value.backward()
        mean = model.condition(x, y).predict(x[:9]).mean
        found.append((evidence.value.detach(), mean, [p.grad for p in model.parameters()]))
        assert (model.system(x).stored is None) == (mvm == "structured")
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)
    model = placed(x, y, grid_size=size, mvm="dense", memory_budget="0.1MB")
    with pytest.raises(ConfigError, match=r"mvm=dense .* needs about [1-9].* and memory_budget"):
        model.condition(x, y)


def test_on_a_fine_grid_it_is_the_exact_model():
    x, y = data(n=300)
    model = placed(x, y, grid_size=600)
    exact = ExactGP(
        kernel=KERNELS["rbf"](1), mean=Constant(0.2), likelihood=Gaussian(0.05)
    ).double()
    bound_lengthscales(exact.kernel, model.floors)  # the same parameters, for their gradient
    found, want = SKIEvidence().evidence(model, x, y), ExactMLL().evidence(exact, x, y)
    torch.testing.assert_close(found.value, want.value, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(
        gradients(model, found.value), gradients(exact, want.value), rtol=1e-3, atol=1e-3
    )
    at = torch.linspace(0.1, 3.9, 50, dtype=torch.float64)[:, None]
    mine, others = model.condition(x, y).predict(at), exact.condition(x, y).predict(at)
    torch.testing.assert_close(mine.mean, others.mean, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(mine.variance, others.variance, rtol=0.01, atol=1e-5)


def test_float32_is_right_to_four_digits():
    x, y = data(n=300)
    want = SKIEvidence().evidence(placed(x, y), x, y).value
    model = build().float()
    model.initialise(x.float(), y.float(), generator=torch.Generator().manual_seed(0))
    assert model.start.dtype == torch.float64
    found = SKIEvidence().evidence(model, x.float(), y.float()).value
    torch.testing.assert_close(found.double(), want.double(), rtol=1e-5, atol=0.0)
    mean, variance = model.condition(x.float(), y.float()).predict(x[:9].float())
    assert mean.dtype == variance.dtype == torch.float32


@torch.no_grad()
def test_a_kernel_with_a_fixed_matrix_in_float32_is_that_in_float64():
    """A matrix product takes one dtype, and the grid's covariances are computed in float64."""

    class Turned(torch.nn.Linear):
        def __init__(self):
            super().__init__(1, 1, bias=False)
            del self.weight
            self.register_buffer("weight", torch.tensor([[0.75]]))

    kernel = Warped(RBF(), Turned())
    lags = torch.linspace(0.0, 2.0, 5, dtype=torch.float64).unsqueeze(1)
    found = ski_covariance.kernel_at_lags(kernel)(lags)
    want = ski_covariance.kernel_at_lags(kernel.double())(lags)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


def test_a_product_in_float32_at_100_000_rows_and_10_000_points():
    """Every part in the precision asked for, against float64. Within 1e-4: Hultin 2017, D = 1."""
    x = torch.rand(100_000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    axis = RegularAxis.covering(0.0, 1.0, 10_000)
    points = axis.points(x)[:, None]
    lags = RBF(1, 0.01, 1.3).double().evaluate(points, points[:1]).detach()
    weights = Interpolation.of(x, [axis])
    found = [
        Interpolated(
            Interpolation(weights.values.to(dtype), weights.indices, num_columns=10_000),
            Toeplitz(lags[:, 0].to(dtype)),
        )
        @ v.to(dtype)
        for dtype in (torch.float64, torch.float32)
    ]
    assert found[1].dtype == torch.float32
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 1e-4


@pytest.mark.parametrize("d", [1, 2, 4])
def test_predictions_equal_dense_inference(d):
    x, y = data(d=d)
    model = placed(x, y, rank=400 if d < 4 else 1500)
    at = data(30, d, seed=3)[0]
    posterior = model.condition(x, y)
    with torch.no_grad():
        weights, gram = dense_parts(model, x)
        test, _ = dense_parts(model, at)
        noise = model.likelihood.noise_variance
        matrix = weights @ gram @ weights.mT + noise * torch.eye(len(x), dtype=torch.float64)
        cross = test @ gram @ weights.mT
        mean = model.mean(at) + cross @ torch.linalg.solve(matrix, y - model.mean(x))
        gain = (cross * torch.linalg.solve(matrix, cross.mT).mT).sum(1)
        variance = model.kernel.diagonal(at) - gain
    found = posterior.predict(at)
    torch.testing.assert_close(found.mean, mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.variance, variance, rtol=1e-4, atol=2e-6)
    assert posterior.facts()["variance_missing"] < 1e-5


@pytest.mark.parametrize("d", [1, 2])
def test_variances_interpolated_between_grid_points_are_near_those_at_the_points(d):
    x, y = data(d=d)
    at = data(40, d, seed=3)[0]
    options = {"grid_size": 60 if d == 1 else 50}
    want = placed(x, y, **options).condition(x, y).predict(at)
    found = placed(x, y, variance="diagonal", **options).condition(x, y).predict(at)
    torch.testing.assert_close(found.mean, want.mean)
    torch.testing.assert_close(found.variance, want.variance, rtol=0.03, atol=1e-4)


@pytest.mark.parametrize(("d", "kernel"), [(1, "rbf"), (2, "rbf"), (2, "matern")])
def test_stochastic_variances_have_their_stated_error(d, kernel):
    """Unbiased, with a relative standard error of sqrt(2 / 20), within 30 %, over 100 repeats.

    The error's spread over 100 repeats of 20 squares scatters by 8 %, so that 30 % is 3.7 standard
    errors, and the mean is allowed 4.5: false alarm about 3e-4 for another seed.
    """
    x, y = data(d=d)
    model = placed(x, y, kernel=kernel)
    system = model.system(x)
    weights, gram = dense_parts(model, x)
    with torch.no_grad():
        cross = gram @ weights[system.data.order].mT
        matrix = system.matrix.to_dense()
        want = (cross * torch.linalg.solve(matrix, cross.mT).mT).sum(1)
    place = int(want.argmax())
    draws = torch.Generator().manual_seed(0)
    found = [explained_by_samples(system, 20, draws, 1e-8, 1000)[place] for _ in range(100)]
    error = torch.stack(found) / want[place] - 1.0
    law = math.sqrt(2.0 / 20.0)
    assert abs(float(error.mean())) < 4.5 * law / 10.0
    assert 0.7 * law < float(error.std()) < 1.3 * law
    predicted = placed(x, y, kernel=kernel, variance="stochastic").condition(x, y).predict(x)
    assert bool(((predicted.variance >= 0.0) & (predicted.variance <= 1.5)).all())


def test_sampled_functions_have_the_posteriors_moments():
    x, y = data()
    posterior = placed(x, y).condition(x, y)
    at = data(20, seed=3)[0]
    mean, variance = posterior.predict(at)
    values = posterior.sample_paths(4000, generator=torch.Generator().manual_seed(2))(at)
    # 5.5 standard errors over 20 points: false alarm about 1e-6
    assert ((values.mean(0) - mean).abs() < 5.5 * (variance / 4000).sqrt() + 1e-9).all()
    assert ((values.var(0) - variance).abs() < 5.5 * math.sqrt(2 / 4000) * variance + 1e-6).all()


def test_beyond_the_grid_is_the_prior_or_the_edge_or_refused():
    x, y = data()
    away = torch.tensor([[40.0]], dtype=torch.float64)
    zero = placed(x, y).condition(x, y)
    with pytest.warns(UserWarning, match="1 of 1 inputs lie outside"):
        mean, variance = zero.predict(away)
    torch.testing.assert_close(mean, torch.full((1,), 0.2, dtype=torch.float64))
    torch.testing.assert_close(variance, torch.full((1,), 1.3, dtype=torch.float64))
    with pytest.raises(DataError, match="outside"):
        placed(x, y, outside="error").condition(x, y).predict(away)
    edge = placed(x, y, outside="clamp").condition(x, y)
    assert torch.isfinite(edge.predict(away).mean).all()


def test_a_lengthscale_below_the_grid_spacing_is_reported_and_bounded():
    x, y = data()
    model = build(grid_size=8)
    model.kernel.lengthscale = torch.tensor([0.05], dtype=torch.float64)
    with pytest.warns(UserWarning, match="0.05 is below the grid's spacing of 1.33"):
        model.initialise(x, y, generator=torch.Generator())
    assert model.kernel.lengthscale.item() > model.spacing.item()
    (parameter,) = [p for n, p in model.kernel.named_parameters() if "lengthscale" in n]
    with torch.no_grad():
        parameter.fill_(-1e3)  # an optimiser's longest step
    assert model.kernel.lengthscale.item() >= model.spacing.item()
    posterior = model.condition(x, y)
    again = build(grid_size=8)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.kernel.lengthscale, model.kernel.lengthscale)
    other = build(grid_size=8).new_posterior()
    other.load_state_dict(posterior.state_dict())
    torch.testing.assert_close(other.predict(x).variance, posterior.predict(x).variance)


def test_a_constant_column_and_long_axes_raise_no_alarm(recwarn):
    x, y = data(d=2)
    x = torch.stack([x[:, 0], torch.full_like(x[:, 0], 3.0)], 1)
    model = build(d=2)
    model.kernel.lengthscale = torch.tensor([0.6, 0.5], dtype=torch.float64)
    model.initialise(x, y, generator=torch.Generator())
    model.condition(x, y)
    assert not [w for w in recwarn if "spacing" in str(w.message)]


@pytest.mark.parametrize("d", [1, 2])
def test_on_the_points_of_a_kmeans_grid_it_is_the_exact_model(d):
    """An axis with as many points as coordinates has those, and W is a selection."""
    x, y = data(n=25, d=d)
    options = {"grid": "kmeans", "interpolation": "linear", "grid_size": 40}
    model = placed(x, y, **options)
    dense, _ = dense_weights(model, x)
    assert int((dense.abs() > 1e-12).sum()) == 25
    exact = ExactGP(
        kernel=KERNELS["rbf"](d), mean=Constant(0.2), likelihood=Gaussian(0.05)
    ).double()
    bound_lengthscales(exact.kernel, model.floors)  # the same parameters, for their gradient
    matrix = exact.kernel.evaluate(x) + 0.05 * torch.eye(25, dtype=torch.float64)
    system = model.system(x)
    order = system.data.order
    torch.testing.assert_close(
        system.matrix.to_dense(), matrix[order][:, order], rtol=0.0, atol=1e-12
    )
    found, want = SKIEvidence().evidence(model, x, y), ExactMLL().evidence(exact, x, y)
    reference = SKIEvidence(logdet="cholesky").evidence(model, x, y)
    torch.testing.assert_close(reference.value, want.value, rtol=1e-8, atol=0.0)
    # what the low-rank part may leave to the probes: 0.01 nats
    torch.testing.assert_close(found.value, want.value, rtol=0.0, atol=0.01)
    torch.testing.assert_close(
        gradients(model, found.value), gradients(exact, want.value), rtol=1e-2, atol=5e-2
    )


def test_centres_of_kmeans_are_sorted_and_are_means_of_their_points():
    column = data(n=500)[0].squeeze(1).square()
    points = kmeans_axis(column, 12)
    assert len(points) == 12
    assert bool((points.diff() > 0).all())
    centres = points[1:-1]
    nearest = (column.unsqueeze(1) - centres).abs().argmin(1)
    means = torch.stack([column[nearest == i].mean() for i in range(10)])
    torch.testing.assert_close(means, centres, rtol=1e-8, atol=0.0)
    assert points[0] < column.min()
    assert points[-1] > column.max()


def test_a_kernel_that_does_not_factor_needs_equidistant_points():
    x, y = data(n=60, d=2)
    options = {"grid": "kmeans", "interpolation": "linear"}
    model = placed(x, y, kernel="matern", **options)
    with pytest.raises(ConfigError, match="no product over the inputs"):
        model.system(x)
    with pytest.raises(ConfigError, match="grid=kmeans and interpolation=cubic"):
        build(grid="kmeans")


def test_a_kernel_below_the_noise_needs_no_low_rank_part():
    x, y = data(n=60)
    model = placed(x, y, noise=0.5)
    model.kernel.outputscale = torch.tensor(1e-5, dtype=torch.float64)
    found = SKIEvidence().evidence(model, x, y)
    assert found.facts["low_rank"] == 0
    want = dense_evidence(model, x, y)
    # With nothing kept exactly, the log-determinant is the probes' alone.
    error = float(found.facts["logdet_error"])
    assert 0.0 < error <= 1e-2
    torch.testing.assert_close(found.value, want, rtol=0.0, atol=3.0 * error)
    torch.testing.assert_close(
        gradients(model, found.value), gradients(model, want), rtol=1e-2, atol=1e-3
    )
    posterior = model.condition(x, y)
    assert torch.isfinite(posterior.predict(x[:5]).variance).all()
    assert posterior.sample_paths(2, generator=torch.Generator())(x[:5]).shape == (2, 5)


def test_the_grid_follows_the_number_of_rows():
    x, _ = data(n=50)
    model = build(grid_size=None)
    ((size,), _), *_ = model.settle(x).values()
    assert size == 100
    assert model.settle(x) == {}


def test_four_axes_are_no_shorter_where_rows_are_few():
    model = build(4, grid_size=None)
    assert next(iter(model.settle(data(n=50, d=4)[0]).values()))[0] == [20] * 4


def test_centres_of_kmeans_are_by_default_no_more_than_an_axis_takes():
    x, y = data(n=1700)
    model = placed(x, y, grid="kmeans", interpolation="linear", grid_size=None)
    assert model.grid.shape == (1500,)
    assert torch.isfinite(model.condition(x, y).predict(x[:3]).mean).all()


@pytest.mark.parametrize("options", [{}, {"additive": True}, {"projection": True}])
def test_inputs_of_another_width_are_refused(options):
    x, y = data(d=2)
    if "projection" in options:
        options = {"projection": LinearProjection(2, 1), "kernel": RBF()}
    parts = {"mean": Zero(), "likelihood": Gaussian(0.1), "kernel": RBF(), "num_inputs": 2}
    model = SKI(**{**parts, "grid_size": 12, **options}).double()
    wider = torch.cat([x, x[:, :1]], 1)
    with pytest.raises(ConfigError, match="made for num_inputs=2, the data have 3"):
        model.check(wider)
    with pytest.raises(ShapeError, match=r"inputs have 3 columns, but it is made for 2"):
        model.initialise(wider, y, generator=torch.Generator())
    model.initialise(x, y, generator=torch.Generator())
    model.check(x)
    posterior = model.condition(x, y)
    empty = model.new_posterior()
    empty.load_state_dict(posterior.state_dict())
    for each in (posterior, empty):
        with pytest.raises(ShapeError, match=r"inputs have 3 columns, but it is made for 2"):
            each.predict(wider)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"grid_size": 5}, r"grid_size=\[5\]: an axis needs at least 6"),
        ({"grid_size": [9, 9]}, "has 2 axes for 1 inputs"),
        ({"grid_size": 30_000_000}, "30,000,000 points"),
        (
            {"interpolation": "quintic"},
            "interpolation=quintic: expected one of cubic, linear, inverse_distance",
        ),
        ({"outside": "guess"}, "outside=guess"),
        ({"rank": 0}, "rank=0"),
        ({"variance": "guess"}, "variance=guess: expected one of low_rank"),
        ({"variance_samples": 0}, "variance_samples=0"),
        ({"boundary": "round"}, "boundary=round"),
    ],
)
def test_invalid_options_are_refused(options, match):
    with pytest.raises(ConfigError, match=match):
        build(**options)


class Rotated(RBF):
    """Stationary, but not even in each input."""

    def coordinates(self, x):
        return torch.stack([x[:, 0] + 0.8 * x[:, 1], x[:, 1]], 1) / self.lengthscale


@pytest.mark.parametrize("sizes", [[14, 12], [1600, 8]])
def test_kernels_whose_coordinates_mix_inputs_are_refused(sizes):
    """The grid's matrix had k(dx, dy) where k(dx, -dy) belongs, and was indefinite."""
    x, y = data(d=2)
    parts = {"mean": Zero(), "likelihood": Gaussian(0.1), "num_inputs": 2, "grid_size": sizes}
    for kernel in (Rotated(2), RBF(2) + Warped(RBF(2), LinearWarp(2))):
        model = SKI(kernel=kernel, **parts).double()
        model.initialise(x, y, generator=torch.Generator())
        with torch.no_grad():
            for warp in (w for w in kernel.modules() if isinstance(w, LinearWarp)):
                SKIEvidence().evidence(model, x, y)  # an unrotated one is even
                warp.root[1, 0] = 0.8
        with pytest.raises(ConfigError, match="sign of a distance along one input"):
            SKIEvidence().evidence(model, x, y)


@pytest.mark.parametrize(
    "kernel",
    [
        AxisProduct(["rbf", "matern32"], 2, lengthscale=1.5),
        RBF(2) * AxisProduct("rbf", 2, lengthscale=1.5) + KernelConstant(0.5),
        MaternNu(2, 1.5, nu=2.0),
    ],
    ids=["axes", "combination", "nu"],
)
def test_stationary_kernels_without_a_formula_for_keops_are_taken(kernel):
    x, y = data(d=2)
    parts = {"mean": Zero(), "likelihood": Gaussian(0.1), "num_inputs": 2, "grid_size": [14, 12]}
    model = SKI(kernel=kernel, **parts).double()
    model.initialise(x, y, generator=torch.Generator())
    found = SKIEvidence(logdet="cholesky").evidence(model, x, y)
    torch.testing.assert_close(found.value, dense_evidence(model, x, y), rtol=1e-9, atol=0)


def test_invalid_setups_are_refused():
    parts = {"mean": Zero(), "num_inputs": 1}
    with pytest.raises(ConfigError, match="needs a stationary kernel"):
        SKI(kernel=Warped(RBF(1), Kumaraswamy(1)), likelihood=Gaussian(0.1), **parts)
    with pytest.raises(ConfigError, match="needs a stationary kernel"):
        SKI(kernel=Linear(1), likelihood=Gaussian(0.1), **parts)
    with pytest.raises(ConfigError, match="Gaussian likelihood, got Bernoulli"):
        SKI(kernel=RBF(1), likelihood=Bernoulli(), **parts)
    with pytest.raises(ConfigError, match="up to 4 inputs"):
        SKI(kernel=RBF(5), likelihood=Gaussian(0.1), mean=Zero(), num_inputs=5)
    with pytest.raises(ConfigError, match="not placed yet"):
        _ = build().grid
    with pytest.raises(DataError, match="there are no rows"):
        placed(*data(n=0))


@pytest.mark.parametrize(("d", "kernel"), [(1, "matern"), (2, "rbf"), (2, "matern")])
def test_variance_by_quadratic_form_is_the_dense_one(d, kernel):
    """Whatever the low-rank part leaves out, and on any number of rows."""
    x, y = data(n=150, d=d)
    model = placed(x, y, kernel=kernel, rank=6, variance="quadratic_form")
    weights, gram = dense_parts(model, x)
    eye = torch.eye(len(x), dtype=torch.float64)
    matrix = weights @ gram @ weights.mT + model.likelihood.noise_variance * eye
    new = data(n=70, d=d, seed=1)[0]
    cross = model.grid.weights(new, "clamp").to_dense() @ gram @ weights.mT
    want = model.kernel.diagonal(new) - (cross.mT * torch.linalg.solve(matrix, cross.mT)).sum(0)
    posterior = model.condition(x, y)
    torch.testing.assert_close(posterior.predict(new).variance, want.detach(), rtol=1e-6, atol=1e-9)
    derivatives.check(posterior.predict, new[:5], rtol=1e-3, length=1e-3)
    again = model.new_posterior()
    again.load_state_dict(posterior.state_dict())
    assert torch.equal(again.predict(new).variance, posterior.predict(new).variance)
    with pytest.raises(ConfigError, match="solves a system for every prediction"):
        posterior.fix()


def test_variance_by_quadratic_form_prepares_its_solves_once(monkeypatch):
    """Not at every call; and anew for other hyperparameters or a loaded state."""
    x, y = data(n=150, d=2)
    model = placed(x, y, kernel="matern", rank=6, variance="quadratic_form")
    posterior, new = model.condition(x, y), data(n=7, d=2, seed=1)[0]
    made, make = [], SKISystem._preconditioner
    monkeypatch.setattr(
        SKISystem, "_preconditioner", lambda system: made.append(system) or make(system)
    )
    first = posterior.predict(new).variance
    assert torch.equal(posterior.predict(new).variance, first)
    assert len(made) == 1
    with torch.no_grad():
        for parameter in posterior.kernel.parameters():
            parameter.add_(0.1)
    assert not torch.equal(posterior.predict(new).variance, first)
    posterior.load_state_dict(model.condition(x, y).state_dict())
    assert torch.equal(posterior.predict(new).variance, first)
    assert len(made) == 4  # one of them to condition


@pytest.mark.parametrize("d", [1, 2])
def test_user_supplied_grid_points(d):
    """A rectilinear grid: the dense model of its linear weights."""
    x, y = data(n=90, d=d)
    points = [[-0.1, 0.4, 0.5, 0.9, 1.6, 2.0, 2.2, 3.1, 3.5, 4.2], [0.0, 1.0, 1.5, 2.6, 3.0, 4.0]]
    options = {"points": points[:d], "interpolation": "linear", "grid_size": None}
    model = placed(x, y, **options)
    found = SKIEvidence(logdet="cholesky").evidence(model, x, y)
    grid = model.grid
    places = torch.cartesian_prod(*[torch.tensor(p, dtype=torch.float64) for p in points[:d]])
    gram = model.kernel.evaluate(places.reshape(grid.size, d))
    weights = grid.weights(x).to_dense()
    torch.testing.assert_close(weights @ places.reshape(grid.size, d), x)
    matrix = weights @ gram @ weights.mT + model.likelihood.noise_variance * torch.eye(90).double()
    want = MultivariateNormal(model.mean(x), matrix).log_prob(y)
    torch.testing.assert_close(found.value, want, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(
        gradients(model, found.value), gradients(model, want), rtol=1e-6, atol=1e-8
    )
    posterior = model.condition(x, y)
    again = model.new_posterior()
    again.load_state_dict(posterior.state_dict())
    assert torch.equal(again.predict(x).mean, posterior.predict(x).mean)


def test_points_that_do_not_fit_are_refused():
    x, y = data(n=20)
    options = {"interpolation": "linear", "grid_size": None}
    with pytest.raises(ConfigError, match="points has 2 axes for 1 inputs"):
        build(points=[[0.0, 1.0], [0.0, 1.0]], **options)
    with pytest.raises(ConfigError, match="points of axis 1 must be two or more finite, increas"):
        build(points=[[0.0, 1.0, 1.0]], **options)
    with pytest.raises(ConfigError, match="points and interpolation=cubic"):
        build(points=[[0.0, 1.0]])
    with pytest.raises(ConfigError, match="points of axis 1 reach from 0 to 1 and the inputs"):
        placed(x, y, points=[[0.0, 0.5, 1.0]], **options)


def test_variance_lost_by_interpolation_is_reported():
    """The coarser the grid the more, and as much as variances by the quadratic form are too large
    next to very many data."""
    x, y = data(n=400)
    lost = []
    for size in (12, 24, 200):
        model = placed(x, y, grid_size=size)
        posterior = model.condition(x, y)
        lost.append(posterior.facts()["variance_lost"])
        weights, gram = dense_parts(model, model.grid.middle(x))
        want = model.kernel.diagonal(x[:1]) - (weights @ gram @ weights.mT).squeeze()
        assert lost[-1] == pytest.approx(float(want.detach()), rel=1e-6, abs=1e-12)
    assert lost[0] > 10.0 * lost[1] > 100.0 * abs(lost[2])


def test_the_grid_bounds_the_angles_of_a_periodic_kernel_not_its_lengthscale_in_x():
    """Ninety points a period resolve half a radian; little more than one does not."""
    x = torch.arange(2000.0, dtype=torch.float64).unsqueeze(1)
    parts = {"mean": Zero(), "likelihood": Gaussian(0.05), "num_inputs": 1, "grid_size": 500}
    model = SKI(kernel=Periodic(period=365.0, lengthscale=0.5), **parts).double()
    model.initialise(x, x[:, 0], generator=torch.Generator())
    assert model.kernel.lengthscale.tolist() == pytest.approx(0.5)
    angle = 2.0 * math.pi * float(model.spacing) / 365.0
    assert model.floors.tolist() == pytest.approx([angle])
    coarse = SKI(kernel=Periodic(period=5.0, lengthscale=0.5), **parts).double()
    with pytest.warns(UserWarning, match="does not resolve the kernel"):
        coarse.initialise(x, x[:, 0], generator=torch.Generator())


@pytest.mark.parametrize("d", [1, 2])
def test_a_grid_with_a_margin_interpolates_variances_at_its_own_points(d):
    x, y = data(d=d)
    inside = 1.0 + 0.5 * x[:10]
    found = []
    for boundary in ("margin", "keys"):
        model = build(d, boundary=boundary, variance="diagonal")
        model.initialise(x, y, generator=torch.Generator())
        found.append(model.condition(x, y).predict(inside).variance)
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=0)


def test_draws_on_the_grid_have_the_prior_covariance_where_the_kernel_has_not_decayed(monkeypatch):
    """Clipped eigenvalues would add four per cent of the variance."""
    x, y = data()
    model = SKI(
        kernel=RBF(lengthscale=5.0),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_inputs=1,
        grid_size=20,
    ).double()
    model.initialise(x, y, generator=torch.Generator())
    with torch.no_grad():
        covariance = model.system(x).covariance
        drawn = covariance.embedded_draws(100_000, torch.Generator().manual_seed(0))
        want = covariance.operator.to_dense()
        torch.testing.assert_close(drawn @ drawn.mT / 100_000, want, rtol=0, atol=0.015)
        monkeypatch.setattr(ski_covariance, "MAX_DRAWN_RANK", 1)
        with pytest.warns(UserWarning, match="too large by about"):
            covariance.embedded_draws(1, torch.Generator())
