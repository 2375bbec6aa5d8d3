"""Orthogonal frequencies: directions and lengths."""

import math

import pytest
import torch

from gpx.bases import OrthogonalFourier
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
