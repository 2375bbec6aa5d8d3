"""Sums over the data: rows that come in parts are those of all at once, whatever the functions."""

import pytest
import torch

from gpx.bases import ImportanceWeightedFourier, LaplacianEigenfunctions, RandomFourier
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import Direct, DirectMixture, DirectNetwork, NoiseGrid, WeightGrid
from gpx.objectives import DirectELBO, DirectMixtureELBO, DirectNetworkELBO

EXACT = {"rtol": 1e-12, "atol": 1e-12}
PARTS = [(0, 1), (1, 24), (24, 25), (25, 60)]

BASES = {
    "random_fourier": RandomFourier,
    "importance_weighted": lambda kernel, num_basis: ImportanceWeightedFourier(
        kernel, num_basis, 2
    ),
    "laplacian": lambda kernel, num_basis: LaplacianEigenfunctions(kernel, num_basis, 2, 3.0),
}


def data(n=60):
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=draws, dtype=torch.float64) * 4.0 - 2.0
    return x, (2.0 * x[:, 0]).sin() + 0.2 * torch.randn(n, generator=draws, dtype=torch.float64)


def over_functions(cls, basis):
    return cls(
        kernel=RBF(2, lengthscale=1.1, outputscale=1.3),
        mean=Constant(0.1),
        likelihood=Gaussian(0.05),
        basis=BASES[basis],
        num_basis=60,
        weights=WeightGrid(5, 2.0),
        noise=NoiseGrid(num_values=3),
    )


MODELS = {
    **{f"direct {name}": (over_functions, Direct, name, DirectELBO) for name in BASES},
    **{
        f"direct_mixture {name}": (over_functions, DirectMixture, name, DirectMixtureELBO)
        for name in BASES
    },
    "direct_network": (
        lambda *_: DirectNetwork(likelihood=Gaussian(0.05), num_inputs=2, hidden=[2], starts=2),
        None,
        None,
        DirectNetworkELBO,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_come_in_parts_are_those_of_all_at_once(name):
    make, cls, basis, objective = MODELS[name]
    x, y = data()
    made = make(cls, basis).double()
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    whole = made.statistics
    want, seen = objective().evidence(made, x, y), made.condition(x, y).predict(x)
    made.statistics = SufficientStatistics.empty(len(whole.projected))
    for first, last in PARTS:
        made.add_rows(x[first:last], y[first:last])
    streamed = made.statistics
    assert streamed.num_data == whole.num_data == 60
    # rounding of sums is in units of their largest entries
    for part in ("gram", "projected", "squared"):
        mine, theirs = getattr(streamed, part), getattr(whole, part)
        close = {"rtol": 1e-12, "atol": 1e-12 * float(theirs.abs().max())}
        torch.testing.assert_close(mine, theirs, **close)
    found = objective().evidence(made, x, y)
    torch.testing.assert_close(found.value.detach(), want.value.detach(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(made.condition(x, y).predict(x).mean, seen.mean, **EXACT)
    for first, last in reversed(PARTS):
        made.remove_rows(x[first:last], y[first:last])
    assert made.statistics.num_data == 0
    assert float(made.gram.abs().max()) < 1e-12 * float(whole.gram.abs().max())


def test_the_best_noise_is_of_the_error_that_a_fit_stands_for():
    x, y = data()
    made = over_functions(Direct, "random_fourier").double()
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    made.noise_logits.data = torch.tensor([0.4, -0.3, 0.2]).double()
    values, log_prior = made.noise_grid()
    precision = made.noise_logits.detach().softmax(0) @ (1.0 / values)
    error = torch.tensor(7.0).double()
    found = made.best_noise_logits(-0.5 * precision * error)
    assert not found.requires_grad
    torch.testing.assert_close(
        found, log_prior - 0.5 * (60 * values.log() + error / values), **EXACT
    )
