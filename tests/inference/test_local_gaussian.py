"""Conditionals and divergences of small groups: dense values, and gradients by differences."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.inference.local_gaussian import conditionals, half_log_determinant, prior_divergence

GROUPS, SIZE, QUERIES = 2, 4, 3
NOISE = 0.3


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def system(inner, there=None):
    """The factor of a symmetric matrix with its noise; absent members are the identity."""
    k = 0.5 * (inner + inner.mT) + NOISE * torch.eye(SIZE).double()
    if there is not None:
        keep = (there.unsqueeze(2) & there.unsqueeze(1)).double()
        k = k * keep + torch.diag_embed((~there).double())
    return k, torch.linalg.cholesky(k.detach())


def covariance(seed=0):
    root = draw(GROUPS, SIZE, SIZE, seed=seed)
    return root @ root.mT


@pytest.mark.parametrize("absent", [False, True])
def test_conditionals_of_dense_algebra_and_their_gradients(absent):
    there = torch.tensor([[True] * 4, [True, False, True, True]]) if absent else None
    inner = covariance().requires_grad_()
    cross = draw(GROUPS, SIZE, QUERIES, seed=1)
    cross = (cross if there is None else cross * there.unsqueeze(2)).requires_grad_()
    prior = (draw(GROUPS, QUERIES, seed=2) + 9.0).requires_grad_()
    k, factor = system(inner, there)
    weights, rest = conditionals(inner, factor, cross, prior, there)
    want = torch.linalg.solve(k, cross)
    torch.testing.assert_close(weights, want, rtol=1e-11, atol=1e-12)
    want_rest = prior - (cross * want).sum(1)
    torch.testing.assert_close(rest, want_rest, rtol=1e-11, atol=1e-12)
    sides = draw(GROUPS, SIZE, QUERIES, seed=3), draw(GROUPS, QUERIES, seed=4)
    inputs = (inner, cross, prior)
    found = torch.autograd.grad((weights, rest), inputs, sides)
    expected = torch.autograd.grad((want, want_rest), inputs, sides)
    if there is not None:  # cross is zero there, whatever it is made of
        expected = (expected[0], expected[1] * there.unsqueeze(2), expected[2])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("width", [None, 2, 6])
def test_divergence_of_dense_algebra_and_its_gradients(width):
    inner, mean = covariance().requires_grad_(), draw(GROUPS, SIZE, seed=5).requires_grad_()
    shape = (GROUPS, SIZE) if width is None else (GROUPS, SIZE, width)
    root = (draw(*shape, seed=6) + 0.1).requires_grad_()
    k, factor = system(inner)
    found = prior_divergence(inner, factor, mean, root)
    full = torch.diag_embed(root) if width is None else root
    s = full @ full.mT
    inverse = torch.linalg.inv(k)
    quadratic = torch.einsum("gi,gij,gj->g", mean, inverse, mean)
    trace = (inverse * s).sum((1, 2))
    want = 0.5 * (trace + quadratic - SIZE + torch.logdet(k))
    torch.testing.assert_close(found, want, rtol=1e-11, atol=0.0)
    if width != 2:  # a density exists
        zero = torch.zeros_like(mean)
        kl = kl_divergence(MultivariateNormal(mean, s), MultivariateNormal(zero, k))
        torch.testing.assert_close(found - 0.5 * torch.logdet(s), kl, rtol=1e-10, atol=0.0)
    side = draw(GROUPS, seed=7)
    ours = torch.autograd.grad(found, (inner, mean, root), side)
    theirs = torch.autograd.grad(want, (inner, mean, root), side)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


def test_half_log_determinant_of_rows_and_its_gradient():
    root = draw(GROUPS, SIZE, 6, seed=8).requires_grad_()
    found, want = half_log_determinant(root), 0.5 * torch.logdet(root @ root.mT)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-13)
    side = draw(GROUPS, seed=9)
    ours, theirs = (torch.autograd.grad(value, root, side)[0] for value in (found, want))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_half_log_determinant_of_rows_that_are_all_but_parallel():
    """The product of these rows is singular in float64; their determinant is 1e-9."""
    root = torch.tensor([[[1.0, 0.0], [1.0, 1e-9]]]).double()
    assert torch.linalg.cholesky_ex(root @ root.mT).info.item() != 0
    torch.testing.assert_close(
        half_log_determinant(root), torch.tensor([1e-9]).double().log(), rtol=1e-12, atol=0.0
    )
