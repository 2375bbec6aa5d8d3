"""Orthogonal frequencies: directions, lengths, and the Walsh-Hadamard matrix behind them."""

import math

import pytest
import torch

from gpx.bases import OrthogonalFourier
from gpx.bases.fourier.orthogonal_features import hadamard_rows, hadamard_transform, random_signs
from gpx.kernels import RBF

pytestmark = pytest.mark.usefixtures("float64_by_default")


def test_directions_of_a_group_are_orthogonal_with_chi_lengths():
    kernel = RBF(3, 1.0, 1.0)
    basis = OrthogonalFourier(kernel, 6000, 0)
    omega = basis.frequencies(torch.arange(3000), 3, torch.float64).detach().view(1000, 3, 3)
    gram = omega @ omega.mT
    off = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < 1e-12
    # squared lengths are chi-square with 3 degrees of freedom: mean 3, variance 6
    squares = gram.diagonal(dim1=1, dim2=2)
    assert float((squares.mean() - 3.0).abs()) < 5 * math.sqrt(6 / 3000)
    assert float((squares.var() - 6.0).abs()) < 1.0


def test_hadamard_rows_signs_and_transform():
    rows = hadamard_rows(torch.arange(8), 8)
    torch.testing.assert_close(rows @ rows.T, 8 * torch.eye(8))
    v = torch.randn(5, 8)
    torch.testing.assert_close(hadamard_transform(v), v @ rows)
    signs = random_signs(7, torch.arange(4000), 3, 5)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    flat = signs.view(4000, -1)
    correlation = flat.T @ flat / 4000 - torch.eye(15)
    assert float(correlation.abs().max()) < 5 / math.sqrt(4000)
