"""Rows added in pieces give the posterior of all of them."""

import pytest
import torch

from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Zero
from gpx.methods.ski.projection import LinearProjection
from gpx.models import SKI, SKIStream


def data(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 4.0 * torch.rand(n, d, generator=generator, dtype=torch.float64)
    return x, x.sin().sum(1) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


def placed(x, y, **options):
    model = SKI(
        kernel=RBF(x.shape[1], 0.9, 1.3),
        mean=Constant(0.2),
        likelihood=Gaussian(0.05),
        num_inputs=x.shape[1],
        grid_size=14,
        **options,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("d", [1, 2])
def test_pieces_give_the_posterior_of_the_whole(d):
    x, y = data(900, d)
    model = placed(x, y)
    whole = model.condition(x, y)
    stream = SKIStream(model)
    for start in range(0, 900, 250):
        stream.add_rows(x[start : start + 250], y[start : start + 250])
    found = stream.condition()
    at, _ = data(50, d, seed=1)
    for mine, others in zip(found.predict(at), whole.predict(at), strict=True):
        torch.testing.assert_close(mine, others, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("d", [1, 2])
def test_rows_up_to_the_ends_of_the_grid_are_seen_as_they_are(d):
    """Beyond the rows that the grid was laid over, in its first and last cells, too."""
    x, y = data(300, d)
    model = placed(x, y)
    grid = model.grid
    low, span = model.start, model.spacing * (model.sizes - 1)
    more = low + span * torch.rand(
        400, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    targets = more.sin().sum(1)
    stream = SKIStream(model)
    stream.add_rows(more, targets)
    weights = grid.weights(more).to_dense()
    points = torch.cartesian_prod(*[a.points(x) for a in grid.axes]).reshape(grid.size, d)
    with torch.no_grad():
        gram = model.kernel.evaluate(points)
        matrix = weights @ gram @ weights.mT + 0.05 * torch.eye(400, dtype=torch.float64)
        want = 0.2 + weights @ gram @ weights.mT @ torch.linalg.solve(matrix, targets - 0.2)
    for posterior in (stream.condition(), model.condition(more, targets)):
        torch.testing.assert_close(posterior.predict(more).mean, want, rtol=0.0, atol=1e-6)


def test_what_is_kept_does_not_grow_with_the_rows():
    x, y = data(4000, 1)
    stream = SKIStream(placed(x, y))
    for start in range(0, 4000, 1000):
        stream.add_rows(x[start : start + 1000], y[start : start + 1000])
        assert len(stream.sums.cells) <= 10  # the cells of the grid that the data lie in
    assert stream.sums.num_data == 4000


def test_invalid_setups_are_refused():
    x, y = data(100, 1)
    model = placed(x, y)
    stream = SKIStream(model)
    with pytest.raises(ConfigError, match="no rows were added yet"):
        stream.condition()
    with pytest.raises(DataError, match="outside the interpolation grid"):
        stream.add_rows(x + 40.0, y)
    projected = SKI(
        kernel=RBF(1),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_inputs=2,
        projection=LinearProjection(2, 1),
    )
    with pytest.raises(ConfigError, match="a projection moves it"):
        SKIStream(projected)
