"""The sparse factor of a prior of nearest-neighbour values, and the preconditioner made of it."""

import pytest
import torch
from draws import draws

from gpx.methods.nearest.triangular_prior import TriangularFactor, UpdatedPrior

NUM, COUNT = 12, 3


def given():
    """Neighbours and weights (m, k) of values in a random order, and I - B dense."""
    generator = draws()
    order = torch.randperm(NUM, generator=generator)
    near = torch.zeros(NUM, COUNT, dtype=torch.long)
    weights = torch.zeros(NUM, COUNT).double()
    for place in range(1, NUM):
        count = min(place, COUNT)
        chosen = order[torch.randperm(place, generator=generator)[:count]]
        near[order[place], :count] = chosen
        weights[order[place], :count] = torch.randn(count, generator=generator).double()
    dense = torch.eye(NUM).double().scatter_add_(1, near, -weights)
    return near, weights, dense


@pytest.mark.parametrize("shape", [(NUM,), (NUM, 2)])
@pytest.mark.parametrize("transpose", [False, True])
def test_the_factor_is_that_of_the_dense_matrix(shape, transpose):
    near, weights, dense = given()
    factor, vectors = TriangularFactor(near, weights), torch.randn(shape, generator=draws(1))
    vectors, matrix = vectors.double(), dense.mT if transpose else dense
    torch.testing.assert_close(factor.matmul(vectors, transpose=transpose), matrix @ vectors)
    found = factor.solve(vectors, transpose=transpose)
    torch.testing.assert_close(matrix @ found, vectors, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("shape", [(NUM,), (NUM, 2)])
def test_the_preconditioner_is_a_positive_matrix_and_its_root(shape):
    near, weights, dense = given()
    diagonal = torch.rand(NUM, generator=draws(2)).double() + 0.1
    made = UpdatedPrior(TriangularFactor(near, weights), diagonal)
    whole = dense.mT @ (diagonal.unsqueeze(1) * dense)
    root = dense.mT * diagonal.sqrt()
    vectors = torch.randn(shape, generator=draws(1)).double()
    torch.testing.assert_close(made.matmul(vectors), whole @ vectors)
    torch.testing.assert_close(whole @ made.solve(vectors), vectors, rtol=0.0, atol=1e-8)
    torch.testing.assert_close(made.logdet(), whole.logdet())
    torch.testing.assert_close(made.root_matmul(vectors), root @ vectors)
    for transpose in (False, True):
        found = made.inverse_root_matmul(vectors, transpose=transpose)
        back = (root.mT if transpose else root) @ found
        torch.testing.assert_close(back, vectors, rtol=0.0, atol=1e-8)


def test_values_in_a_circle_are_refused():
    near = torch.tensor([[1], [0]])
    with pytest.raises(ValueError, match="depend on each other in a circle"):
        TriangularFactor(near, torch.ones(2, 1).double())
