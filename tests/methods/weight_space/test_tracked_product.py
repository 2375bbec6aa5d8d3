"""Control variate of a doubly sampled product: zero mean, in value and in its sparse gradient."""

import itertools

import pytest
import torch

from gpx.methods.weight_space.tracked_product import (
    corrected_form,
    correction_direction,
    product_correction,
)

M, P = 6, 3

pytestmark = pytest.mark.usefixtures("float64_by_default")


def toy(columns=2, support=P):
    """A kernel matrix, its Nystrom features L^-1 K_U (support, m), and v (m, columns)."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(M, 2, generator=g)
    kernel = torch.exp(-0.5 * torch.cdist(x, x).square())
    root = torch.linalg.cholesky(kernel[:support, :support])
    features = torch.linalg.solve_triangular(root, kernel[:support], upper=False)
    return kernel, features, torch.randn(M, columns, generator=g)


def index_lists(scheme):
    if scheme == "with_replacement":
        return list(itertools.product(range(M), repeat=2))
    if scheme == "without_replacement":
        return list(itertools.combinations(range(M), 2))
    return [(0, 1), (2, 3), (4, 5)]


def corrected(features, v, j, i, ratio):
    left, right = features[:, j] @ v[j], features[:, i] @ v[i]
    return product_correction(features @ v.detach(), left, right, ratio)


@pytest.mark.parametrize("scheme", ["with_replacement", "without_replacement", "blocks"])
def test_zero_mean_in_value_and_gradient(scheme):
    _, features, v = toy()
    v.requires_grad_()
    pairs = torch.tensor(list(itertools.product(index_lists(scheme), repeat=2)))
    values = torch.vmap(lambda pair: corrected(features, v, *pair, M / 2))(pairs)
    assert values.detach().std() > 0.1
    (grad,) = torch.autograd.grad(values.mean(), v)
    assert abs(float(values.detach().mean())) < 1e-10
    assert grad.abs().max() < 1e-10


def test_all_points_as_support_correct_the_whole_error_of_sampling_the_prior_term():
    kernel, features, v = toy(columns=1, support=M)
    j, i = torch.tensor([0, 4]), torch.tensor([3, 1])
    sampled = 9.0 * (v[j] * (kernel[j][:, i] @ v[i])).sum()
    fixed = corrected(features, v, j, i, 3.0)
    torch.testing.assert_close(sampled + fixed, (v * (kernel @ v)).sum())


def test_value_and_gradient_by_the_form_are_those_of_the_correction():
    _, features, v = toy()
    v.requires_grad_()
    j, i, ratio = torch.tensor([0, 4]), torch.tensor([3, 4]), 3.0
    want = corrected(features, v, j, i, ratio)
    projection, right = features @ v.detach(), features[:, i] @ v[i]
    left = features[:, j] @ v[j]
    form = (correction_direction(projection, right, ratio) * left).sum()
    found = corrected_form(form, projection, left.detach(), right, ratio)
    torch.testing.assert_close(found, want)
    grads = (torch.autograd.grad(value, v)[0] for value in (found, want))
    torch.testing.assert_close(*grads)
