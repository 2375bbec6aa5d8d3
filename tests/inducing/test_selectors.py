"""What every selector promises, and how they compare."""

import math
from functools import partial

import pytest
import torch
from public_classes import public_classes

from gpx import inducing
from gpx.errors import ConfigError, DataError, DTypeError, ShapeError
from gpx.inducing import (
    AdaptiveRidgeLeverage,
    Determinantal,
    Eigenvectors,
    Given,
    GreedyConditionalVariance,
    GreedyRegression,
    InformativeVectors,
    KMeans,
    RidgeLeverage,
    SampledConditionalVariance,
    Selection,
    Selector,
    Uniform,
    require_selector,
)
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SGPR, SVGP, SWSGP, EffectivePrior

ALL = [
    GreedyConditionalVariance,
    SampledConditionalVariance,
    KMeans,
    Uniform,
    AdaptiveRidgeLeverage,
    Determinantal,
    RidgeLeverage,
    GreedyRegression,
    InformativeVectors,
]


def test_every_public_selector_is_listed():
    choosing = public_classes(inducing, inducing.Selector) - {"Given"}
    assert choosing == {cls.__name__ for cls in ALL}


def made(cls, x):
    """With a short chain where there is one, and with targets where they are needed."""
    selector = cls(steps=1000) if cls is Determinantal else cls()
    return selector.given((2.0 * x).sin().sum(1).nan_to_num(), torch.tensor(1e-3, dtype=x.dtype))


def data(n=300, d=2, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)


def kernel(dtype=torch.float64, **options):
    return RBF(ard_num_dims=2, lengthscale=[0.7, 1.3], **options).to(dtype)


