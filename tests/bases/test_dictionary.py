"""Kernel dictionary: columns on demand, precisions as parameters with sparse gradients."""

import pytest
import torch

from gpx.bases import KernelDictionary
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Matern32

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n, d=2, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernel", [RBF(lengthscale=0.8), Matern32(2, (0.5, 2.0), 1.4)])
def test_columns_are_kernel_functions_at_the_centres(kernel):
    centres, x = inputs(12), inputs(7, seed=1)
    basis = KernelDictionary(kernel, centres, block_size=5)
    assert (basis.num_basis, basis.block_size, basis.num_blocks) == (12, 4, 3)
    full = kernel.evaluate(x, centres)
    torch.testing.assert_close(basis(x), full)
    columns = torch.tensor([11, 3, 3, 0])
    torch.testing.assert_close(basis(x, columns), full[:, columns])
    torch.testing.assert_close(
        basis.block_features(x, torch.tensor([2, 0])), full[:, [8, 9, 10, 11, 0, 1, 2, 3]]
    )


def test_precisions_are_parameters_and_their_gradient_holds_sampled_rows_only():
    basis = KernelDictionary(RBF(), inputs(6), precision=2.5, sparse=True)
    columns = torch.tensor([4, 1])
    torch.testing.assert_close(basis.precision_diagonal(columns), torch.full((2,), 2.5))
    (basis.precision_diagonal(columns) * torch.tensor([1.0, 3.0])).sum().backward()
    gradient = basis.log_precision.grad
    assert gradient.is_sparse
    assert gradient.coalesce().values().shape[0] == 2
    torch.testing.assert_close(gradient.to_dense()[:, 0], torch.tensor([0, 7.5, 0, 0, 2.5, 0]))


def test_precisions_are_bounded_and_relevance_is_read_from_them():
    basis = KernelDictionary(RBF(), inputs(4))
    with torch.no_grad():
        basis.log_precision[:, 0] = torch.tensor([0.0, 50.0, 9.0, 9.3])
    assert float(basis.precision_diagonal()[1].detach()) == pytest.approx(1e8)
    assert basis.relevant().tolist() == [0, 2]  # log 1e4 = 9.21


@pytest.mark.parametrize("options", [{"block_size": 0}, {"precision": 0.0}, {"precision": 1e9}])
def test_bad_options_are_one_sentence(options):
    with pytest.raises(ConfigError):
        KernelDictionary(RBF(), inputs(4), **options)
    with pytest.raises(ShapeError):
        KernelDictionary(RBF(), torch.zeros(4))
