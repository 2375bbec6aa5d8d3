"""Data as few rows as their features have rank: they say the same of every prior of the weights."""

import math

import pytest
import torch
from linear_features import draw, features_and_targets, log_density

from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.compressed_statistics import CompressedStatistics


def statistics(phi, y):
    return SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, len(y))


@pytest.mark.parametrize(
    ("n", "m", "rank"), [(40, 7, None), (12, 30, None), (30, 30, None), (40, 20, 6)]
)
def test_few_rows_have_the_evidence_of_all_under_any_prior(n, m, rank):
    phi, y = features_and_targets(n, m, rank)
    found = CompressedStatistics(statistics(phi, y))
    assert found.rank == (rank or min(n, m))
    assert (found.num_data, found.num_basis) == (n, m)
    root, noise = draw(m, m, seed=7), 0.3
    prior = root @ root.mT
    whole = log_density(y, phi @ prior @ phi.mT + noise * torch.eye(n, dtype=torch.float64))
    b = found.values.sqrt()[:, None] * found.vectors.mT
    inner = b @ prior @ b.mT + noise * torch.eye(found.rank, dtype=torch.float64)
    left = (n - found.rank) * math.log(2.0 * math.pi * noise) + found.rest / noise
    torch.testing.assert_close(
        log_density(found.targets, inner) - 0.5 * left, whole, rtol=1e-9, atol=0
    )


def test_rest_is_what_no_function_reaches():
    phi, y = features_and_targets(40, 7)
    found = CompressedStatistics(statistics(phi, y))
    residual = y - phi @ torch.linalg.lstsq(phi, y[:, None]).solution[:, 0]
    torch.testing.assert_close(found.rest, residual.square().sum())
    inside = CompressedStatistics(statistics(phi, phi @ draw(7, seed=8)))
    assert 0.0 <= float(inside.rest) < 1e-10


def test_axes_that_are_given_are_kept():
    """In their order and with their signs, from statistics of which they are eigenvectors."""
    sums = statistics(*features_and_targets(40, 7))
    plain = CompressedStatistics(sums)
    order = torch.tensor([3, 0, 6, 1, 2, 5, 4])
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    found = CompressedStatistics(sums, plain.vectors[:, order] * signs)
    torch.testing.assert_close(found.values, plain.values[order])
    torch.testing.assert_close(found.targets, plain.targets[order] * signs)
    torch.testing.assert_close(found.rest, plain.rest)
