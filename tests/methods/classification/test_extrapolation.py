"""Anderson's extrapolation: of an affine iteration it is the fixed point."""

import torch
from draws import draws

from gpx.methods.classification.extrapolation import extrapolated


def affine(n=2):
    """An iteration sites -> A sites + b in 2n numbers that contracts, and its fixed point."""
    matrix = torch.randn(2 * n, 2 * n, generator=draws(), dtype=torch.float64)
    matrix = 0.9 * matrix / torch.linalg.matrix_norm(matrix, 2)
    offset = torch.randn(2 * n, generator=draws(1), dtype=torch.float64)
    fixed = torch.linalg.solve(torch.eye(2 * n) - matrix, offset)
    return lambda sites: (matrix @ sites.flatten() + offset).view(2, n), fixed.view(2, n)


def test_as_many_steps_as_numbers_give_the_fixed_point():
    step, fixed = affine()
    sites, past = torch.zeros(2, 2, dtype=torch.float64), []
    for _ in range(5):
        past.append(torch.stack([sites, step(sites)]))
        sites = step(sites)
    variance = torch.tensor([0.5, 2.0], dtype=torch.float64)
    assert (sites - fixed).abs().max() > 1e-2
    found = extrapolated(torch.stack(past), variance)
    torch.testing.assert_close(found, fixed, rtol=1e-4, atol=1e-4)


def test_equal_points_leave_the_last_target():
    point = torch.stack([torch.zeros(2, 3), torch.ones(2, 3)]).double()
    found = extrapolated(torch.stack([point, point]), torch.ones(3).double())
    torch.testing.assert_close(found, point[1])
