"""SKI: W K W^T against dense algebra, its gradients, and how it approaches the kernel."""

import unittest

import pytest
import torch
from draws import draw, uniform
from package_cases import SquareCase

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF
from gpx.linalg import RegularAxis
from gpx.operators import (
    BlockToeplitz,
    Interpolated,
    Interpolation,
    Kronecker,
    Toeplitz,
    interpolated,
)


def column(axis, scale=0.3):
    lags = axis.spacing * torch.arange(axis.size, dtype=torch.float64)
    return torch.exp(-0.5 * (lags / scale) ** 2)


AXIS = RegularAxis.covering(0.0, 1.0, 12)


def pieces():
    left = Interpolation.of(uniform(15, 1), [AXIS])
    right = Interpolation.of(uniform(9, 1, seed=1), [AXIS])
    base = Toeplitz(column(AXIS))
    return left, base, right


def test_square_and_rectangular_products_diagonals_and_parts(monkeypatch):
    left, base, right = pieces()
    monkeypatch.setattr(interpolated, "DIAGONAL_ENTRIES", 16 * 4)  # four entries at a time
    for operator, matrix in [
        (Interpolated(left, base), left.to_dense() @ base.to_dense() @ left.to_dense().mT),
        (Interpolated(left, base, right), left.to_dense() @ base.to_dense() @ right.to_dense().mT),
    ]:
        v, u = draw(matrix.shape[1], 2), draw(matrix.shape[0], 2)
        torch.testing.assert_close(operator @ v, matrix @ v, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(operator.mT @ u, matrix.mT @ u, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(operator.to_dense(), matrix, rtol=1e-11, atol=1e-11)
        part = operator[2:8, torch.tensor([0, 3])]
        assert isinstance(part, Interpolated)
        torch.testing.assert_close(part.to_dense(), matrix[2:8, [0, 3]], rtol=1e-11, atol=1e-11)
    square = Interpolated(left, base)
    expected = (left.to_dense() @ base.to_dense() @ left.to_dense().mT).diagonal()
    torch.testing.assert_close(square.diagonal(), expected, rtol=1e-11, atol=1e-11)


def test_gradients_to_grid_and_inputs():
    x, z = uniform(6, 1).requires_grad_(), uniform(5, 1, seed=1).requires_grad_()
    k = column(AXIS).requires_grad_()
    right, left = draw(6, 2).requires_grad_(), draw(5, 2).requires_grad_()

    def square(x, k):
        return Interpolated(Interpolation.of(x, [AXIS]), Toeplitz(k))

    def cross(x, k, z):
        return Interpolated(Interpolation.of(z, [AXIS]), Toeplitz(k), Interpolation.of(x, [AXIS]))

    check = torch.autograd.gradcheck
    assert check(lambda x, k, r: square(x, k) @ r, (x, k, right))
    assert check(lambda x, k, z, r: cross(x, k, z) @ r, (x, k, z, right))
    assert check(lambda x, k, z, r: cross(x, k, z).mT @ r, (x, k, z, left))
    assert check(lambda x, k: square(x, k).diagonal(), (x, k))


@pytest.mark.parametrize("base", ["kronecker", "block", "dense"])
def test_two_dimensions_over_any_grid_operator(base):
    axes = [RegularAxis.covering(0.0, 1.0, 8), RegularAxis.covering(0.0, 1.0, 9)]
    columns = [column(axis) for axis in axes]
    matrix = torch.kron(*(Toeplitz(k).to_dense() for k in columns))
    made = {
        "kronecker": Kronecker(*(Toeplitz(k) for k in columns)),
        "block": BlockToeplitz(torch.outer(*columns), grid=(8, 9)),
        "dense": matrix,
    }
    x = uniform(11, 2)
    weights = Interpolation.of(x, axes)
    operator = Interpolated(weights, made[base])
    expected = weights.to_dense() @ matrix @ weights.to_dense().mT
    right = draw(11, 3)
    torch.testing.assert_close(operator @ right, expected @ right, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(operator.diagonal(), expected.diagonal(), rtol=1e-11, atol=1e-11)
    # a product kernel interpolates as the elementwise product of its axes
    parts = [
        Interpolated(Interpolation.of(x[:, [d]], [axis]), Toeplitz(k)).to_dense()
        for d, (axis, k) in enumerate(zip(axes, columns, strict=True))
    ]
    torch.testing.assert_close(expected, parts[0] * parts[1], rtol=1e-11, atol=1e-11)


def test_batches_broadcast_over_one_grid():
    x = uniform(3, 7, 1)
    parts = [Interpolation.of(one, [AXIS]) for one in x]
    weights = Interpolation(
        torch.stack([p.values for p in parts]),
        torch.stack([p.indices for p in parts]),
        num_columns=12,
    )
    k = column(AXIS).requires_grad_()
    operator = Interpolated(weights, Toeplitz(k))
    dense = torch.stack([p.to_dense() @ Toeplitz(k).to_dense() @ p.to_dense().mT for p in parts])
    right = draw(7, 2)
    torch.testing.assert_close(operator @ right, dense @ right, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(operator[1].to_dense(), dense[1], rtol=1e-11, atol=1e-11)
    diagonal = dense.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(operator.diagonal(), diagonal, rtol=1e-11, atol=1e-11)
    (ours,) = torch.autograd.grad((operator @ right).square().sum(), k)
    (theirs,) = torch.autograd.grad((dense @ right).square().sum(), k)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "errors"),
    [("cubic", {50: 1.2e-5, 100: 7e-8, 200: 8e-10}), ("linear", {50: 1e-3, 100: 5e-5, 200: 3e-6})],
)
def test_it_approaches_the_kernel_as_published(method, errors):
    """Mean squared error over the variance of the entries, 1,000 inputs on [-10, 10]."""
    x = 20.0 * uniform(1000, 1) - 10.0
    kernel = RBF(1).double()
    exact = kernel.evaluate(x, x).detach()
    zero = torch.zeros(1, 1, dtype=torch.float64)
    for m, expected in errors.items():
        axis = RegularAxis.covering(-10.0, 10.0, m)
        lags = axis.spacing * torch.arange(m, dtype=torch.float64)
        k = kernel.evaluate(lags[:, None], zero).squeeze(-1).detach()
        found = Interpolated(Interpolation.of(x, [axis], method=method), Toeplitz(k)).to_dense()
        error = ((found - exact) ** 2).mean() / exact.var(correction=0)
        assert expected / 2 < float(error) < expected * 2


def test_inputs_on_the_nodes_give_the_kernel_itself():
    nodes = AXIS.points(torch.empty(0, dtype=torch.float64))[2:-2, None]
    operator = Interpolated(Interpolation.of(nodes, [AXIS]), Toeplitz(column(AXIS)))
    expected = Toeplitz(column(AXIS)).to_dense()[2:-2, 2:-2]
    torch.testing.assert_close(operator.to_dense(), expected, rtol=0, atol=1e-12)


def test_grids_must_agree():
    left, _, right = pieces()
    with pytest.raises(ShapeError, match="12 and 12"):
        Interpolated(left, Toeplitz(draw(11)), right)


class TestPackageCase(SquareCase, unittest.TestCase):
    """linear_operator's own conformance test, W of full rank."""

    seed = 3
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        place = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]])
        values = torch.tensor([[1.0, 0.1], [0.9, 0.3], [1.2, 0.2], [0.7, 0.4], [1.1, 0.3]])
        weights = Interpolation(values.requires_grad_(), place, num_columns=6)
        return Interpolated(weights, Toeplitz(torch.tensor([4.0, 0.5, 0.2, 1.0, -0.3, 0.1])))

    def evaluate_linear_op(self, linear_op):
        left = linear_op.left
        weights = left.values.new_zeros(5, 6).scatter_add(1, left.indices, left.values)
        k = linear_op.base.column[(torch.arange(6)[:, None] - torch.arange(6)).abs()]
        return weights @ k @ weights.mT


