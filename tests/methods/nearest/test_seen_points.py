"""Prepared predictions from the nearest inducing points, against direct computation."""

import copy
import pickle

import pytest
import torch
from draws import draw

from gpx.errors import NotPositiveDefinite, ShapeError
from gpx.inference.neighbour_conditional import local_system
from gpx.kernels import RBF, ArcCosine, Linear, Matern12, Matern32, Matern52, Periodic, Wendland
from gpx.means import Constant
from gpx.methods.nearest import posterior as nearest_posterior
from gpx.methods.nearest import single_input
from gpx.methods.nearest.compiled_input import COARSE_NUMBERS, compiled_library
from gpx.methods.nearest.nearness import nearest_inducing
from gpx.methods.nearest.seen_points import MIN_TREE_POINTS, SeenPoints
from gpx.models import NearestPosterior

JITTER = 1e-6


KERNELS = {
    "rbf": RBF(3, lengthscale=[0.5, 1.0, 2.0], outputscale=1.7),
    "matern12": Matern12(3, outputscale=None),
    "columns": Matern32(lengthscale=0.7, active_dims=[2, 0]),
    "periodic": Periodic(3, period=2.0),
    "wendland": Wendland(3, lengthscale=6.0),
    "sum": Matern32(3) + Linear(3),
    "arc cosine": ArcCosine(1),
}


ONE_BY_ONE = ("rbf", "matern12", "columns", "periodic")
"""Kernels that fall with a distance."""


@pytest.fixture(params=[False, True], ids=["numpy", "compiled"])
def compiled(request, monkeypatch):
    """Whether one input is predicted by compiled code."""
    if not request.param:
        monkeypatch.setattr(single_input, "compiled_library", lambda: None)
    elif compiled_library() is None:
        pytest.skip("no C compiler")
    return request.param


