import pytest
import torch

from gpx.inference.variational.moments import (
    factor_moments,
    factor_terms,
    gaussian_kl,
    lower_factor,
    project,
)
from gpx.linalg.triangular import inverse_lower


def _problem(size, batch, latents, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    root = normal(size, size)
    return (
        root @ root.mT / size + torch.eye(size, dtype=torch.float64),
        normal(size, batch),
        normal(latents, size),
        normal(latents, size, size).tril(),
    )


def _reference(k_zz, k_zx, mean, factor):
    projection = torch.linalg.solve_triangular(torch.linalg.cholesky(k_zz), k_zx, upper=False)
    identity = torch.eye(len(k_zz), dtype=k_zz.dtype)
    excess = factor @ factor.mT - identity
    return mean @ projection, torch.einsum("mb,pmk,kb->pb", projection, excess, projection)


def _ours(k_zz, k_zx, mean, factor):
    with torch.no_grad():
        inverse = inverse_lower(torch.linalg.cholesky(k_zz))
    return factor_moments(project(k_zz, k_zx, inverse), mean, factor)


# 300 rows are cut into panels (with a ragged last one), 12 are not
@pytest.mark.parametrize("size", [12, 300])
@pytest.mark.parametrize("latents", [1, 3])
def test_values_and_gradients_equal_those_of_automatic_differentiation(size, latents):
    parts = _problem(size, 40, latents)
    results = []
    for function in (_reference, _ours):
        leaves = [part.clone().requires_grad_(True) for part in parts]
        k_zz, k_zx, mean, factor = leaves
        # symmetrise and mask outside, so that both gradients are with respect to the same thing
        moments = function(0.5 * (k_zz + k_zz.mT), k_zx, mean, factor.tril())
        loss = moments[0].sin().sum() + (0.1 * moments[1]).cos().sum()
        results.append((*moments, *torch.autograd.grad(loss, leaves)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("latents", [1, 2])
def test_gradcheck(latents):
    k_zz, k_zx, mean, factor = _problem(5, 4, latents)
    leaves = [t.requires_grad_(True) for t in (k_zz, k_zx, mean, factor)]

    def moments(a, b, m, s):
        return _ours(0.5 * (a + a.mT), b, m, s.tril())

    assert torch.autograd.gradcheck(moments, leaves)


def test_frozen_parts_get_no_gradient_and_do_not_disturb_the_others():
    k_zz, k_zx, mean, factor = _problem(9, 6, 1)
    moving = mean.clone().requires_grad_(True)
    sum(m.sum() for m in _ours(k_zz, k_zx, moving, factor)).backward()
    projection = torch.linalg.solve_triangular(torch.linalg.cholesky(k_zz), k_zx, upper=False)
    torch.testing.assert_close(moving.grad[0], projection.sum(1))


def test_wider_factorisation_dtype():
    k_zz, k_zx, mean, factor = _problem(20, 6, 1)
    k_zz.requires_grad_(True)
    narrow = [t.float().requires_grad_(True) for t in (k_zx, mean, factor)]
    inverse = inverse_lower(torch.linalg.cholesky(k_zz.detach())).float()
    moments = factor_moments(project(k_zz, narrow[0], inverse), *narrow[1:])
    (moments[0].sum() + moments[1].sum()).backward()
    assert k_zz.grad.dtype == torch.float64
    assert all(t.grad.dtype == torch.float32 for t in narrow)
    exact = _reference(k_zz, k_zx, mean, factor)
    torch.testing.assert_close(moments[1].double(), exact[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("latents", [1, 2])
def test_terms_made_together_are_those_made_apart(latents):
    _, k_zx, mean, raw = _problem(6, 5, latents)
    results = []
    for together in (True, False):
        leaves = [t.clone().requires_grad_(True) for t in (k_zx, mean, raw)]
        if together:
            found = factor_terms(*leaves)
        else:
            strict = leaves[2].tril(-1)
            logs = leaves[2].diagonal(dim1=-2, dim2=-1)
            factor = strict + torch.diag_embed(logs.exp())
            torch.testing.assert_close(factor, lower_factor(leaves[2].detach()))
            kl = gaussian_kl(leaves[1], factor, logs)
            found = (*factor_moments(leaves[0], leaves[1], factor), kl)
        loss = found[0].sin().sum() + (0.1 * found[1]).cos().sum() + 0.7 * found[2]
        results.append((*found, *torch.autograd.grad(loss, leaves)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_gradients_reach_the_mean_diagonal_that_jitter_follows():
    k_zz, k_zx, _, _ = _problem(6, 4, 1)
    jitter = 0.3
    k_zz.requires_grad_(True)

    def shifted(matrix):
        symmetric = 0.5 * (matrix + matrix.mT)
        return symmetric + jitter * symmetric.diagonal().mean() * torch.eye(6).double()

    projection = torch.linalg.solve_triangular(
        torch.linalg.cholesky(shifted(k_zz)), k_zx, upper=False
    )
    (expected,) = torch.autograd.grad(projection.sin().sum(), k_zz)
    inverse = inverse_lower(torch.linalg.cholesky(shifted(k_zz.detach())))
    ours = project(0.5 * (k_zz + k_zz.mT), k_zx, inverse, jitter)
    torch.testing.assert_close(ours, projection)
    (found,) = torch.autograd.grad(ours.sin().sum(), k_zz)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