def test_no_inputs_have_an_empty_diagonal():
    none = Interpolation(
        torch.ones(0, 2, dtype=torch.float64), torch.zeros(0, 2, dtype=torch.long), num_columns=4
    )
    column = torch.tensor([2.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert Interpolated(none, Toeplitz(column)).diagonal().shape == (0,)


def test_samples_are_those_of_a_tensor_and_of_a_block_of_rows_and_columns():
    """A tensor becomes an operator of linear_operator, whose own draws take no generator."""
    left, base, _ = pieces()
    dense, generator = base.to_dense() + 0.1 * torch.eye(12, dtype=torch.float64), torch.Generator()
    whole = Interpolated(left, dense)
    normals = torch.randn(12, 4, generator=generator.manual_seed(0), dtype=torch.float64)
    want = (left.to_dense() @ torch.linalg.cholesky(dense) @ normals).mT
    found = whole.zero_mean_mvn_samples(4, generator.manual_seed(0))
    torch.testing.assert_close(found, want)
    block = whole[2:5, 2:5]
    found = block.zero_mean_mvn_samples(4, generator.manual_seed(0))
    torch.testing.assert_close(found, want[:, 2:5])
    torch.testing.assert_close(block.to_dense(), whole.to_dense()[2:5, 2:5])
    with pytest.raises(ShapeError, match="with one W"):
        whole[2:5, 3:6].zero_mean_mvn_samples(4)
    large = Interpolation(left.values, left.indices, num_columns=2001)
    with pytest.raises(ConfigError, match="of 2,001 rows would take a dense root"):
        Interpolated(large, torch.eye(2001, dtype=torch.float64)).zero_mean_mvn_samples(4)
