"""Families over weights: parameter counts, masks, options."""

import pytest
import torch

from gpx.errors import ConfigError
from gpx.methods.weight_space.chevron import ChevronWeights
from gpx.methods.weight_space.mean_field import MeanFieldWeights


@pytest.mark.parametrize("k", [1, 3, 12])
def test_parameter_counts(k):
    # 2.20: K m - K (K - 1) / 2 + (m - K) numbers in C, m in the mean
    m = 12
    assert ChevronWeights(3, 4, k, "free").num_free == m + k * m - k * (k - 1) // 2 + m - k
    assert ChevronWeights(3, 4, k, "closed_form").num_free == m + k * m - k * (k - 1) // 2
    assert MeanFieldWeights(3, 4, "free").num_free == 2 * m
    assert MeanFieldWeights(3, 4, "closed_form").num_free == m


def test_factor_is_lower_triangular_with_positive_diagonal():
    family = ChevronWeights(3, 4, 5)
    with torch.no_grad():
        family.dense.normal_(generator=torch.Generator().manual_seed(0))
        family.log_dense.fill_(-0.5)
    dense = family.dense_of(torch.arange(3)).reshape(12, 5)
    assert torch.equal(dense, torch.tril(dense))
    torch.testing.assert_close(dense.diagonal(), torch.full((5,), -0.5).exp())
    assert int((dense != 0).sum()) == 5 * 12 - 10
    swapped = family.dense_of(torch.tensor([1, 0]))
    assert torch.equal(swapped[0], dense[4:8])
    assert (
        family.is_diagonal_column(torch.arange(3)).reshape(-1).tolist() == [False] * 5 + [True] * 7
    )


def test_masked_entries_have_no_gradient():
    family = ChevronWeights(2, 2, 2)
    family.dense_of(torch.arange(2)).square().sum().backward()
    assert family.dense.grad is not None
    with torch.no_grad():
        family.dense.normal_(generator=torch.Generator().manual_seed(0))
    family.dense.grad = None
    family.dense_of(torch.arange(2)).sum().backward()
    grad = family.dense.grad.view(4, 2)
    assert torch.equal(grad, torch.tril(torch.ones(4, 2), -1))


def test_errors():
    with pytest.raises(ConfigError, match="num_dense=13"):
        ChevronWeights(3, 4, 13)
    with pytest.raises(ConfigError, match="closed_form"):
        MeanFieldWeights(3, 4, "best")
