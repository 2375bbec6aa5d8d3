"""Interpolation weights as basis functions: where the grid lies, what it gives and refuses."""

import pytest
import torch

from gpx.bases import InterpolatedGrid
from gpx.bases.fixed_functions import sufficient_statistics
from gpx.bases.sufficient_statistics import interpolation_statistics
from gpx.errors import ConfigError, DataError, ShapeError
from gpx.kernels import RBF

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n=70):
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 4.0])


def placed(x, num_basis=90, **options):
    basis = InterpolatedGrid(RBF(2, [0.4, 0.7], 1.3), num_basis, 2, **options)
    basis.place(x)
    return basis


def test_the_grid_reaches_two_cells_beyond_the_data_on_every_side():
    x = inputs()
    basis = placed(x)
    assert (basis.size, basis.num_basis) == (9, 81)
    points = basis.points()
    reach = 2.0 * basis.spacing
    torch.testing.assert_close(points.amin(0), x.amin(0) - reach)
    torch.testing.assert_close(points.amax(0), x.amax(0) + reach)
    assert torch.equal(points[0, :1], points[1, :1])  # the last axis is the fastest


@pytest.mark.parametrize(
    ("interpolation", "degree", "weights"), [("linear", 1, 4), ("cubic", 2, 16)]
)
def test_rows_reproduce_polynomials_and_have_few_weights(interpolation, degree, weights):
    x = inputs()
    basis = placed(x, interpolation=interpolation)
    rows, points = basis(x), basis.points()
    for power in range(degree + 1):
        torch.testing.assert_close(rows @ points**power, x**power, rtol=1e-10, atol=1e-10)
    assert int((rows != 0.0).sum(1).max()) <= weights
    columns = torch.tensor([40, 3, 41])
    assert torch.equal(basis(x, columns), rows[:, columns])
    assert torch.equal(basis.sparse_rows(x).to_dense(), rows)


def test_the_prior_is_the_kernel_on_the_grid():
    basis = placed(inputs())
    points = basis.points()
    assert torch.equal(basis.prior_covariance(), basis.kernel.evaluate(points))
    with pytest.raises(ConfigError, match="their precision is not diagonal"):
        basis.precision_diagonal()


def test_sums_are_sparse_and_in_blocks(monkeypatch):
    x = inputs()
    y, basis = (5.0 * x).sin().sum(1), placed(x)
    w = basis(x)
    whole = interpolation_statistics(basis.sparse_rows(x), y)
    torch.testing.assert_close(whole.gram, w.mT @ w, rtol=1e-12, atol=1e-13)
    monkeypatch.setattr("gpx.bases.sufficient_statistics.block_bytes", lambda device: 1)
    found = sufficient_statistics(basis, x, y)
    torch.testing.assert_close(found.gram, whole.gram, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.projected, w.mT @ y, rtol=1e-12, atol=1e-13)
    assert found.num_data == 70


def test_inputs_beyond_the_grid_go_to_its_edge_or_are_refused():
    x = inputs()
    far = torch.tensor([[0.5, 0.5], [7.0, 0.5], [0.5, -9.0]])
    basis = placed(x)
    with pytest.warns(UserWarning, match="2 of 3 inputs lie outside the interpolation grid and"):
        found = basis(far)
    points = basis.points()
    edges = torch.tensor([[float(points[-1, 0]), 0.5], [0.5, float(points[0, 1])]])
    torch.testing.assert_close(found[1:], basis(edges))  # which are not outside
    for refused in (placed(x, outside="error"), basis.sparse_rows):
        with pytest.raises(DataError, match="of 3 inputs lie outside"):
            refused(far)


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match=r"num_basis=90 makes a grid of 1 points .* for 8 inputs"):
        InterpolatedGrid(RBF(8), 90, 8)
    with pytest.raises(ConfigError, match="interpolation=spline: expected one of cubic, linear"):
        InterpolatedGrid(RBF(1), 90, 1, interpolation="spline")
    with pytest.raises(ConfigError, match="outside=fly: expected one of clamp, error"):
        InterpolatedGrid(RBF(1), 90, 1, outside="fly")
    with pytest.raises(ShapeError, match="made for 2 inputs, got 3 columns"):
        placed(inputs())(torch.zeros(4, 3))
