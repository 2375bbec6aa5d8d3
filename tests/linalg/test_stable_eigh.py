"""Eigendecomposition with a finite gradient."""

import torch
from draws import draw

from gpx.linalg.stable_eigh import stable_eigh


def test_values_descend_and_rebuild_the_matrix():
    a = draw(3, 5, 5)
    a = a @ a.mT
    values, vectors = stable_eigh(a)
    assert (values.diff(dim=-1) < 0).all()
    torch.testing.assert_close(vectors * values.unsqueeze(-2) @ vectors.mT, a)
    assert (vectors.sum(-2) > 0).all()


def test_gradcheck_of_signed_eigenvectors():
    root = draw(2, 4, 4, seed=1).requires_grad_()

    def function(r):
        values, vectors = stable_eigh(r @ r.mT)
        return values.log(), vectors[..., :2]

    assert torch.autograd.gradcheck(function, root)


def test_coinciding_eigenvalues_leave_the_gradient_finite_and_right():
    # a projection on a degenerate eigenspace does not depend on the basis of that space
    basis, _ = torch.linalg.qr(draw(4, 4, seed=2))
    matrix = (basis * torch.tensor([3.0, 1.0, 1.0, 0.0]).double()) @ basis.mT
    matrix = matrix.requires_grad_()
    weight = draw(4, 4, seed=3)

    def project(a):
        _, vectors = stable_eigh(0.5 * (a + a.mT))
        return (vectors[:, 1:3] @ vectors[:, 1:3].mT * weight).sum()

    (found,) = torch.autograd.grad(project(matrix), matrix)
    assert torch.isfinite(found).all()
    direction = draw(4, 4, seed=4)
    step = 1e-6
    with torch.no_grad():
        slope = (project(matrix + step * direction) - project(matrix - step * direction)) / (
            2 * step
        )
    torch.testing.assert_close((found * direction).sum(), slope, rtol=1e-5, atol=1e-6)


def test_close_but_distinct_eigenvalues_have_the_exact_gradient():
    basis, _ = torch.linalg.qr(draw(4, 4, seed=2))
    spectrum = torch.tensor([1.0, 1.0 - 1e-5, 0.4, 1e-4]).double()
    matrix, weight = (basis * spectrum) @ basis.mT, draw(4, 4, seed=3)

    def gradient(decompose):
        leaf = matrix.clone().requires_grad_()
        values, vectors = decompose(0.5 * (leaf + leaf.mT))
        order = values.argsort(descending=True)
        return torch.autograd.grad((vectors[:, order].square() * weight).sum(), leaf)[0]

    torch.testing.assert_close(
        gradient(stable_eigh), gradient(torch.linalg.eigh), rtol=1e-8, atol=1e-6
    )


def test_a_multiple_of_the_identity_has_no_nan():
    matrix = torch.eye(3, dtype=torch.float64).requires_grad_()
    values, vectors = stable_eigh(matrix)
    (found,) = torch.autograd.grad((values.sum() + vectors.square().sum()), matrix)
    torch.testing.assert_close(found, torch.eye(3, dtype=torch.float64))
