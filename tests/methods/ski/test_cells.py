"""Rows gathered by cell have the sums of the rows that they stand for."""

import pytest
import torch

from gpx.errors import ConfigError
from gpx.linalg import RegularAxis
from gpx.methods.ski.band import BandRows
from gpx.methods.ski.cells import CellSums
from gpx.methods.ski.gathered import Gathered
from gpx.methods.ski.grid import InterpolationGrid
from gpx.operators import Interpolation

AXES = {1: [RegularAxis(-1.0, 0.25, 13)], 2: [RegularAxis(-1.0, 0.5, 7), RegularAxis(0.0, 0.4, 8)]}


def problem(d, n=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    low = torch.tensor([a.start + a.spacing for a in AXES[d]], dtype=torch.float64)
    span = torch.tensor([a.spacing * (a.size - 3) for a in AXES[d]], dtype=torch.float64)
    x = low + span * torch.rand(n, d, generator=generator, dtype=torch.float64)
    return Interpolation.of(x, AXES[d]), torch.randn(n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("d", [1, 2])
def test_few_rows_have_the_sums_of_all(d):
    weights, residual = problem(d)
    sums = CellSums.of(weights, residual)
    rows = sums.rows()
    found, rest = rows.residuals(sums.projected, sums.squared)
    dense, few = weights.to_dense(), rows.weights.to_dense()
    assert len(few) <= len(sums.cells) * 4**d
    torch.testing.assert_close(few.mT @ few, dense.mT @ dense, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(few.mT @ found, dense.mT @ residual, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(rest + found @ found, residual @ residual, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(rows.total, weights.values.mT @ weights.values)


def test_rows_that_coincide_count_once_in_the_rank():
    x = torch.full((50, 1), 0.3, dtype=torch.float64)
    weights = Interpolation.of(x, AXES[1])
    residual = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sums = CellSums.of(weights, residual)
    rows = sums.rows()
    assert len(rows.weights.values) == 1
    found, rest = rows.residuals(sums.projected, sums.squared)
    scatter = (residual - residual.mean()).square().sum()  # what no function explains
    torch.testing.assert_close(rest, scatter, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(found.square().sum(), 50 * residual.mean().square())


def test_sums_of_a_stream_add_up():
    weights, residual = problem(2)
    first = CellSums.of(weights[:150, :], residual[:150])
    second = CellSums.of(weights[150:, :], residual[150:])
    whole, joined = CellSums.of(weights, residual), first + second
    assert joined.num_data == whole.num_data
    for name in ("cells", "indices", "gram", "projected", "squared"):
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name))


def test_sums_on_two_grids_do_not_add_up():
    (one, r), (two, s) = problem(1), problem(2)
    with pytest.raises(ConfigError, match="grids of 13 and 56 points"):
        CellSums.of(one, r) + CellSums.of(two, s)


def test_residuals_carry_gradients():
    weights, residual = problem(1, n=60)
    sums = CellSums.of(weights, residual)
    rows = sums.rows()
    projected = sums.projected.clone().requires_grad_()

    def both(value):
        found, rest = rows.residuals(value, sums.squared)
        return found, rest

    assert torch.autograd.gradcheck(both, (projected,))


def test_on_one_axis_a_band_stands_for_all():
    """As many rows as grid points, with the sums of all, where data are dense, and gaps too."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(600, 1, generator=generator, dtype=torch.float64)
    x = torch.cat([0.9 * x[:300] - 0.7, 0.5 + 0.9 * x[300:], x.new_tensor([[-0.75 + 1e-9]])])
    weights = Interpolation.of(x, [RegularAxis(-1.0, 0.05, 60)])
    residual = torch.randn(601, generator=generator, dtype=torch.float64)
    sums = CellSums.of(weights, residual)
    rows = BandRows.of(sums)
    dense, few = weights.to_dense(), rows.weights.to_dense()
    assert len(few) == int((dense != 0.0).any(0).sum()) < 60
    torch.testing.assert_close(few.mT @ few, dense.mT @ dense, rtol=1e-12, atol=1e-12)
    found, rest = rows.residuals(sums.projected, sums.squared)
    torch.testing.assert_close(few.mT @ found, dense.mT @ residual, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(rest + found @ found, residual @ residual, rtol=1e-12, atol=0.0)


def test_residuals_on_a_band_carry_gradients():
    weights, residual = problem(1)
    sums = CellSums.of(weights, residual)
    rows = BandRows.of(sums)
    projected = sums.projected.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: rows.residuals(p, sums.squared), (projected,))


def test_a_direction_that_no_row_has_costs_no_digits():
    """All rows at one place: rank one, and a band of four."""
    x = torch.full((50, 1), 0.3, dtype=torch.float64)
    weights = Interpolation.of(x, [RegularAxis(0.0, 0.25, 4)], boundary="keys")
    residual = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sums = CellSums.of(weights, residual)
    rows = BandRows.of(sums)
    dense, few = weights.to_dense(), rows.weights.to_dense()
    torch.testing.assert_close(few.mT @ few, dense.mT @ dense, rtol=1e-12, atol=1e-12)
    found, rest = rows.residuals(sums.projected, sums.squared)
    torch.testing.assert_close(
        found.square().sum(), 50 * residual.mean().square(), rtol=1e-7, atol=0
    )
    torch.testing.assert_close(rest + found @ found, residual @ residual, rtol=1e-12, atol=0.0)


def test_no_band_on_several_axes_or_for_few_rows():
    for sums in (CellSums.of(*problem(2)), CellSums.of(*problem(1, n=2))):
        assert BandRows.of(sums) is None


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("far", [0.0, 1e4])
def test_sums_of_targets_less_a_constant_are_kept(d, far):
    """As those made anew, for every constant, and its gradient; other targets are not mixed up."""
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(2000, d, generator=generator, dtype=torch.float64)
    data = Gathered.of(x, InterpolationGrid.covering(x, [12] * d, "cubic", "equidistant", "keys"))
    assert data.by_cell is not None
    for y in far + torch.randn(2, 2000, generator=generator, dtype=torch.float64):
        for value in (0.0, far + 0.7):
            level = torch.tensor(value, dtype=torch.float64, requires_grad=True)
            expected = data.residuals(y - level)
            found = data.residuals_from(y, level.expand(2000))
            rounding = 1e-14 * float((y - value).square().sum())  # of squares that cancel
            size = 1e-12 * float((y - value).abs().sum())
            torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=size)
            torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=rounding)
            weights = torch.randn(len(found[0]), generator=generator, dtype=torch.float64)
            slopes = [
                torch.autograd.grad(r @ weights + 0.3 * rest, level)[0]
                for r, rest in (found, expected)
            ]
            torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-7)


def test_sums_of_kept_targets_are_not_made_again(monkeypatch):
    x = torch.linspace(0.0, 1.0, 500, dtype=torch.float64).unsqueeze(1)
    data = Gathered.of(x, InterpolationGrid.covering(x, [12], "cubic", "equidistant", "keys"))
    y = x[:, 0].sin()
    first, _ = data.residuals_from(y, y.new_zeros(()).expand(500))
    monkeypatch.setattr(data, "residuals", lambda _: pytest.fail("made again"))
    again, _ = data.residuals_from(y, y.new_tensor(0.5).expand(500))
    assert not torch.equal(first, again)