@pytest.mark.parametrize("rule", ["kernel", "correlation", "euclidean", "random"])
@pytest.mark.parametrize("name", KERNELS)
def test_prepared_predictions_equal_direct_ones(name, rule):
    kernel, z, x = KERNELS[name].double(), draw(60, 3), draw(25, 3, seed=1)
    points = SeenPoints(kernel, z, rule, JITTER)
    with torch.no_grad():
        near = points.nearest(x, 6)
        expected = nearest_inducing(kernel, z, x, 6, rule)
        assert torch.equal(near, expected)
        weights, rest = points.conditionals(x, near)
        jitter = JITTER * kernel.diagonal(z).mean()
        dense = local_system(kernel, z[near], x.unsqueeze(1), jitter)
    torch.testing.assert_close(weights, dense.weights.squeeze(2), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(rest, dense.rest.squeeze(1), rtol=1e-7, atol=1e-9)


def test_a_tree_and_all_comparisons_find_the_same():
    kernel, z, x = RBF(2).double(), draw(MIN_TREE_POINTS + 1, 2), draw(50, 2, seed=1)
    with torch.no_grad():
        by_tree = SeenPoints(kernel, z, "kernel", JITTER).nearest(x, 5)
        by_pairs = nearest_inducing(kernel, z, x, 5, "kernel")
    assert torch.equal(by_tree, by_pairs)


def posterior(seed=0):
    made = NearestPosterior(
        RBF(2, lengthscale=0.8), Constant(0.3), num_neighbours=4, rule="kernel", jitter=JITTER
    ).double()
    z = draw(30, 2, seed=seed)
    made.keep(z, inducing=z, q_mean=z.sum(1), q_root=z[:, 0].abs() + 0.1)
    return made


def test_prepared_quantities_follow_the_posterior():
    x = draw(10, 2, seed=5)
    made, other = posterior(0), posterior(7)
    first, wanted = made.predict(x), other.predict(x)
    made.load_state_dict(other.state_dict())
    assert torch.equal(made.predict(x).mean, wanted.mean)
    made.load_state_dict(posterior(0).state_dict())
    assert torch.equal(made.predict(x).variance, first.variance)
    made.kernel.lengthscale = torch.tensor(0.2).double()
    assert not torch.allclose(made.predict(x).mean, first.mean)
    made.kernel.lengthscale = torch.tensor(0.8).double()
    single = made.float().predict(x.float())
    torch.testing.assert_close(single.mean.double(), first.mean, rtol=1e-4, atol=1e-5)


def test_a_posterior_made_in_inference_mode_predicts_like_any_other():
    x = draw(10, 2, seed=5)
    expected = posterior().predict(x)
    with torch.inference_mode():
        made = posterior()
        assert torch.equal(made.predict(x).mean, expected.mean)
    for _ in range(2):
        assert torch.equal(made.predict(x).mean, expected.mean)
    one = made.predict(x[:1]).variance
    torch.testing.assert_close(one, expected.variance[:1])
    x.requires_grad_()
    made.predict(x).mean.sum().backward()
    assert x.grad is not None
    assert bool((x.grad != 0.0).any())


def test_copies_drop_prepared_quantities_and_keep_the_kernel():
    made, x = posterior(), draw(10, 2, seed=5)
    expected = made.predict(x).mean
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert twin._prepared is None
        assert torch.equal(twin.predict(x).mean, expected)
    # what was prepared was taken off a copy of this kernel
    assert isinstance(made.kernel.lengthscale, torch.Tensor)
    made.kernel.lengthscale = 0.5
    assert made.kernel.lengthscale.tolist() == pytest.approx([0.5] * 2)


def test_a_prepared_prediction_is_replaced_whole(monkeypatch):
    made, x = posterior(), draw(1, 2, seed=5)
    seen = []

    class Watched(single_input.SingleInput):
        def __init__(self, *arguments):
            seen.append((made._prepared, made._single))
            super().__init__(*arguments)

    monkeypatch.setattr(nearest_posterior, "SingleInput", Watched)
    made.predict(x)
    first = made._single
    made.q_mean.add_(1.0)
    made.predict(x)
    # of the points that are prepared at that time
    assert [single for _, single in seen] == [None, None]
    assert [prepared[0] for prepared, _ in seen] == [first.points, made._single.points]
    assert made._single.points is not first.points


def test_one_row_of_negated_memory(compiled):
    made = posterior()
    row = draw(1, 2, seed=5)
    assert torch.equal(made.predict(torch._neg_view(-row)).mean, made.predict(row).mean)


@pytest.mark.parametrize("width", [1, 30])
@pytest.mark.parametrize("rule", ["kernel", "random"])
@pytest.mark.parametrize("name", KERNELS)
def test_no_rows_and_one_row(name, rule, width, compiled):
    z, x = draw(60, 3), draw(7, 3, seed=3)
    made = NearestPosterior(
        KERNELS[name], Constant(0.3), num_neighbours=6, rule=rule, jitter=JITTER
    ).double()
    root = draw(60, 60, seed=2) if width > 1 else z[:, 0].abs() + 0.1
    made.keep(z, inducing=z, q_mean=z.sum(1), q_root=root)
    assert made.predict(x[:0]).mean.shape == (0,)
    whole = made.predict(x)
    parts = [made.predict(row) for row in x.split(1)]
    one_by_one = made._single is not None
    assert one_by_one == (rule == "kernel" and name in ONE_BY_ONE)
    in_code = made._single is not None and made._single._compiled is not None
    assert in_code == (compiled and one_by_one and name in ("rbf", "matern12"))
    for field in ("mean", "variance"):
        found = torch.cat([getattr(part, field) for part in parts])
        torch.testing.assert_close(found, getattr(whole, field), rtol=1e-10, atol=1e-10)


def test_one_row_in_single_precision_and_after_the_posterior_changed(compiled):
    made, x = posterior().float(), draw(5, 2, seed=3).float()
    for _ in range(2):
        whole = made.predict(x)
        parts = [made.predict(row) for row in x.split(1)]
        assert parts[0].mean.dtype == parts[0].variance.dtype == torch.float32
        torch.testing.assert_close(torch.cat([p.mean for p in parts]), whole.mean)
        torch.testing.assert_close(torch.cat([p.variance for p in parts]), whole.variance)
        before = whole.mean
        with torch.no_grad():
            made.q_mean.mul_(2.0)  # in place: what was prepared for one row is out of date
    assert not torch.allclose(made.predict(x).mean, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_row_of_many_columns_has_the_same_neighbours_as_in_a_batch(dtype, compiled):
    z, x = (draw(rows, 200, seed=rows) * 0.8 ** torch.arange(200) for rows in (400, 12))
    x[0] = 1e6  # far from all: bounds say nothing
    made = NearestPosterior(
        Matern32(200, lengthscale=2.0),
        Constant(0.3),
        num_neighbours=4,
        rule="kernel",
        jitter=JITTER,
    ).to(dtype)
    made.keep(z.to(dtype), inducing=z, q_mean=z.sum(1), q_root=z[:, 0].abs() + 0.1)
    x = x.to(dtype)
    whole = made.predict(x)
    for number, row in enumerate(x.split(1)):
        found = made.predict(row)
        torch.testing.assert_close(found.mean, whole.mean[number : number + 1])
        torch.testing.assert_close(found.variance, whole.variance[number : number + 1])
    assert made._single is not None
    assert (made._single._compiled is not None) == compiled


def places(name, m, q):
    """Inducing points and inputs that rounding to a byte tells apart, badly or well."""
    z, x = draw(m, q, seed=11), draw(9, q, seed=12)
    if name == "far from the origin":
        return z + 1e3, x + 1e3
    if name == "leading columns":
        return z * 0.7 ** torch.arange(q), x * 0.7 ** torch.arange(q)
    if name == "clusters":
        centres = 30.0 * draw(5, q, seed=13)
        return z * 1e-3 + centres[torch.arange(m) % 5], x * 1e-3 + centres[torch.arange(9) % 5]
    if name == "one wild value":
        z[3, 1], x[0, -1] = 1e7, 1e7
    if name == "on the points":
        return z, z[:9].clone()
    if name == "one place but for one":
        z[1:] = z[0]
    return z, x


PLACES = (
    "random",
    "far from the origin",
    "leading columns",
    "clusters",
    "one wild value",
    "on the points",
    "one place but for one",
)


@pytest.mark.skipif(compiled_library() is None, reason="no C compiler")
@pytest.mark.parametrize("h", [1, 4, 32])
@pytest.mark.parametrize(("m", "q"), [(700, 50), (60, 3), (MIN_TREE_POINTS + 1, 2)])
@pytest.mark.parametrize("name", PLACES)
def test_compiled_code_finds_the_nearest_and_equals_dense_formulas(name, m, q, h):
    z, x = places(name, m, q)
    assert (m * q > COARSE_NUMBERS) == (m == 700)  # compared in whole numbers of a byte first
    jitter = 1e-3
    kernel = Matern52(q, lengthscale=[1.0 + 0.1 * column for column in range(q)], outputscale=1.3)
    made = NearestPosterior(
        kernel.double(), Constant(0.3), num_neighbours=h, rule="kernel", jitter=jitter
    ).double()
    value, root = draw(m, 1, seed=5)[:, 0], draw(m, 7, seed=6)
    if name == "one place but for one":  # any of them may be seen
        value[1:], root[1:] = value[0], root[0]
    made.keep(z, inducing=z, q_mean=value, q_root=root)
    scales = kernel.lengthscale.detach()
    distances = (x[:, None] / scales - z / scales).square().sum(2)
    near = distances.argsort(dim=1, stable=True)[:, :h]
    for row, seen in zip(x, near, strict=True):
        found = made.predict(row[None])
        inner = kernel.evaluate(z[seen], z[seen]).detach()
        inner.diagonal().add_(jitter * 1.3)
        cross = kernel.evaluate(z[seen], row[None]).detach()[:, 0]
        weights = torch.linalg.solve(inner, cross)
        expected = 1.3 - cross @ weights + (root[seen].mT @ weights).square().sum()
        torch.testing.assert_close(found.mean[0], 0.3 + weights @ value[seen], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(found.variance[0], expected, rtol=1e-7, atol=1e-7)
    assert made._single is not None
    assert made._single._compiled is not None


@pytest.mark.parametrize(("m", "q"), [(700, 3), (700, 50), (MIN_TREE_POINTS + 1, 3)])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1e200])
def test_one_nonfinite_input_is_treated_as_in_a_batch(wrong, m, q, compiled):
    z, x = draw(m, q), draw(2, q, seed=1)
    x[:, 1] = wrong
    made = NearestPosterior(
        RBF(q), Constant(0.3), num_neighbours=4, rule="kernel", jitter=JITTER
    ).double()
    made.keep(z, inducing=z, q_mean=z.sum(1), q_root=z[:, 0].abs() + 0.1)
    for rows in (x, x[:1]):
        if wrong == wrong:  # as far as can be: at the prior
            assert made.predict(rows).mean[0].item() == pytest.approx(0.3)
            assert made.predict(rows).variance[0].item() == pytest.approx(1.0)
            continue
        with pytest.raises(NotPositiveDefinite, match="NaN or infinite"):
            made.predict(rows)


class Halved(Matern32):
    """A profile of one's own, in calls of torch."""

    falls = True

    def of_squared_distance(self, r2):
        return torch.exp(-0.5 * torch.sqrt(r2))


def test_one_row_with_a_profile_that_takes_tensors_alone():
    made = posterior()
    made.kernel = Halved(2, lengthscale=0.8).double().requires_grad_(False)
    x = draw(5, 2, seed=3)
    whole = made.predict(x)
    for number, row in enumerate(x.split(1)):
        found = made.predict(row)
        torch.testing.assert_close(found.mean, whole.mean[number : number + 1])
        torch.testing.assert_close(found.variance, whole.variance[number : number + 1])
    assert made._single is not None


def test_one_row_keeps_no_graph(compiled):
    made, x = posterior(), draw(3, 2, seed=3)
    made.mean.requires_grad_(True)
    expected = made.predict(x)
    for row, gradients in ((x[:1], True), (x[:1].clone().requires_grad_(True), False)):
        with torch.set_grad_enabled(gradients):
            found = made.predict(row)
        assert not found.mean.requires_grad
        assert not found.variance.requires_grad
        torch.testing.assert_close(found.mean, expected.mean[:1])


def test_one_row_without_a_factor_is_refused_as_in_a_batch(compiled):
    made = posterior()
    made.jitter = 0.0
    made.keep(made.inducing[:1].expand(8, 2).clone(), inducing=made.inducing[:1].expand(8, 2))
    for rows in (1, 3):
        with pytest.raises(NotPositiveDefinite, match="4 inducing points"):
            made.predict(draw(rows, 2, seed=3))


@pytest.mark.parametrize("rows", [1, 3])
def test_an_input_far_from_all_points_is_at_the_prior(rows, compiled):
    made, x = posterior(), torch.full((rows, 2), 1e8).double()
    found = made.predict(x)
    torch.testing.assert_close(found.mean, torch.full((rows,), 0.3).double())
    torch.testing.assert_close(found.variance, torch.ones(rows).double())


@pytest.mark.parametrize("rows", [1, 5])
def test_inputs_of_another_width_than_the_points_are_refused(rows):
    """An isotropic kernel would compare one column with all columns of the points."""
    made = NearestPosterior(RBF(), Constant(), num_neighbours=4, rule="kernel", jitter=JITTER)
    z = draw(30, 3)
    made.double().keep(z, inducing=z, q_mean=z[:, 0], q_root=z[:, 0].abs())
    with pytest.raises(ShapeError, match="inputs have 1 columns, but it is made for 3"):
        made.predict(z[:rows, :1])


def test_what_one_row_needs_is_not_prepared_for_a_batch():
    made = posterior()
    made.predict(draw(10, 2, seed=5))
    assert made._single is None
    made.predict(draw(1, 2, seed=5))
    assert made._single is not None
