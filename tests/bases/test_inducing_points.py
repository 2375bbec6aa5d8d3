"""Kernel functions at inducing points: the prior of the kernel itself, in blocks on demand."""

import pytest
import torch

from gpx.bases import InducingPoints
from gpx.errors import ConfigError
from gpx.kernels import Constant, Matern32


def test_basis_has_no_diagonal_precision_but_any_block_of_the_dense_one():
    x = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    basis = InducingPoints(Matern32(2).double(), x)
    k = basis.kernel.evaluate(x).detach()
    rows, columns = torch.tensor([3, 0]), torch.tensor([8, 8, 1])
    torch.testing.assert_close(basis.precision(rows, columns).detach(), k[rows][:, columns])
    torch.testing.assert_close(basis(x, columns).detach(), k[:, columns])
    torch.testing.assert_close(basis.column_squares(x, chunk=4), k.square().sum(0))
    with pytest.raises(ConfigError, match="dense prior precision"):
        basis.precision_diagonal()


def test_the_prior_over_the_centres_is_that_of_the_kernel():
    """Phi S^-1 Phi^T = K at the centres: nothing of the kernel is lost there."""
    centres = torch.linspace(-2.0, 2.0, 8, dtype=torch.float64)[:, None]
    basis = InducingPoints(Matern32(1).double(), centres)
    with torch.no_grad():
        phi, kernel = basis(centres), basis.kernel.evaluate(centres)
        found = phi @ torch.linalg.solve(basis.precision(), phi.mT)
    torch.testing.assert_close(found, kernel)
    with pytest.raises(ConfigError, match="at least one centre"):
        InducingPoints(Matern32(1), centres[:0])


def test_column_squares_of_a_kernel_whose_values_share_memory():
    x = torch.linspace(0.0, 1.0, 7, dtype=torch.float64)[:, None]
    basis = InducingPoints(Constant(3.0).double(), x[:2])
    torch.testing.assert_close(basis.column_squares(x, chunk=4), torch.full_like(x[:2, 0], 63.0))
