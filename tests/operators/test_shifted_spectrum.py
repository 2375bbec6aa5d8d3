"""The preconditioner of a Kronecker product plus noise, and estimates that rest on it."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpx.errors import ConfigError, ShapeError
from gpx.linalg import inv_quad_logdet
from gpx.operators import (
    BlockToeplitz,
    Kronecker,
    KroneckerPlusDiagonal,
    dense_factorisations,
    grid_lags,
)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def grid_matrix(n=12, noise=None):
    x = torch.linspace(0.0, 4.0, n, dtype=torch.float64)
    smooth = torch.exp(-0.5 * (x[:, None] - x) ** 2)
    rough = torch.exp(-(x[:, None] - x).abs())
    noise = 0.05 + 0.3 * draw(n * n).abs() if noise is None else noise
    return KroneckerPlusDiagonal(Kronecker(smooth, rough), noise)


def test_it_is_the_matrix_with_the_mean_noise():
    noise = 0.05 + 0.3 * draw(12).abs()
    q = grid_matrix(3).__class__(grid_matrix(3).kronecker, noise[:9]).preconditioner()
    mean = noise[:9].log().mean().exp()
    dense = grid_matrix(3).kronecker.to_dense() + mean * torch.eye(9, dtype=torch.float64)
    eye, v = torch.eye(9, dtype=torch.float64), draw(9)
    torch.testing.assert_close(q.matmul(eye), dense)
    torch.testing.assert_close(q.solve(v), torch.linalg.solve(dense, v))
    torch.testing.assert_close(q.logdet(), torch.logdet(dense))
    root = q.root_matmul(eye)
    torch.testing.assert_close(root @ root.mT, dense)
    torch.testing.assert_close(q.inverse_root_matmul(root), eye)
    torch.testing.assert_close(
        q.inverse_root_matmul(v, transpose=True), torch.linalg.solve(root.mT, v)
    )


def test_a_root_costs_one_kronecker_product():
    q = grid_matrix(8).preconditioner()
    with FlopCounterMode(display=False) as counter:
        q.root_matmul(draw(64, 5))
    assert counter.get_total_flops() == 2 * 5 * 64 * 16


@pytest.mark.parametrize("kind", ["kronecker", "block toeplitz"])
def test_log_determinants_beyond_dense_sizes_come_with_an_error_bar(kind, monkeypatch):
    if kind == "kronecker":
        leaf = (0.05 + 0.3 * draw(144).abs()).requires_grad_()
        operator = grid_matrix(noise=leaf)
    else:
        lags = grid_lags(torch.full((2,), 0.4, dtype=torch.float64), (12, 12), even=True)
        leaf = torch.exp(-lags.norm(dim=-1))
        leaf[0, 0] += 0.1
        leaf = leaf.requires_grad_()
        operator = BlockToeplitz(leaf, grid=(12, 12))
    dense = operator.to_dense()
    right = draw(144, 1)
    expected = torch.logdet(dense)
    (exact_gradient,) = torch.autograd.grad(expected, leaf)
    dense, expected = dense.detach(), expected.detach()
    monkeypatch.setattr(dense_factorisations, "DENSE_ROWS", 100)
    with pytest.raises(ConfigError, match=r"inv_quad_logdet\(.*operator\.preconditioner\(\)"):
        operator.logdet()
    found = inv_quad_logdet(
        operator,
        right,
        method="iterative",
        preconditioner=operator.preconditioner(),
        probes=200,
        generator=torch.Generator().manual_seed(0),
    )
    error = float(found.logdet_error)
    assert 0.0 < error < 2.0
    assert abs(float(found.logdet.detach() - expected)) <= 4.0 * error + 1e-6
    assert found.report.converged
    quad = (right * torch.linalg.solve(dense, right)).sum()
    torch.testing.assert_close(found.inv_quad.detach(), quad, rtol=1e-2, atol=0)
    (gradient,) = torch.autograd.grad(found.logdet, leaf)
    # 200 probes: relative error of the gradient as a vector well below one
    assert (gradient - exact_gradient).norm() <= 0.25 * exact_gradient.norm()


def test_only_single_even_matrices_have_one():
    with pytest.raises(ShapeError, match="one matrix"):
        KroneckerPlusDiagonal(Kronecker(torch.eye(2)), torch.ones(3, 1)).preconditioner()
    with pytest.raises(ShapeError, match="even lags"):
        BlockToeplitz(draw(3, 5), grid=(2, 3)).preconditioner()
