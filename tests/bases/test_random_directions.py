"""Rows with tied directions: their matrices, written out densely, and the Hadamard transform."""

import math

import pytest
import torch

from gpx.bases.counter_random import standard_normals
from gpx.bases.random_directions import (
    DIAGONAL_STREAM,
    ROWS,
    hadamard_rows,
    hadamard_transform,
    random_permutations,
    random_signs,
)

pytestmark = pytest.mark.usefixtures("float64_by_default")


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
    torch.testing.assert_close(hadamard_transform(hadamard_transform(v)), 8 * v)


@pytest.mark.parametrize("levels", [6, 2])
@pytest.mark.parametrize("size", [1, 2, 16, 32, 64, 128, 512])
def test_the_transform_is_the_dense_product_at_every_size(monkeypatch, size, levels):
    """In one product and in several, of equal factors and of others."""
    monkeypatch.setattr("gpx.bases.random_directions.LEVELS", levels)
    v = torch.randn(3, size, requires_grad=True)
    dense = v @ hadamard_rows(torch.arange(size), size)
    found = hadamard_transform(v)
    torch.testing.assert_close(found, dense, rtol=1e-12, atol=1e-12)
    weights = torch.randn(3, size)
    (own,) = torch.autograd.grad((found * weights).sum(), v)
    torch.testing.assert_close(own, hadamard_transform(weights), rtol=1e-12, atol=1e-12)
    assert hadamard_transform(torch.empty(0, size)).shape == (0, size)


def test_permutations_are_permutations_of_every_kind():
    found = random_permutations(3, torch.arange(3000), 5)
    assert torch.equal(found.sort(1).values, torch.arange(5).expand(3000, 5))
    # every element in every place: standard error of a share of 1/5
    share = (found[:, :, None] == torch.arange(5)).double().mean(0)
    assert float((share - 0.2).abs().max()) < 5 * math.sqrt(0.16 / 3000)
    assert torch.equal(random_permutations(3, torch.tensor([7]), 5)[0], found[7])


@pytest.mark.parametrize("name", sorted(ROWS))
def test_any_rows_alone(name):
    whole = ROWS[name](5, torch.arange(24), 6)
    some = torch.tensor([17, 3, 3, 9])
    torch.testing.assert_close(ROWS[name](5, some, 6), whole[some], rtol=0, atol=1e-14)
    assert not torch.equal(ROWS[name](6, some, 6), whole[some])


def test_structured_rows_of_a_group_are_orthogonal():
    rows = ROWS["structured"](1, torch.arange(16), 8).view(2, 8, 8)
    unit = rows / rows.norm(dim=2, keepdim=True)
    torch.testing.assert_close(unit @ unit.mT, torch.eye(8).expand(2, 8, 8), rtol=0, atol=1e-14)


def test_fastfood_is_its_product_of_matrices():
    seed, group, size = 11, torch.tensor([2]), 8
    hadamard = hadamard_rows(torch.arange(size), size)
    g = standard_normals(seed ^ (DIAGONAL_STREAM << 32), group, size)[0]
    permutation = torch.eye(size)[:, random_permutations(seed, group, size)[0]]
    signs = random_signs(seed, group, 1, size)[0, 0]
    indices = 2 * size + torch.arange(size)
    lengths = standard_normals(seed, indices, size).norm(dim=1) / (math.sqrt(size) * g.norm())
    dense = torch.diag(lengths) @ hadamard @ torch.diag(g) @ permutation
    dense = dense @ hadamard @ torch.diag(signs)
    torch.testing.assert_close(ROWS["fastfood"](seed, indices, size), dense)


@pytest.mark.parametrize("name", ["independent", "orthogonal", "fastfood"])
def test_rows_are_standard_normals(name):
    rows = ROWS[name](0, torch.arange(8000), 4)
    # of rows that are tied in fours: five standard errors as if a quarter of them were independent
    error = 5 / math.sqrt(2000)
    assert float(rows.mean(0).abs().max()) < error
    moment = rows.T @ rows / 8000 - torch.eye(4)
    assert float(moment.abs().max()) < math.sqrt(2.0) * error
    assert float((rows.pow(4).mean(0) - 3.0).abs().max()) < math.sqrt(96.0) * error
