"""Rows to grid and back; kernels taken apart; every refusal in one sentence."""

import copy

import grid_problems
import pytest
import torch

from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF, AxisProduct, Kernel, Matern32, Periodic, RationalQuadratic
from gpx.kernels.over_axes import Coregionalisation, MultiOutput
from gpx.linalg import kronecker_product
from gpx.methods.grid.axes import find_grid
from gpx.methods.grid.factors import split_kernel


def stations(outputs=2, seed=0):
    """Scattered stations x hours x outputs with gaps, rows shuffled: groups [[0, 2], [1], [3]]."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    rows = [
        [float(p[0]), float(hour), float(p[1]), float(o)]
        for p in place
        for hour in (0.0, 1.5, 4.0, 9.0)
        for o in range(outputs)
    ]
    whole = torch.tensor(rows, dtype=torch.float64)
    order = torch.randperm(len(whole), generator=generator)[:29]
    return whole, whole[order]


def test_stations_by_time_by_output_become_a_grid_and_back():
    _, x = stations()
    found = find_grid(x, [[0, 2], [1], [3]])
    assert found.grid.shape == (5, 4, 2)
    assert found.gap_share == pytest.approx(11 / 40)
    torch.testing.assert_close(found.grid.rows(found.cells), x, rtol=0, atol=0)
    both = torch.cat([found.cells, found.gaps]).sort().values
    torch.testing.assert_close(both, torch.arange(40))


def test_axes_are_those_of_the_rows_whatever_their_order():
    whole, x, _ = grid_problems.draw()
    found = find_grid(x)
    assert found.grid.shape == grid_problems.SIZES
    torch.testing.assert_close(found.grid.rows(torch.arange(len(whole))), whole, rtol=0, atol=0)


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(4, [0.5, 1.0, 2.0, 0.7], 1.7),
        0.7 * RBF(None, 0.9) * 2.0,
        Matern32(None, 0.8, 1.3, [1]) * RationalQuadratic(2, 0.7, 0.9, [0, 2]),
        AxisProduct(["matern32", "rbf", "matern12"], 4, [[0, 2], [1], [3]], 0.8, 1.4),
        Periodic(4, 1.2, 1.1, period=3.0),
        MultiOutput("matern32", 4, 2, [[0, 2], [1], [3]]),
        RBF(3, 0.8, None, [0, 1, 2]) * Coregionalisation(2, [3]) * 0.4,
        (RBF(active_dims=[1]) + 0.5 * Periodic(active_dims=[1]) + 0.3) * RBF(active_dims=[0, 2, 3]),
    ],
    ids=["rbf", "scaled", "parts", "axes", "periodic", "outputs", "coregionalised", "sum"],
)
def test_factors_multiply_to_the_kernel_of_the_whole_grid(kernel):
    _, x = stations()
    kernel = kernel.double()
    found = find_grid(x, [[0, 2], [1], [3]])
    axes = split_kernel(kernel, found.grid.groups)
    rows = found.grid.rows(torch.arange(40))
    with torch.no_grad():
        whole = kronecker_product(axes.matrices(found.grid))
        torch.testing.assert_close(whole, kernel.evaluate(rows), rtol=1e-12, atol=1e-13)
        diagonal = axes.diagonals(found.grid, found.grid.axes)
        product = kronecker_product([d.unsqueeze(1) for d in diagonal]).squeeze(1)
        torch.testing.assert_close(product, kernel.diagonal(rows), rtol=1e-12, atol=1e-13)


def test_a_kernel_that_does_not_factor_is_named_with_what_to_do():
    with pytest.raises(ConfigError, match=r"Matern32 .*3 axes .*AxisProduct\(family=matern32\)"):
        split_kernel(Matern32(3), [(0,), (1,), (2,)])
    with pytest.raises(ConfigError, match=r"Sum .*does not factor"):
        split_kernel(RBF(2) + RBF(2), [(0,), (1,)])
    split_kernel(Matern32(3), [(0, 1, 2)])


class Cauchy(RBF):
    def of_squared_distance(self, r2):
        return 1.0 / (1.0 + r2)


class Rotated(RBF):
    def coordinates(self, x):
        return torch.stack([x[:, 0] + 0.8 * x[:, 1], x[:, 1]], 1) / self.lengthscale


class AlongOneDirection(Kernel):
    """With a buffer of several numbers, which products take in the dtype of the inputs only."""

    def __init__(self):
        super().__init__()
        self.register_buffer("direction", torch.tensor([0.6, 0.8]))

    def covariance(self, x1, x2):
        return (-((x1 @ self.direction).unsqueeze(1) - x2 @ self.direction).square()).exp()

    def variance(self, x):
        return torch.ones_like(x[:, 0])


def test_buffers_of_kernels_are_taken_in_float64_too():
    kernel, x = AlongOneDirection(), torch.rand(9, 2, generator=torch.Generator().manual_seed(0))
    axes = split_kernel(kernel, [(0, 1)])
    found = axes.matrix(0, x, x)
    assert found.dtype == kernel.direction.dtype == torch.float32
    torch.testing.assert_close(found, kernel.evaluate(x))


def test_covariances_along_an_axis_in_float32_are_those_in_float64_rounded():
    kernel, points = RBF(2, 0.75, 1.25), torch.linspace(0.0, 30.0, 61)
    kernel.lengthscale = [0.5, 2.0]
    found = []
    for kind in (kernel, copy.deepcopy(kernel).double()):
        lags = points.to(kind.lengthscale)
        grid = find_grid(torch.cartesian_prod(lags, lags[:3])).grid
        with torch.no_grad():
            found.append(split_kernel(kind, grid.groups).covariance_at_lags(grid, 0, lags))
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0].double(), found[1], rtol=1e-7, atol=1e-37)


@pytest.mark.parametrize("kind", [Cauchy, Rotated])
def test_subclasses_of_rbf_are_not_taken_for_products(kind):
    with pytest.raises(ConfigError, match=rf"{kind.__name__} .*does not factor"):
        split_kernel(kind(2), [(0,), (1,)])
    split_kernel(kind(2), [(0, 1)])


def test_two_rows_in_one_cell():
    _, x, _ = grid_problems.draw()
    twice = torch.cat([x, x[3:5]])
    with pytest.raises(DataError, match=rf"rows 3 and {len(x)} .*one cell .*2 pairs"):
        find_grid(twice)


def test_a_product_too_large_for_memory_names_its_size():
    x = torch.rand(3000, 4, dtype=torch.float64)
    with pytest.raises(
        ConfigError, match=r"3,000 x 3,000 x 3,000 x 3,000 = 81,000,000,000,000 .*GiB.*axes"
    ):
        find_grid(x)


def test_memory_is_checked_before_allocation():
    _, x, _ = grid_problems.draw()
    cells, axes = 25 * 120, 11 * (25 + 36 + 16)
    find_grid(x, memory_budget=8 * (cells + axes))
    with pytest.raises(
        ConfigError, match=r"5 x 6 x 4 = 120 cells.*memory_budget=30775 may be held"
    ):
        find_grid(x, memory_budget=8 * (cells + axes) - 1)


def test_circles_that_do_not_fit_are_named_with_the_option_that_makes_them():
    axes = torch.arange(50, dtype=torch.float64), torch.arange(40, dtype=torch.float64)
    x = torch.cartesian_prod(*axes)
    bare = 8 * (25 * 2000 + 11 * (50**2 + 40**2))
    text = (
        r"50 x 40 = 2,000 cells, extended for products by FFT to 100 x 80 = 8,000 cells, which "
        r"needs about .*set fft_points=None \(about 0.0 GiB\), group"
    )
    with pytest.raises(ConfigError, match=text):
        find_grid(x, extend_axis=lambda *_: True, memory_budget=bare)
    find_grid(x, memory_budget=bare)
    with pytest.raises(ConfigError, match="the axes multiply; group"):
        find_grid(x, extend_axis=lambda *_: True, memory_budget=bare - 1)


@pytest.mark.parametrize("axes", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], []], [[0], [1], [3]]])
def test_groups_must_hold_every_column_once(axes):
    with pytest.raises(ConfigError, match=r"each of the 3 input columns"):
        find_grid(torch.rand(4, 3), axes)


@pytest.mark.parametrize("axes", [[0, 1, 2], "foo", [[0, 1], [2.5]], [["a"], [1]]])
def test_axes_must_be_a_list_of_groups(axes):
    for refused in (lambda: find_grid(torch.rand(4, 3), axes), lambda: AxisProduct("rbf", 3, axes)):
        with pytest.raises(ConfigError, match=r"axes=.*list of groups of input columns"):
            refused()


def test_outputs_are_an_axis_of_their_own():
    with pytest.raises(ConfigError, match="numbered in column 2, which must be an axis of its own"):
        MultiOutput("rbf", 3, 2, [[0], [1, 2]])
    with pytest.raises(ConfigError, match="the last column is the number of the output"):
        MultiOutput("rbf", 1, 2)


def test_no_rows():
    with pytest.raises(DataError, match="at least one observed cell"):
        find_grid(torch.zeros(0, 2))


def test_outputs_are_whole_numbers():
    kernel = Coregionalisation(2, [0])
    with pytest.raises(DataError, match=r"numbered 2; expected whole numbers from 0 to 1"):
        kernel.evaluate(torch.tensor([[0.0], [2.0]]))
    with pytest.raises(ConfigError, match="correlation"):
        Coregionalisation(2, [0], correlation=1.0)


def test_an_axis_product_refuses_columns_twice_and_unknown_families():
    with pytest.raises(ConfigError, match="once"):
        AxisProduct("rbf", 2, [[0, 1], [1]])
    with pytest.raises(ConfigError, match="rbf, matern12"):
        AxisProduct("cosine", 2)
