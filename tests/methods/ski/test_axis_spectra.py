"""Eigenvectors of axes, and products and gradients through the few that matter."""

import pytest
import torch

from gpx.kernels import RBF
from gpx.methods.ski.axis_spectra import AxisSpectra, parities, symmetric_eigh
from gpx.operators import Kronecker


def uneven(m):
    points = torch.linspace(0.0, 10.0, m, dtype=torch.float64).unsqueeze(1)
    points = points + 0.02 * points.square()
    with torch.no_grad():
        return RBF(1, 1.0, 1.3).double().evaluate(points, points)


def toeplitz(m, lengthscale, profile=lambda r: torch.exp(-0.5 * r.square())):
    place = torch.arange(m)
    column = profile(place.double() * (10.0 / m) / lengthscale)
    return column[(place.unsqueeze(1) - place).abs()]


@pytest.mark.parametrize("m", [1, 2, 5, 8, 41])
@pytest.mark.parametrize("regular", [True, False])
def test_eigenvectors_of_a_symmetric_matrix(m, regular):
    matrix = toeplitz(m, 1.0) if regular else uneven(m)
    values, vectors = symmetric_eigh(matrix)
    eye = torch.eye(m, dtype=torch.float64)
    assert bool((values.diff() <= 0.0).all())
    assert torch.allclose(vectors.mT @ vectors, eye, rtol=0.0, atol=1e-13)
    assert torch.allclose((vectors * values) @ vectors.mT, matrix, rtol=0.0, atol=1e-13)


def test_equidistant_points_have_eigenvectors_with_parities():
    _, vectors = symmetric_eigh(toeplitz(9, 1.0))
    assert sorted(parities(vectors).tolist()) == [-1] * 4 + [1] * 5
    assert parities(symmetric_eigh(uneven(9))[1]) is None


@pytest.mark.parametrize("sizes", [(60,), (50, 61), (36, 30, 32)])
def test_products_and_gradients_through_few_eigenvectors(sizes):
    axes = [toeplitz(m, 3.0 + i) for i, m in enumerate(sizes)]
    spectra = AxisSpectra.of(axes)
    assert spectra.narrow
    dense = Kronecker(*[a.requires_grad_() for a in axes])
    generator = torch.Generator().manual_seed(0)
    size = dense.shape[0]
    left, right = torch.randn(2, size, 3, generator=generator, dtype=torch.float64)
    wanted = dense.matmul(right)
    found = spectra.matmul(right)
    assert torch.allclose(found, wanted, rtol=0.0, atol=1e-12 * float(wanted.detach().abs().max()))
    slopes = torch.autograd.grad((left * wanted).sum(), axes)
    for ours, theirs in zip(spectra.gradients(left, right), slopes, strict=True):
        assert torch.allclose(ours, theirs, rtol=0.0, atol=1e-12 * float(theirs.abs().max()))


def test_a_rough_kernel_keeps_the_dense_products():
    assert not AxisSpectra.of([toeplitz(30, 1.0, lambda r: torch.exp(-r))]).narrow
