"""Inducing grids: ascending, distinct, covering, never more nodes than values."""

import pytest
import torch

from gpx.bases.grid_eigenfunctions.grid import GridOptions, grid_size, inducing_axes, pad_axes
from gpx.errors import ConfigError, DataError, ShapeError


def columns():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    x[:, 1] = (x[:, 1] > 0).double()
    x[:, 2] = 3.5
    x[:, 3] = x[:, 3].exp()
    return x


@pytest.mark.parametrize("kind", ["equispaced", "quantile", "kmeans"])
def test_nodes_are_ascending_distinct_and_cover_the_data(kind):
    x = columns()
    axes = inducing_axes(x, GridOptions(points_per_dim=8, kind=kind))
    assert [len(a) for a in axes] == [8, 2, 1, 8]
    assert axes[1].tolist() == [0.0, 1.0]
    assert axes[2].tolist() == [3.5]
    for axis, column in zip(axes, x.unbind(1), strict=True):
        assert (axis.diff() > 0).all()
        assert axis[0] <= column.min()
        assert axis[-1] >= column.max()
    padded, sizes = pad_axes(axes)
    assert padded.shape == (4, 8)
    assert grid_size(sizes) == 128


def test_margin_and_quantiles():
    x = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)[:, None] ** 2
    (axis,) = inducing_axes(x, GridOptions(points_per_dim=5, margin=0.25))
    torch.testing.assert_close(axis, torch.tensor([-0.25, 0.125, 0.5, 0.875, 1.25]).double())
    (axis,) = inducing_axes(x, GridOptions(points_per_dim=5, kind="quantile"))
    torch.testing.assert_close(axis, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]).double() ** 2)


def test_kmeans_moves_nodes_to_the_clusters():
    generator = torch.Generator().manual_seed(1)
    centres = torch.tensor([0.0, 1.0, 5.0, 5.5], dtype=torch.float64)
    x = torch.cat(
        [c + 0.01 * torch.randn(50, generator=generator, dtype=torch.float64) for c in centres]
    )
    (axis,) = inducing_axes(x[:, None], GridOptions(points_per_dim=6, kind="kmeans"))
    for centre in centres:
        assert (axis - centre).abs().min() < 0.03


def test_explicit_axes_and_mistakes():
    x = columns()[:, :2]
    axes = inducing_axes(x, GridOptions(axes=[[0.0, 1.0], [2.0]]))
    assert [a.tolist() for a in axes] == [[0.0, 1.0], [2.0]]
    with pytest.raises(ShapeError, match="lists 1 axes for 2 input columns"):
        inducing_axes(x, GridOptions(axes=[[0.0, 1.0]]))
    with pytest.raises(
        ConfigError, match=r"axes=\[1, 2\]: expected a list of nodes for each column"
    ):
        GridOptions(axes=[1, 2])
    with pytest.raises(ConfigError, match="column 2 must be ascending and distinct"):
        GridOptions(axes=[[0.0, 1.0], [1.0, 1.0]])
    with pytest.raises(ConfigError, match="points_per_dim=1"):
        GridOptions(points_per_dim=1)
    with pytest.raises(ConfigError, match="kind=sobol"):
        GridOptions(kind="sobol")
    with pytest.raises(ConfigError, match="margin=-1"):
        GridOptions(margin=-1.0)
    x[3, 0] = float("nan")
    with pytest.raises(DataError, match="finite"):
        inducing_axes(x, GridOptions())
