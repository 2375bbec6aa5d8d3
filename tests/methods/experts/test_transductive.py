"""Transductive processes: all neighbours are the exact process, batches equal loops."""

import dense_experts as dense
import pytest
import torch
from draws import draws

from gpx.errors import ConfigError
from gpx.inducing import ColumnBlocks
from gpx.inference import neighbour_conditional
from gpx.models import ExactGP, Transductive


def over(*lengthscales):
    return lambda x: x / torch.tensor(lengthscales, dtype=x.dtype)


COORDINATES = {
    "rbf": over(0.7, 1.1),
    "matern12": over(0.9, 1.4),
    "sum": lambda x: torch.cat([over(0.7, 1.1)(x), x[:, 1:] / 2.0], 1),
    "no distance": over(0.7, 1.1),
}


def transductive(x, y, neighbours, kernel="rbf", sharing="own", count=3):
    model = Transductive(
        **dense.parts(kernel),
        num_neighbours=neighbours,
        num_experts=count,
        hyperparameters=sharing,
    )
    model.initialise(x, y, generator=draws())
    if model.own is not None:
        with torch.no_grad():
            for parameter in model.own.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=draws(1)).double()
    return model


@pytest.mark.parametrize("neighbours", [61, 100])
def test_all_neighbours_are_the_exact_process(neighbours):
    x, y, new = dense.data()
    found = transductive(x, y, neighbours, sharing="shared").condition(x, y).predict(new)
    exact = ExactGP(**dense.parts()).condition(x, y).predict(new)
    torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("kernel", dense.KERNELS)
@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_predictions_in_batches_are_those_of_one_point_at_a_time(kernel, sharing):
    x, y, new = dense.data()
    model = transductive(x, y, 8, kernel, sharing)
    unit = model.regions.weights.rsqrt()
    coordinates = COORDINATES[kernel]
    near = torch.cdist(coordinates(new), coordinates(x)).argsort(1)[:, :8]
    experts = torch.cdist(new / unit, model.regions.centres / unit).argmin(1)
    for budget in (1, 10**9):
        model.batch_bytes = budget
        posterior = model.condition(x, y)
        assert torch.equal(posterior.neighbours(new).sort(1).values, near.sort(1).values)
        dense.require_predictions_of_experts(posterior, model, x, y, new, experts, near)


@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_sampled_functions_have_the_predicted_mean_and_variance(sharing):
    x, y, new = dense.data()
    posterior = transductive(x, y, 8, sharing=sharing).condition(x, y)
    dense.require_moments_of_paths(posterior, new)


def test_experts_by_a_column_have_neighbours_near_in_every_input():
    x, y, new = dense.data()
    x[:, 1] = (torch.arange(len(x)) % 3).double()
    model = Transductive(**dense.parts(), num_neighbours=8, partition=ColumnBlocks(1))
    model.initialise(x, y, generator=draws())
    near = torch.cdist(COORDINATES["rbf"](new), COORDINATES["rbf"](x)).argsort(1)[:, :8]
    found = model.condition(x, y).neighbours(new)
    assert torch.equal(found.sort(1).values, near.sort(1).values)


def test_no_neighbours_are_refused():
    with pytest.raises(ConfigError, match="num_neighbours=0 must be at least 1"):
        Transductive(**dense.parts(), num_neighbours=0)


def test_rows_are_prepared_for_the_search_once(monkeypatch):
    """A tree of all rows takes much longer than a prediction."""
    x, y, new = dense.data()
    posterior = transductive(x, y, 7).condition(x, y)
    want, made = posterior.predict(new), []
    search = neighbour_conditional.NearestSearch
    monkeypatch.setattr(
        neighbour_conditional, "NearestSearch", lambda *given: made.append(0) or search(*given)
    )
    assert torch.equal(posterior.predict(new).mean, want.mean)
    posterior.sample_paths(2, generator=draws())(new)
    assert not made
    posterior.kernel.lengthscale = torch.tensor([2.0, 0.1]).double()
    posterior.predict(new)
    more = posterior.with_observations(x[:5] + 0.1, y[:5], posterior.likelihood)
    assert more.neighbours(x[:5] + 0.1)[:, 0].tolist() == [61, 62, 63, 64, 65]
    assert len(made) == 2
