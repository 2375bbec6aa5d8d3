import copy
import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import Matern32
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.priors import LogNormal, Priors
from gpx.training import NeighbourInitialisation, SubsetInitialisation, neighbour_initialisation

NOISE = 0.01


def problem(likelihood, n=800):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64) * 4 - 2
    y = torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1]) + 3.0
    y = y + NOISE**0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    model = ExactGP(kernel=Matern32(ard_num_dims=2), mean=Constant(), likelihood=likelihood)
    return model.double(), x, y


def start(initialisation, model, x, y):
    lines = []
    initialisation(model, x, y, generator=torch.Generator().manual_seed(0), say=lines.append)
    return lines


def test_neighbours_find_the_noise_that_a_subset_does_not_see():
    subset, x, y = problem(Gaussian(0.1))
    start(SubsetInitialisation(30, 40), subset, x, y)
    model, _, _ = problem(Gaussian(0.1))
    lines = start(NeighbourInitialisation(30, 40, 150, 40, 25), model, x, y)
    seen, found = (m.likelihood.noise_variance.log().item() for m in (subset, model))
    assert abs(found - math.log(NOISE)) < 0.5 * abs(seen - math.log(NOISE))
    evidence = [ExactMLL().evidence(m, x, y).value.item() for m in (subset, model)]
    assert evidence[1] > evidence[0] + 50.0  # nats over all rows
    assert any("150 rows given 40 neighbours each" in line for line in lines)


@pytest.mark.parametrize("candidates", [None, 500])
def test_neighbours_know_the_noise_of_rows(candidates):
    model, x, y = problem(Gaussian(0.1))
    known = 4.0 * (torch.arange(800) % 2).double()
    y = y + known.sqrt() * torch.randn(800, generator=torch.Generator().manual_seed(7))
    model.know_noise(known)
    start(NeighbourInitialisation(200, 40, 150, 40, 25, candidates), model, x, y)
    assert 0.2 * NOISE < float(model.likelihood.noise_variance.detach()) < 5.0 * NOISE


def test_priors_hold_in_the_fit_to_neighbours():
    """A prior that is far narrower than the likelihood keeps its mode."""
    found = []
    for prior in (None, LogNormal(0.3, 1.001)):
        model, x, y = problem(Gaussian(0.1))
        if prior is not None:
            model.hyperpriors = Priors({"noise_variance": prior})
        start(NeighbourInitialisation(30, 40, 150, 40, 25), model, x, y)
        found.append(float(model.likelihood.noise_variance.detach()))
    assert found[0] < 0.05
    assert found[1] == pytest.approx(0.3, rel=0.02)


def test_few_rows_are_fitted_exactly_and_other_likelihoods_stay():
    for likelihood, n in ((Gaussian(0.1), 60), (Bernoulli(), 200)):
        model, x, y = problem(likelihood, n)
        twin = copy.deepcopy(model)
        start(NeighbourInitialisation(60, 10, 20, 20, 10), model, x, y)
        start(SubsetInitialisation(60, 10), twin, x, y)
        states = zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in states)


def test_options_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"num_neighbours=0 .* at least 1; init=subset"):
        NeighbourInitialisation(num_neighbours=0)
    with pytest.raises(ConfigError, match="num_points=1 must be at least 2"):
        NeighbourInitialisation(num_points=1)


def test_candidates_set_the_density_at_which_the_data_are_seen(monkeypatch):
    gaps = []

    def recorded(kernel, noise, inputs, residual, groups, **options):
        near, own = inputs[groups[:, :-1], 0], inputs[groups[:, -1], 0]
        gaps.append((near - own[:, None]).abs().amin(1).mean().item())
        return original(kernel, noise, inputs, residual, groups, **options)

    original = neighbour_initialisation.neighbour_log_likelihood
    monkeypatch.setattr(neighbour_initialisation, "neighbour_log_likelihood", recorded)
    x = torch.arange(4000, dtype=torch.float64)[:, None] / 4000
    y = (6.0 * x[:, 0]).sin() + 0.1 * torch.randn(4000, generator=torch.Generator().manual_seed(0))
    for candidates in (None, 80):
        model = ExactGP(kernel=Matern32(1), mean=Constant(), likelihood=Gaussian(0.3)).double()
        start(NeighbourInitialisation(30, 5, 20, 10, 1, candidates), model, x, y)
    assert gaps[0] == pytest.approx(1 / 4000)
    # of 100 rows at random: 1 / 200 on average; beyond these limits for 2 of 10^5 draws
    assert 1 / 600 < gaps[1] < 3 / 200


def test_candidates_for_all_rows_change_nothing():
    found = []
    for candidates in (None, 800, 5000):
        model, x, y = problem(Gaussian(0.1))
        start(NeighbourInitialisation(30, 5, 50, 10, 3, candidates), model, x, y)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    with pytest.raises(ConfigError, match="num_candidates=1 must be at least 2"):
        NeighbourInitialisation(num_candidates=1)
