"""Many minimisations in step, each with a search of its own, against SciPy's for one at a time."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from draws import draws

from gpx.training.separate_searches import SETTLED, STATIONARY, STUCK, SeparateSearches

P, K = 12, 5
INFINITE = torch.full((P, K), math.inf).double()


def functions():
    """Quadratics with a valley of Rosenbrock's in some: (numbers (a,), points (a, K)) -> (a,)."""
    matrices = torch.randn(P, K, K, generator=draws(0)).double()
    matrices = matrices @ matrices.mT + 0.05 * torch.eye(K)
    centres = torch.randn(P, K, generator=draws(1)).double()
    bend = torch.linspace(0.0, 20.0, P).double()

    def values(numbers, x):
        at = torch.as_tensor(numbers)
        gap = x - centres[at]
        square = 0.5 * torch.einsum("ai,aij,aj->a", gap, matrices[at], gap)
        valley = (x[:, 1:] - x[:, :-1].square()).square().sum(1)
        return square + bend[at] * valley

    return values


def asked(values, numbers, points):
    points = points.clone().requires_grad_()
    found = values(numbers, points)
    (gradients,) = torch.autograd.grad(found.sum(), points)
    return found.detach(), gradients


def run(searches, values, most=300):
    """Minimise; returns the evaluations of each search."""
    count = torch.zeros(P)
    for _ in range(most):
        active = searches.active()
        if not active:
            break
        points = searches.trials(active)
        searches.tell(active, *asked(values, active, points))
        count[active] += 1
    return count


def searched(values, lower=-INFINITE, upper=INFINITE, start=None, trained=None, **options):
    start = torch.zeros(P, K).double() if start is None else start
    trained = torch.ones(P, K, dtype=torch.bool) if trained is None else trained
    searches = SeparateSearches(start, trained, lower, upper, **options)
    return searches, run(searches, values)


def by_scipy(values, number, lower, upper):
    def evaluate(point):
        found, gradients = asked(values, [number], torch.from_numpy(point)[None])
        return found.item(), gradients[0].numpy()

    bounds = list(zip(lower[number].tolist(), upper[number].tolist(), strict=True))
    options = {"ftol": 1e-10, "gtol": 1e-7, "maxfun": 500}
    start = np.zeros(K)
    return scipy.optimize.minimize(
        evaluate, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )


@pytest.mark.parametrize("bounded", [False, True])
def test_ends_where_scipy_does_after_as_many_evaluations(bounded):
    values = functions()
    lower = torch.full((P, K), -0.3).double() if bounded else -INFINITE
    upper = torch.full((P, K), 0.4).double() if bounded else INFINITE
    searches, count = searched(values, lower, upper)
    assert set(searches.state.tolist()) <= {STATIONARY, SETTLED}
    theirs = [by_scipy(values, number, lower, upper) for number in range(P)]
    want = torch.tensor([each.fun for each in theirs]).double()
    assert (searches.loss - want).max() < 1e-6
    assert count.mean() < 1.3 * np.mean([each.nfev for each in theirs])
    assert ((searches.point >= lower) & (searches.point <= upper)).all()
    if bounded:
        assert (searches.point == upper).any()
        assert (searches.point == lower).any()


def test_a_search_does_not_depend_on_the_others():
    values = functions()
    together, _ = searched(values)
    alone = SeparateSearches(
        torch.zeros(P, K).double(), torch.ones(P, K, dtype=torch.bool), -INFINITE, INFINITE
    )
    alone.only([7])
    run(alone, values)
    torch.testing.assert_close(alone.point[7], together.point[7], rtol=0, atol=0)
    torch.testing.assert_close(alone.point[:7], torch.zeros(7, K).double())


def test_a_restored_state_goes_on_bit_for_bit():
    values = functions()
    whole, _ = searched(values)
    first = SeparateSearches(
        torch.zeros(P, K).double(), torch.ones(P, K, dtype=torch.bool), -INFINITE, INFINITE
    )
    run(first, values, most=7)
    second = SeparateSearches(
        torch.ones(P, K).double(), torch.ones(P, K, dtype=torch.bool), -INFINITE, INFINITE
    )
    second.load_state_dict(first.state_dict())
    run(second, values)
    for name in SeparateSearches.NAMES:
        assert torch.equal(getattr(second, name), getattr(whole, name)), name


def test_what_is_not_trained_stays():
    values = functions()
    trained = torch.rand(P, K, generator=draws(3)) < 0.6
    trained[4] = False
    start = 0.1 * torch.randn(P, K, generator=draws(4)).double()
    searches, count = searched(values, start=start, trained=trained)
    assert torch.equal(searches.point[~trained], start[~trained])
    assert (searches.point[trained] != start[trained]).all()
    assert count[4] == 0


def test_points_without_a_loss_are_stepped_back_from():
    values = functions()

    def broken(numbers, x):  # no loss far from the start, as of a matrix without a factor
        return torch.where(x.norm(dim=1) < 1.0, values(numbers, x), math.inf)

    searches, _ = searched(broken)
    assert searches.loss.isfinite().all()
    assert (searches.point.norm(dim=1) < 1.0).all()
    start = asked(values, list(range(P)), torch.zeros(P, K).double())[0]
    assert (searches.loss <= start).all()


def test_a_wrong_gradient_ends_a_search():
    values = functions()

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            return -grad

    searches, count = searched(lambda numbers, x: Reversed.apply(values(numbers, x)))
    # where it began, but for steps that rounding hides
    assert set(searches.state.tolist()) <= {SETTLED, STUCK}
    assert searches.point.abs().max() < 1e-9
    assert count.max() <= 22


def test_at_the_minimum_nothing_moves():
    values = functions()
    found, _ = searched(values, ftol=0.0)
    again, count = searched(values, start=found.point, gtol=1e-4)
    assert (again.state == STATIONARY).all()
    assert (count == 1).all()
