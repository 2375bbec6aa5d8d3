"""Where rows are near to each other, for kernels made of others; values given near rows."""

import torch
from draws import draw

from gpx.inference import neighbour_conditional as module
from gpx.inference.neighbour_conditional import near_coordinates, neighbour_conditional
from gpx.kernels import (
    RBF,
    ArcCosine,
    Categorical,
    Constant,
    Convolutional,
    Linear,
    Matern32,
    Warped,
)


def test_coordinates_of_stationary_parts_lie_side_by_side():
    x = draw(5, 3)
    kernel = 2.0 * (RBF(3, [0.5, 1.0, 2.0]) + Matern32(1, 0.7, active_dims=[2]) * Linear())
    want = torch.cat([x / torch.tensor([0.5, 1.0, 2.0]), x[:, 2:] / 0.7], 1)
    torch.testing.assert_close(near_coordinates(kernel.double(), x), want)
    assert near_coordinates(Linear(), x) is x


def test_categories_and_columns_without_lengthscales_have_coordinates_of_their_own():
    """They had none: neighbours were taken from any category, and from anywhere along a line."""
    x = draw(6, 6)
    x[:, 2:5] = torch.eye(3).double()[[0, 1, 2, 0, 1, 2]]
    x[:, 5] = x[:, 2]
    kernel = (
        RBF(None, 0.5, active_dims=[0]) * Categorical([[2, 3, 4], [5]], [0.3, 2.0])
        + ArcCosine(active_dims=[0, 1])
        + Constant()
    )
    found = near_coordinates(kernel.double(), x)
    want = [x[:, :1] / 0.5, x[:, 2:5] / 0.3**0.5, x[:, 5:], x[:, 1:2] / 2.0]
    torch.testing.assert_close(found, torch.cat(want, 1), rtol=1e-6, atol=0)
    squares = (found[:, 1:5] - found[:1, 1:5]).square().sum(1)
    covariance = Categorical([[2, 3, 4], [5]], [0.3, 2.0]).double().evaluate(x[:1], x)[0]
    torch.testing.assert_close((-0.5 * squares).exp(), covariance, rtol=1e-6, atol=0)


def test_a_warp_comes_first_and_patches_are_no_inputs():
    """Inputs are float64 also where the network of the warp is not."""
    network, x = torch.nn.Linear(9, 2), draw(5, 9)
    with torch.no_grad():
        want = network(x.float()).double() / 0.5
    found = near_coordinates(Warped(RBF(2, 0.5), network), x)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, want)
    assert near_coordinates(Convolutional(RBF(4), [3, 3], 2).double(), x) is x


def test_chunks_change_nothing_and_share_one_array_of_factors(monkeypatch):
    """Rows with absent members, too; noise of every row; the dense conditional of each group."""
    kernel, x, queries, residual = RBF(2).double(), draw(20, 2), draw(7, 2), draw(20, 1)[:, 0]
    noise = 0.1 + draw(20, 1)[:, 0].square()
    near = torch.stack([torch.randperm(20)[:5] for _ in range(7)])
    near[2, 3:] = -1
    places = []
    factors = module.noisy_factor

    def noted(covariance, noise, there, out=None, **options):
        places.append(out.data_ptr())
        return factors(covariance, noise, there, out, **options)

    monkeypatch.setattr(module, "noisy_factor", noted)
    monkeypatch.setattr(module, "CHUNK_BYTES", 8 * 36 * 2)
    found = neighbour_conditional(kernel, noise, x, residual, queries, near)
    assert len(places) == 4
    assert len(set(places)) == 1
    for query, rows, mean, variance in zip(queries, near, found.mean, found.variance, strict=True):
        own = rows[rows >= 0]
        cross = kernel.evaluate(x[own], query[None])
        matrix = kernel.evaluate(x[own]) + torch.diag(noise[own])
        weights = torch.linalg.solve(matrix, cross)
        torch.testing.assert_close(mean, (weights[:, 0] * residual[own]).sum())
        want = kernel.diagonal(query[None])[0] - (weights * cross).sum()
        torch.testing.assert_close(variance, want)


def test_groups_without_absent_rows_have_no_masks_and_chunks_that_a_cache_holds(monkeypatch):
    kernel, x, queries, residual = RBF(2).double(), draw(70, 2), draw(130, 2), draw(70, 1)[:, 0]
    near = torch.stack([torch.randperm(70)[:64] for _ in range(130)])
    given, factors = [], module.noisy_factor

    def noted(covariance, noise, there, out=None, **options):
        given.append((there, covariance.nbytes))
        return factors(covariance, noise, there, out, **options)

    monkeypatch.setattr(module, "noisy_factor", noted)
    found = neighbour_conditional(kernel, torch.tensor(0.1).double(), x, residual, queries, near)
    assert all(there is None and size <= 2**22 for there, size in given)
    assert len(given) == 2
    near[0, -1] = -1  # masks for all are of the same value
    again = neighbour_conditional(kernel, torch.tensor(0.1).double(), x, residual, queries, near)
    assert given[-1][0] is not None
    torch.testing.assert_close(again.mean[1:], found.mean[1:])
    torch.testing.assert_close(again.variance[1:], found.variance[1:])
