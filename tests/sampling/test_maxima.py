"""Maxima of functions are found where a dense grid has them, and never lie below candidates."""

import public_models
import pytest
import torch

from gpx.errors import NotAvailable, ShapeError
from gpx.kernels import RBF
from gpx.sampling import maxima, prior_functions


def corners(d):
    return torch.zeros(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64)


def test_maxima_of_drawn_functions_are_those_of_a_dense_grid():
    """Ten functions on [-1, 2]; a spacing of 1.5e-3 misses the top of a parabola by 1e-4."""
    functions = prior_functions(
        RBF(1, 0.15).double(), 10, 1, generator=torch.Generator().manual_seed(0)
    )
    lower, upper = torch.full((1,), -1.0).double(), torch.full((1,), 2.0).double()
    found = maxima(functions, lower, upper, candidates=64)
    grid = torch.linspace(-1.0, 2.0, 2_001, dtype=torch.float64)[:, None]
    dense = functions(grid).amax(1)
    assert found.x.shape == (10, 1)
    assert ((found.x >= lower) & (found.x <= upper)).all()
    assert (found.values > dense - 1e-9).all()
    assert (found.values < dense + 1e-4).all()
    torch.testing.assert_close(functions(found.x).diagonal(), found.values)


def test_maxima_inside_and_on_the_surface_of_a_box():
    """A concave quadratic: the first two coordinates inside, the third at its end."""
    top = torch.tensor([0.3, 0.8, 1.7], dtype=torch.float64)
    scale = torch.tensor([1.0, 30.0, 5.0], dtype=torch.float64)
    found = maxima(lambda x: -(scale * (x - top).square()).sum(1)[None], *corners(3))
    torch.testing.assert_close(found.x[0], top.clamp(max=1.0), rtol=0, atol=1e-5)


def test_what_is_found_is_not_below_the_candidates():
    functions = prior_functions(
        RBF(4, 0.1).double(), 5, 4, generator=torch.Generator().manual_seed(1)
    )
    few = maxima(functions, *corners(4), candidates=32, steps=0)
    better = maxima(functions, *corners(4), candidates=32)
    assert (better.values >= few.values).all()
    assert (better.values > few.values).any()
    known = better.x[:2] + torch.zeros(1, 4, dtype=torch.float64)
    told = maxima(functions, *corners(4), candidates=32, also=known, steps=0)
    assert (told.values[:2] >= better.values[:2] - 1e-12).all()


def test_functions_without_derivatives_say_so():
    model, x, y = public_models.prepared("GridGP")
    functions = model.condition(x, y).sample_paths(2, generator=torch.Generator().manual_seed(0))
    box = corners(public_models.INPUTS)
    with pytest.raises(NotAvailable, match=r"with steps=0 and more candidates"):
        maxima(functions, *box)
    with pytest.raises(NotAvailable, match=r"with steps=0 and more candidates"):
        maxima(lambda x: functions(x.detach()), *box)
    assert maxima(functions, *box, steps=0).x.shape == (2, public_models.INPUTS)
    with pytest.raises(ShapeError, match="a lower end below the upper one"):
        maxima(functions, box[1], box[0])
