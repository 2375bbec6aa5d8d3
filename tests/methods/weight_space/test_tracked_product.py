"""Nystrom control variate of v^T S v: zero mean, sparse gradient, tracked projection."""

import itertools

import pytest
import torch

from gpx.errors import ShapeError
from gpx.methods.weight_space.tracked_product import (
    carry_projection,
    nystrom_support,
    precision_correction,
)

M, P = 6, 3


pytestmark = pytest.mark.usefixtures("float64_by_default")


def toy(columns=2):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(M, 2, generator=g)
    kernel = torch.exp(-0.5 * torch.cdist(x, x).square())
    support = nystrom_support(kernel[:P, :P])
    features = support.features(kernel[:P])
    return kernel, features, torch.randn(M, columns, generator=g)


def index_lists(scheme):
    if scheme == "with_replacement":
        return list(itertools.product(range(M), repeat=2))
    if scheme == "without_replacement":
        return list(itertools.combinations(range(M), 2))
    return [(0, 1), (2, 3), (4, 5)]


@pytest.mark.parametrize("scheme", ["with_replacement", "without_replacement", "blocks"])
def test_zero_mean_in_value_and_gradient(scheme):
    _, features, v = toy()
    v.requires_grad_()
    pairs = torch.tensor(list(itertools.product(index_lists(scheme), repeat=2)))

    def one(pair):
        j, i = pair
        return precision_correction(
            features @ v.detach(), features[:, j], features[:, i], v[j], v[i], M / 2
        )

    values = torch.vmap(one)(pairs)
    assert values.detach().std() > 0.1
    (grad,) = torch.autograd.grad(values.mean(), v)
    assert abs(float(values.detach().mean())) < 1e-10
    assert grad.abs().max() < 1e-10


def test_nystrom_features_reproduce_the_precision_and_reduce_the_variance():
    kernel, features, v = toy(columns=1)
    torch.testing.assert_close(features.T @ features[:, :P], kernel[:, :P])
    # all points as support: the correction is the exact negative of the sampling error
    whole = nystrom_support(kernel).features(kernel)
    j, i = torch.tensor([0, 4]), torch.tensor([3, 1])
    sampled = 9.0 * (v[j] * (kernel[j][:, i] @ v[i])).sum()
    fixed = precision_correction(whole @ v, whole[:, j], whole[:, i], v[j], v[i], 3.0)
    torch.testing.assert_close(sampled + fixed, (v * (kernel @ v)).sum())


def test_projection_is_carried_over_sparse_steps():
    _, features, v = toy()
    projection = features @ v
    g = torch.Generator().manual_seed(1)
    for _ in range(1000):
        moved = torch.randperm(M, generator=g)[:2]
        change = 0.1 * torch.randn(2, 2, generator=g)
        v[moved] += change
        carry_projection(projection, features[:, moved], change)
    torch.testing.assert_close(projection, features @ v, rtol=1e-10, atol=1e-10)


def test_a_support_that_is_no_square_matrix_is_refused():
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        nystrom_support(torch.zeros(3, 4))