def trace_error(x, z, function):
    with torch.no_grad():
        cross = function.evaluate(z, x)
        gram = function.evaluate(z, z)
        gram.diagonal().add_(1e-10)
        explained = (cross * torch.linalg.solve(gram, cross)).sum(0)
        return float((function.diagonal(x) - explained).sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("cls", ALL)
def test_points_have_the_right_shape_and_are_reproducible(cls, dtype):
    x = data(dtype=dtype)
    first, second, other = (
        made(cls, x)(x, kernel(dtype), 23, generator=torch.Generator().manual_seed(s))
        for s in (1, 1, 2)
    )
    assert first.shape == (23, 2)
    assert first.dtype == dtype
    assert not first.requires_grad
    assert torch.equal(first, second)
    without_draws = (GreedyConditionalVariance, GreedyRegression, InformativeVectors)
    assert torch.equal(first, other) == (cls in without_draws)
    assert torch.unique(first, dim=0).shape[0] == 23


@pytest.mark.parametrize("cls", [c for c in ALL if c is not KMeans])
def test_indices_are_those_of_the_points(cls):
    x = data()
    chosen = made(cls, x).select(x, kernel(), 23, generator=torch.Generator().manual_seed(1))
    assert torch.equal(x[chosen.indices], chosen.points)
    assert chosen.indices.unique().numel() == 23
    chosen.points.zero_()  # a copy: training the points must not move the data
    assert float(x.abs().min()) > 0


@pytest.mark.parametrize("cls", ALL)
def test_every_selector_can_take_all_the_data(cls):
    x = data(n=9)
    z = made(cls, x)(x, kernel(), 9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(z.sort(0).values, x.sort(0).values)


@pytest.mark.parametrize("cls", ALL)
def test_mistakes_are_explained(cls):
    x = data(n=5)
    with pytest.raises(DataError, match=r"6 inducing points .* only 5 training points"):
        made(cls, x)(x, kernel(), 6)
    with pytest.raises(ConfigError, match="at least 1"):
        made(cls, x)(x, kernel(), 0)
    x[2, 0] = float("nan")
    with pytest.raises(DataError, match="NaN or infinite"):
        made(cls, x)(x, kernel(), 3)


def test_over_dispersed_points_explain_more_than_uniform_ones():
    # four clusters, enough points to cover them (with far fewer, greedy spends them on outliers)
    errors = dict.fromkeys(ALL, 0.0)
    function = RBF(lengthscale=1.0).double()
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        centres = 4 * torch.randn(4, 2, generator=generator, dtype=torch.float64)
        x = data(n=500, seed=seed) + centres[torch.randint(4, (500,), generator=generator)]
        for cls in ALL:
            z = made(cls, x)(x, function, 80, generator=generator)
            errors[cls] += trace_error(x, z, function)
    assert errors[GreedyConditionalVariance] < 0.5 * errors[Uniform]
    assert errors[SampledConditionalVariance] < 0.8 * errors[Uniform]
    assert errors[KMeans] < 0.5 * errors[Uniform]
    assert errors[Determinantal] < 0.8 * errors[Uniform]
    assert errors[RidgeLeverage] < 0.9 * errors[Uniform]


def test_greedy_is_nested_and_knows_its_trace_error():
    x, function = data(), kernel()
    greedy = GreedyConditionalVariance()
    many = greedy.select(x, function, 40)
    few = greedy.select(x, function, 17)
    assert torch.equal(many.indices[:17], few.indices)
    assert few.informative == 17
    assert few.trace_error == pytest.approx(trace_error(x, few.points, function), rel=1e-6)
    assert many.trace_error < few.trace_error


def test_greedy_points_leave_the_smaller_maximum_and_sampled_ones_the_smaller_sum():
    # far fewer points than the function has degrees of freedom: the edge against the bulk
    function = RBF(lengthscale=0.6).double()
    sums, largest = {}, {}
    for cls in (GreedyConditionalVariance, SampledConditionalVariance, KMeans):
        sums[cls] = largest[cls] = 0.0
        for seed in range(5):
            x = data(n=500, d=4, seed=seed)
            z = cls()(x, function, 40, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                cross, gram = function.evaluate(z, x), function.evaluate(z, z)
                left = function.diagonal(x) - (cross * torch.linalg.solve(gram, cross)).sum(0)
            sums[cls] += float(left.sum())
            largest[cls] += float(left.max())
    assert largest[GreedyConditionalVariance] <= largest[SampledConditionalVariance]
    assert sums[SampledConditionalVariance] < sums[GreedyConditionalVariance]
    assert sums[KMeans] < sums[SampledConditionalVariance]


@torch.no_grad()
def test_sampled_points_keep_to_the_bound_on_the_expected_trace_error():
    x, function, r, e = data(n=300, d=1), RBF(lengthscale=0.3).double(), 6, 0.5
    values = torch.linalg.eigvalsh(function.evaluate(x, x)).flip(0)
    tail = float(values[r:].sum())
    size = math.ceil(r / e + r * math.log(1.0 / (e * tail / 300)))
    draws = torch.Generator().manual_seed(0)
    found = [
        SampledConditionalVariance().select(x, function, size, generator=draws).trace_error
        for _ in range(20)
    ]
    assert sum(found) / 20 <= (1 + e) * tail


def test_greedy_takes_the_largest_conditional_variance_each_time():
    x, function = data(n=60), Matern32(lengthscale=0.8).double()
    indices = GreedyConditionalVariance().select(x, function, 12).indices
    with torch.no_grad():
        matrix = function.evaluate(x, x)
    for m in range(1, 12):
        old = indices[:m]
        explained = matrix[:, old] @ torch.linalg.solve(matrix[old][:, old], matrix[old])
        variance = (matrix - explained).diagonal()
        assert float(variance[indices[m]]) >= float(variance.max()) - 1e-12


def test_a_threshold_of_novelty_sets_the_number_of_points():
    x, function = data(), kernel(outputscale=2.0)
    greedy = GreedyConditionalVariance().select(x, function, 300)
    few = GreedyConditionalVariance(threshold=0.05).select(x, function, 300)
    size = len(few.indices)
    assert 5 < size < 100
    assert torch.equal(few.indices, greedy.indices[:size])
    with torch.no_grad():
        matrix = function.evaluate(x, x)
    for m in (size - 1, size):  # the last point was novel, and no row is any more
        old = few.indices[:m]
        explained = matrix[:, old] @ torch.linalg.solve(matrix[old][:, old], matrix[old])
        novelty = float((matrix - explained).diagonal().max())
        assert (novelty > 0.05 * 2.0) == (m < size)
    assert len(GreedyConditionalVariance(threshold=0.05)(x, function, 7)) == 7
    for wrong in (1.0, "x"):
        with pytest.raises(ConfigError, match=rf"threshold={wrong} is a share of k\(x, x\)"):
            GreedyConditionalVariance(threshold=wrong)


def test_fewer_points_than_asked_for_are_said():
    class Half(Selector):
        def _select(self, x, kernel, num_inducing, generator):
            return Selection(x[: num_inducing // 2])

    with pytest.warns(UserWarning, match="Half chose 5 inducing points where 10 were asked for"):
        assert len(Half()(data(), kernel(), 10)) == 5


@pytest.mark.parametrize("cls", [GreedyConditionalVariance, SampledConditionalVariance])
def test_pivots_fill_up_when_the_data_repeat(cls):
    x = data(n=6).repeat(10, 1)
    chosen = cls().select(x, kernel(), 20, generator=torch.Generator().manual_seed(0))
    assert chosen.informative == 6
    assert chosen.indices.unique().numel() == 20
    assert torch.unique(chosen.points[:6], dim=0).shape[0] == 6


@pytest.mark.parametrize("cls", [GreedyConditionalVariance, KMeans])
def test_large_data_are_thinned_at_random(cls):
    x = data(n=2000)
    small = (
        GreedyConditionalVariance(max_candidates=100)
        if cls is GreedyConditionalVariance
        else KMeans(max_points=100)
    )
    z = small(x, kernel(), 10, generator=torch.Generator().manual_seed(0))
    again = small(x, kernel(), 10, generator=torch.Generator().manual_seed(1))
    assert z.shape == (10, 2)
    assert not torch.equal(z, again)
    if cls is GreedyConditionalVariance:
        assert all(bool((x == row).all(1).any()) for row in z)


def test_kmeans_is_a_fixed_point_of_lloyd_iterations_in_scaled_inputs():
    x, function = data(n=400), kernel()
    z = KMeans()(x, function, 8, generator=torch.Generator().manual_seed(3))
    scale = function.lengthscale.detach()
    nearest = torch.cdist(x / scale, z / scale).argmin(1)
    for i in range(8):
        torch.testing.assert_close(x[nearest == i].mean(0), z[i], rtol=1e-8, atol=1e-8)


def test_kmeans_far_from_the_origin_is_that_of_the_data_about_it():
    """As of years in single precision."""
    x = (256.0 * data(dtype=torch.float32)).round() / 256.0  # exact beside 2048
    near, far = (
        KMeans()(x + offset, RBF(lengthscale=0.25), 20, generator=torch.Generator().manual_seed(0))
        for offset in (0.0, 2048.0)
    )
    torch.testing.assert_close(far - 2048.0, near, rtol=0.0, atol=2e-3)


def test_kmeans_survives_more_centres_than_distinct_points():
    x = data(n=5).repeat(8, 1)
    z = KMeans()(x, kernel(), 12, generator=torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(z).all())
    assert all(float((x - row).norm(dim=1).min()) < 1e-9 for row in z)


def test_names_in_configs():
    kept = KMeans()
    assert require_selector(kept) is kept
    with pytest.raises(ConfigError, match="'random' is no selector of inducing points"):
        require_selector("random")
    for selector in (GreedyConditionalVariance, GreedyRegression):
        with pytest.raises(ConfigError, match="max_candidates"):
            selector(max_candidates=0)
    with pytest.raises(ConfigError, match="max_iterations"):
        KMeans(max_iterations=-1)


@pytest.mark.parametrize("cls", [*ALL, AdaptiveRidgeLeverage])
def test_inputs_in_another_precision_than_the_kernel_or_no_matrix(cls):
    for x, own in ((data(), torch.float32), (data().float(), torch.float64)):
        with pytest.raises(DTypeError, match=r"RBF: inputs are float.*numbers float.*or RBF"):
            made(cls, x).select(x, kernel(own), 5)
    x = data()
    with pytest.raises(ShapeError, match=r"RBF: inputs must be a matrix \(n, d\)"):
        made(cls, x).select(data()[:, 0], kernel(), 5)


@pytest.mark.parametrize("model", [SVGP, SGPR, partial(EffectivePrior, prior="fitc")])
@pytest.mark.parametrize("asked", [5, 512])
def test_given_points_are_placed_as_they_are_and_the_model_starts_at_them(model, asked):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 2, dtype=torch.float64, generator=generator)
    y = (2.0 * x).sin().sum(1)
    points = torch.rand(7, 2, dtype=torch.float64, generator=generator)
    made = model(
        kernel=RBF(2, 0.5),
        mean=Constant(),
        likelihood=Gaussian(0.01),
        num_inputs=2,
        num_inducing=asked,
        selector=Given(points.tolist()),
    ).double()
    made.initialise(x, y, generator=generator)
    placed = made.inducing if hasattr(made, "inducing") else made.inducing_points
    assert torch.equal(placed, points)
    assert placed.requires_grad
    assert (made.condition(x, y).predict(x).mean - y).std() < 0.4 * y.std()


@pytest.mark.parametrize("model", [SVGP, SGPR, partial(EffectivePrior, prior="fitc")])
@pytest.mark.parametrize("num_data", [None, 5, 40])
def test_a_model_made_with_given_points_has_their_number_and_says_so(model, num_data):
    made = model(
        kernel=RBF(2),
        mean=Constant(),
        likelihood=Gaussian(0.01),
        num_inputs=2,
        num_data=num_data,
        selector=Given(torch.rand(7, 2)),
    ).double()
    assert [len(p) for name, p in made.named_parameters() if name.startswith("inducing")] == [7]
    said = {"num_inducing": (7, "the points that the selector was given")}
    assert made.settle(data(5)) == said


def test_features_without_a_selector_are_as_many_as_asked_for_beside_given_points():
    with pytest.warns(UserWarning, match=r"selector=Given\(\) has no effect"):
        made = SGPR(
            kernel=RBF(2),
            mean=Constant(),
            likelihood=Gaussian(0.01),
            num_inputs=2,
            num_inducing=20,
            selector=Given(torch.rand(7, 2)),
            features=Eigenvectors(),
        )
    assert made.num_inducing == 20


def test_blocks_are_as_large_as_the_number_of_given_points():
    x = data(70)
    made = EffectivePrior(
        kernel=RBF(2),
        mean=Constant(),
        likelihood=Gaussian(0.01),
        num_inputs=2,
        num_data=70,
        prior="pitc",
        selector=Given(torch.rand(7, 2)),
    ).double()
    assert made.settle(x)["num_blocks"] == (10, "about 7 rows each")


def test_a_model_with_its_own_number_says_how_to_make_it_for_given_points():
    x = data(40)
    made = SWSGP(
        kernel=RBF(2),
        mean=Constant(),
        likelihood=Gaussian(0.01),
        num_inputs=2,
        num_inducing=20,
        num_neighbours=4,
        selector=Given(torch.rand(7, 2)),
    ).double()
    with pytest.raises(ShapeError, match=r"has 20 inducing.*\(7, 2\); .* with num_inducing=7"):
        made.initialise(x, x.sum(1), generator=torch.Generator().manual_seed(0))


def test_given_points_must_be_points_of_the_data_s_inputs():
    with pytest.raises(ShapeError, match=r"must be a matrix \(M, d\), got \(3,\)"):
        Given(torch.zeros(3))
    with pytest.raises(DataError, match="NaN or infinite"):
        Given([[float("nan")]])
    with pytest.raises(DataError, match="could not convert string to float: 'one'"):
        Given("0 1; 2 one")
    with pytest.raises(ShapeError, match="differ in their number of inputs"):
        Given("0 1; 2")
    with pytest.raises(ShapeError, match="have 1 inputs and the data 2"):
        Given(torch.zeros(3, 1))(torch.zeros(5, 2), RBF(), 3)
