"""Change points without places of their own start where short fits find the change."""

import pytest
import torch
from draws import draws

from gpx.constraints import fix
from gpx.errors import DidNotConverge
from gpx.kernels import RBF, ChangePoints, Linear
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP
from gpx.training import SubsetInitialisation
from gpx.training.change_places import MAX_PLACES, open_changes, place_changes


def two_regimes(change, n=120):
    """A slow wave that turns into a fast one."""
    x = torch.linspace(-1.7, 1.7, n, dtype=torch.float64)
    y = torch.where(x < change, torch.sin(2.0 * x), torch.sin(18.0 * x))
    return x[:, None], y + 0.05 * torch.randn(n, generator=draws(0), dtype=torch.float64)


def started(kernel, x, y):
    model = ExactGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.1)).double()
    lines = []
    SubsetInitialisation()(model, x, y, generator=draws(1), say=lines.append)
    return model, lines


@pytest.mark.parametrize("change", [-0.6, 0.0, 1.1])
def test_a_change_between_two_regimes_is_found(change):
    model, lines = started(ChangePoints([RBF(1), RBF(1)]), *two_regimes(change))
    assert model.kernel.locations.item() == pytest.approx(change, abs=0.1)
    assert model.likelihood.noise_variance.item() < 0.02  # else it is some 0.5: all is noise
    assert lines[0].startswith("init: changes start at ")


def test_two_changes_are_found_in_a_sum():
    x, y = two_regimes(-0.5)
    y = torch.where(x[:, 0] < 0.6, y, torch.sin(2.0 * x[:, 0]))
    model, _ = started(ChangePoints([RBF(1), RBF(1), RBF(1)]) + Linear(1, 0.1), x, y)
    found = model.kernel.kernels[0].locations.tolist()
    assert found == pytest.approx([-0.5, 0.6], abs=0.15)
    assert model.likelihood.noise_variance.item() < 0.02


def test_places_of_the_user_and_fixed_ones_are_not_searched():
    given, fixed = ChangePoints([RBF(1), RBF(1)], [0.3]), ChangePoints([RBF(1), RBF(1)])
    fix(fixed, "locations")
    elsewhere = ChangePoints([RBF(1), RBF(1)], axis=1)
    assert all(open_changes(kernel, num_inputs=1) == [] for kernel in (given, fixed, elsewhere))
    assert open_changes(elsewhere, num_inputs=2) == [0]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_few_places_are_tried_and_they_increase(count):
    kernel, tried = ChangePoints([RBF(1) for _ in range(count + 1)]), []

    def fit(change):
        change(kernel)
        tried.append(tuple(kernel.locations.tolist()))
        raise DidNotConverge("no fit")

    assert place_changes(fit, kernel, 0, two_regimes(0.0)[0], lambda line: None) is None
    assert 0 < len(set(tried)) <= MAX_PLACES
    assert all(list(each) == sorted(set(each)) for each in tried)


def test_an_input_of_too_few_values_has_no_places():
    kernel = ChangePoints([RBF(1) for _ in range(4)])
    x = torch.tensor([0.0, 1.0] * 10, dtype=torch.float64)[:, None]
    assert place_changes(None, kernel, 0, x, lambda line: None) is None
