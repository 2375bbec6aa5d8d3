"""Interpolation weights: exactness on polynomials, boundary rules, convergence, errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError, DataError, ShapeError
from gpx.linalg import RegularAxis, cubic_weights, interpolate, linear_weights

D = torch.float64


def matrix(indices, values, m):
    return torch.zeros(values.shape[0], m, dtype=values.dtype).scatter_add(1, indices, values)


def inputs(n=200, low=0.0, high=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(n, generator=generator, dtype=D)


def keys(s):
    """The kernel form of cubic convolution, a = -1/2."""
    s = s.abs()
    near = 1.5 * s**3 - 2.5 * s**2 + 1
    far = -0.5 * s**3 + 2.5 * s**2 - 4 * s + 2
    return torch.where(s <= 1, near, torch.where(s < 2, far, torch.zeros_like(s)))


def test_stencil_equals_the_kernel_form_inside():
    axis, x = RegularAxis.covering(0.0, 3.0, 12), inputs()
    found = matrix(*cubic_weights(x, axis), 12)
    expected = keys((x[:, None] - axis.points(x)) / axis.spacing)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    assert (found.sum(1) - 1).abs().max() < 1e-14
    dense = torch.linspace(0, 3, 10_001, dtype=D)
    worst = cubic_weights(dense, axis)[1].abs().sum(1).max()
    assert abs(float(worst) - 1.25) < 1e-5


@pytest.mark.parametrize("boundary", ["margin", "keys", "nearest"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_node_takes_its_own_value(boundary, dtype):
    axis = RegularAxis(-1.3, 0.1, 23)
    points = axis.points(torch.empty(0, dtype=dtype))
    chosen = points[1:-1] if boundary == "margin" else points
    weights = matrix(*cubic_weights(chosen, axis, boundary=boundary), 23)
    expected = torch.eye(23, dtype=dtype)[1:-1] if boundary == "margin" else torch.eye(23).to(dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(weights, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("m", [3, 4, 5, 17])
def test_quadratics_are_exact_up_to_the_boundary_and_cubics_are_not(m):
    axis, x = RegularAxis(0.0, 3.0 / (m - 1), m), inputs()
    weights = matrix(*cubic_weights(x, axis, boundary="keys"), m)
    points = axis.points(x)
    for degree in range(3):
        torch.testing.assert_close(weights @ points**degree, x**degree, rtol=0, atol=1e-12)
    assert (weights @ points**3 - x**3).abs().max() > 1e-4


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12, unique=True), st.integers(0, 10**6))
def test_linear_weights_on_any_axis_reproduce_lines(points, seed):
    points = torch.tensor(sorted(points), dtype=D)
    if float(points.diff().min()) < 1e-6:
        return
    x = inputs(30, float(points[0]), float(points[-1]), seed).clamp(points[0], points[-1])
    weights = matrix(*linear_weights(x, points), len(points))
    torch.testing.assert_close(weights @ (2 * points - 1), 2 * x - 1, rtol=0, atol=1e-9)
    assert weights.min() >= 0
    torch.testing.assert_close(
        matrix(*linear_weights(points, points), len(points)), torch.eye(len(points), dtype=D)
    )


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("cubic", {20: 6.2e-3, 40: 7.7e-4, 80: 9.3e-5}),
        ("linear", {20: 2.8e-2, 40: 6.6e-3, 80: 1.6e-3, 160: 4.0e-4, 320: 9.9e-5}),
    ],
)
def test_convergence_is_the_known_one(method, expected):
    x = torch.linspace(0, 3, 5001, dtype=D)
    for m, error in expected.items():
        axis = RegularAxis(0.0, 3.0 / (m - 1), m)
        options = {"boundary": "keys"} if method == "cubic" else {}
        indices, values = interpolate(x[:, None], [axis], method=method, **options)
        found = (
            matrix(indices, values, m) @ torch.sin(3 * axis.points(x)) - torch.sin(3 * x)
        ).abs()
        assert float(found.max()) == pytest.approx(error, rel=0.05)


@pytest.mark.parametrize("method", ["cubic", "linear"])
def test_tensor_product_is_the_row_wise_kronecker_product(method):
    axes = [RegularAxis.covering(0.0, 3.0, m) for m in (7, 9, 8)]
    x = torch.stack([inputs(seed=s) for s in range(3)], 1)
    found = matrix(*interpolate(x, axes, method=method), 7 * 9 * 8)
    parts = [
        matrix(*interpolate(x[:, [d]], [axis], method=method), axis.size)
        for d, axis in enumerate(axes)
    ]
    expected = torch.einsum("na,nb,nc->nabc", *parts).reshape(len(x), -1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_products_of_quadratics_are_exact():
    axes = [RegularAxis(0.0, 3.0 / (m - 1), m) for m in (7, 9)]
    x = torch.stack([inputs(seed=s) for s in range(2)], 1)
    weights = matrix(*interpolate(x, axes, boundary="keys"), 7 * 9)
    nodes = torch.cartesian_prod(*[axis.points(x) for axis in axes])

    def biquadratic(at):
        u, v = at.unbind(1)
        return (1.0 - 2.0 * u + 0.5 * u**2) * (0.3 + v - 0.7 * v**2)

    torch.testing.assert_close(weights @ biquadratic(nodes), biquadratic(x), rtol=0, atol=1e-12)


def test_inverse_distances_to_the_two_nearest_points():
    points = torch.tensor([0.0, 0.4, 1.5, 3.0], dtype=D)
    x = torch.cat([inputs(30), points])
    found = matrix(*interpolate(x[:, None], [points], method="inverse_distance"), 4)
    after = torch.searchsorted(points, x[:30])
    for row, i in enumerate(after.tolist()):
        inverse = 1.0 / (x[row] - points[i - 1 : i + 1]).abs()
        expected = torch.zeros(4, dtype=D)
        expected[i - 1 : i + 1] = inverse / inverse.sum()
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[30:], torch.eye(4, dtype=D), rtol=0, atol=1e-12)


@pytest.mark.parametrize("boundary", ["margin", "keys"])
def test_gradients_in_the_inputs(boundary):
    axis = RegularAxis.covering(0.0, 3.0, 9) if boundary == "margin" else RegularAxis(0.0, 0.375, 9)
    x = inputs(15).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: cubic_weights(x, axis, boundary=boundary)[1], (x,))
    points = torch.tensor([0.0, 0.7, 1.1, 3.0], dtype=D).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, p: linear_weights(x, p)[1], (x, points))


@pytest.mark.parametrize("boundary", ["keys", "nearest"])
@pytest.mark.parametrize("m", [4, 9])
def test_the_first_point_of_a_stencil_says_the_others(m, boundary):
    """In the end cells, too: sums over rows by cell rely on it."""
    axis = RegularAxis(0.0, 1.0, m)
    indices, _ = cubic_weights(inputs(high=m - 1.0), axis, boundary=boundary)
    assert torch.equal(indices, indices[:, :1] + torch.arange(4))
    assert indices.min() == 0
    assert indices.max() == m - 1


def test_nearest_is_one_hot_in_the_end_cells_only():
    axis = RegularAxis(0.0, 1.0, 6)
    x = torch.tensor([0.2, 0.8, 2.5, 4.3, 4.9], dtype=D)
    weights = matrix(*cubic_weights(x, axis, boundary="nearest"), 6)
    assert weights[[0, 1, 3, 4]].argmax(1).tolist() == [0, 1, 4, 5]
    assert (weights[[0, 1, 3, 4]] != 0).sum(1).tolist() == [1] * 4
    assert (weights[2] != 0).sum() == 4


@pytest.mark.parametrize("method", ["cubic", "linear"])
def test_outsiders(method):
    axis = RegularAxis.covering(0.0, 1.0, 8)
    high = axis.start + axis.spacing * 7
    x = torch.tensor([[0.5], [high + 0.3], [axis.start - 9.0]], dtype=D)
    options = {"method": method, "boundary": "keys"}
    with pytest.raises(DataError, match="2 of 3"):
        interpolate(x, [axis], **options)
    clamped = matrix(*interpolate(x, [axis], outside="clamp", **options), 8)
    torch.testing.assert_close(clamped[1:], torch.eye(8, dtype=D)[[7, 0]])
    with pytest.warns(UserWarning, match="2 of 3"):
        zeroed = matrix(*interpolate(x, [axis], outside="zero", **options), 8)
    assert (zeroed[1:] == 0).all()
    torch.testing.assert_close(zeroed[0], clamped[0])
    nan = torch.tensor([[float("nan")]], dtype=D)
    for outside in ("error", "clamp"):
        with pytest.raises(DataError, match="NaN"):
            interpolate(nan, [axis], outside=outside, **options)


def test_a_row_outside_is_counted_once_whichever_axes_it_leaves():
    axes = [RegularAxis(0.0, 0.1, 11), torch.linspace(0, 1, 5, dtype=D)]
    x = torch.tensor([[0.5, 0.5], [2.0, 0.5], [0.5, 2.0], [2.0, 2.0]], dtype=D)
    for order in (axes, axes[::-1]):
        with pytest.raises(DataError, match=r"^3 of 4 inputs lie outside"):
            interpolate(x, order, method="linear")


def test_rounding_at_the_edge_is_not_outside():
    axis = RegularAxis(0.1, 0.1, 11)
    edge = torch.tensor([[axis.start - 1e-14], [axis.start + 10 * axis.spacing + 1e-13]], dtype=D)
    weights = matrix(*interpolate(edge, [axis], boundary="keys"), 11)
    torch.testing.assert_close(weights, torch.eye(11, dtype=D)[[0, 10]], rtol=0, atol=1e-9)


def test_axes_cover_with_their_margin():
    axis, x = RegularAxis.covering(-2.0, 5.0, 13), inputs(100, -2.0, 5.0)
    cell = ((x - axis.start) / axis.spacing).floor()
    assert cell.min() >= 1
    assert cell.max() <= 13 - 3
    assert RegularAxis.covering(1.0, 1.0, 6).spacing == 1.0


def test_errors_name_the_way_out():
    x = torch.tensor([0.05], dtype=D)
    with pytest.raises(ConfigError, match="too small"):
        cubic_weights(x, RegularAxis(0.0, 1.0, 3))
    with pytest.raises(ConfigError, match="too small"):
        cubic_weights(x, RegularAxis(0.0, 1.0, 2), boundary="keys")
    with pytest.raises(DataError, match="margin of two cells"):
        cubic_weights(x, RegularAxis(0.0, 1.0, 6))
    with pytest.raises(ConfigError, match="at least 6 points"):
        RegularAxis.covering(0.0, 1.0, 5)
    with pytest.raises(ConfigError, match="positive spacing"):
        RegularAxis(0.0, 0.0, 5)
    with pytest.raises(ConfigError, match="increasing"):
        linear_weights(x, torch.tensor([0.0, 1.0, 1.0], dtype=D))
    with pytest.raises(ConfigError, match="equidistant"):
        interpolate(x[:, None], [torch.tensor([0.0, 1.0], dtype=D)])
    with pytest.raises(ShapeError, match="2 axes"):
        interpolate(x[:, None], [RegularAxis(0.0, 1.0, 6)] * 2)
    for name, value in (("method", "quintic"), ("boundary", "none"), ("outside", "ignore")):
        with pytest.raises(ConfigError, match=f"{name}={value}: expected one of"):
            interpolate(x[:, None], [RegularAxis(-9.0, 1.0, 20)], **{name: value})


def test_an_axis_starts_somewhere():
    for start in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="finite start"):
            RegularAxis(start, 1.0, 6)
