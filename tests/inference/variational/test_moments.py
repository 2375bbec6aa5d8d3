import pytest
import torch

from gpx.inference.variational.moments import factor_terms, gaussian_kl, project
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
        0.3 * normal(latents, size, size),
    )


def _reference(k_zz, k_zx, mean, raw):
    projection = torch.linalg.solve_triangular(torch.linalg.cholesky(k_zz), k_zx, upper=False)
    logs = raw.diagonal(dim1=-2, dim2=-1)
    factor = raw.tril(-1) + torch.diag_embed(logs.exp())
    excess = factor @ factor.mT - torch.eye(len(k_zz), dtype=k_zz.dtype)
    variance = torch.einsum("mb,pmk,kb->pb", projection, excess, projection)
    return mean @ projection, variance, gaussian_kl(mean, factor, logs)


def _ours(k_zz, k_zx, mean, raw):
    with torch.no_grad():
        inverse = inverse_lower(torch.linalg.cholesky(k_zz))
    return factor_terms(project(k_zz, k_zx, inverse), mean, raw)


# 300 rows are cut into panels (with a ragged last one), 12 are not
@pytest.mark.parametrize("size", [12, 300])
@pytest.mark.parametrize("latents", [1, 3])
def test_values_and_gradients_equal_those_of_automatic_differentiation(size, latents):
    parts = _problem(size, 40, latents)
    results = []
    for function in (_reference, _ours):
        leaves = [part.clone().requires_grad_(True) for part in parts]
        k_zz, k_zx, mean, raw = leaves
        # symmetrised outside, so that both gradients are with respect to the same thing
        terms = function(0.5 * (k_zz + k_zz.mT), k_zx, mean, raw)
        loss = terms[0].sin().sum() + (0.1 * terms[1]).cos().sum() + 0.7 * terms[2]
        results.append((*terms, *torch.autograd.grad(loss, leaves)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("latents", [1, 2])
def test_gradcheck(latents):
    leaves = [t.requires_grad_(True) for t in _problem(5, 4, latents)]
    assert torch.autograd.gradcheck(lambda a, *rest: _ours(0.5 * (a + a.mT), *rest), leaves)


def test_frozen_parts_get_no_gradient_and_do_not_disturb_the_others():
    k_zz, k_zx, mean, factor = _problem(9, 6, 1)
    moving = mean.clone().requires_grad_(True)
    mean_of_f, excess, _ = _ours(k_zz, k_zx, moving, factor)
    (mean_of_f.sum() + excess.sum()).backward()
    projection = torch.linalg.solve_triangular(torch.linalg.cholesky(k_zz), k_zx, upper=False)
    torch.testing.assert_close(moving.grad[0], projection.sum(1))


def test_wider_factorisation_dtype():
    k_zz, k_zx, mean, factor = _problem(20, 6, 1)
    k_zz.requires_grad_(True)
    narrow = [t.float().requires_grad_(True) for t in (k_zx, mean, factor)]
    inverse = inverse_lower(torch.linalg.cholesky(k_zz.detach())).float()
    moments = factor_terms(project(k_zz, narrow[0], inverse), *narrow[1:])
    (moments[0].sum() + moments[1].sum()).backward()
    assert k_zz.grad.dtype == torch.float64
    assert all(t.grad.dtype == torch.float32 for t in narrow)
    exact = _reference(k_zz, k_zx, mean, factor)
    torch.testing.assert_close(moments[1].double(), exact[1], rtol=1e-4, atol=1e-3)


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
