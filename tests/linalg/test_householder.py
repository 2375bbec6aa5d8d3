"""Products of reflections: orthogonal, equal to the loop, differentiable, any rotation."""

import pytest
import torch
from draws import draw
from linear_features import reflectors_of

from gpx.linalg import householder
from gpx.linalg.householder import reflect


def loop(reflectors, vector):
    """One reflection after the other, by the definition."""
    for i, row in enumerate(reflectors):
        v = torch.cat([torch.zeros_like(row[:i]), row[i:]])
        squared = v @ v
        if float(squared) > 0.0:
            vector = vector - 2.0 * v * (v @ vector) / squared
    return vector


@pytest.mark.parametrize(("k", "m"), [(1, 1), (5, 9), (40, 40), (70, 75)])
def test_blocks_equal_the_loop(k, m):
    reflectors, vector = draw(k, m), draw(m, seed=1)
    reflectors[k // 2] = 0.0
    got = reflect(reflectors, vector)
    torch.testing.assert_close(got, loop(reflectors, vector), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(got.norm(), vector.norm(), rtol=1e-12, atol=0)


def test_the_product_is_orthogonal():
    reflectors = draw(40, 40)
    columns = torch.stack([reflect(reflectors, e) for e in torch.eye(40, dtype=torch.float64)])
    identity = torch.eye(40, dtype=torch.float64)
    torch.testing.assert_close(columns @ columns.mT, identity, rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", [1, 3, 32])
def test_gradient(monkeypatch, block):
    monkeypatch.setattr(householder, "BLOCK", block)
    reflectors, vector = draw(7, 8).requires_grad_(), draw(8, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(reflect, (reflectors, vector))


@pytest.mark.parametrize("m", [1, 6, 50])
def test_any_rotation_up_to_signs(m):
    rotation, _ = torch.linalg.qr(draw(m, m))
    vector = draw(m, seed=1)
    got = reflect(reflectors_of(rotation), vector)
    torch.testing.assert_close(got.abs(), (rotation.mT @ vector).abs(), rtol=1e-10, atol=1e-10)


def test_no_rotation_and_no_rows():
    vector = draw(5)
    identity = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(reflect(reflectors_of(identity), vector), vector)
    torch.testing.assert_close(reflect(vector.new_zeros(0, 5), vector), vector)
