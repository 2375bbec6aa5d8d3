"""Mean-field weights: closed-form scales against the paper's formula, free ones as they are set."""

import pytest
import torch

from gpx.errors import ConfigError
from gpx.methods.weight_space.mean_field import MeanFieldWeights


def uniform(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 0.2 + torch.rand(*shape, generator=generator, dtype=torch.float64)


def test_closed_form_scales_are_the_optimum_of_the_bound():
    blocks = torch.tensor([3, 1])
    squares, precision = 40.0 * uniform(4, 5), uniform(2, 5, seed=1)  # phi_r^T phi_r and s_r
    expected, noise = torch.tensor(30.0).double(), torch.tensor(0.3).double()
    family = MeanFieldWeights(4, 5).double()
    family.set_scales(torch.zeros(4, 5), squares / expected)
    leaves = [t.requires_grad_(True) for t in (expected, precision, noise)]
    found = family.log_scale_of(blocks, column_square=expected, precision=precision, noise=noise)
    # the bound as a function of one scale c: log c - c^2 (phi^T phi / noise + s) / 2
    scale = found.exp().clone().requires_grad_(True)
    curvature = squares[blocks] / noise.detach() + precision.detach()
    (slope,) = torch.autograd.grad((scale.log() - 0.5 * scale**2 * curvature).sum(), scale)
    torch.testing.assert_close(
        slope * scale.detach(), torch.zeros(2, 5).double(), rtol=0, atol=1e-13
    )
    # at the optimum the scales carry no gradient (envelope theorem), whatever asks for one
    assert not found.requires_grad
    assert all(leaf.requires_grad for leaf in leaves)


def test_free_scales_are_parameters_of_which_a_step_sees_its_rows():
    family = MeanFieldWeights(4, 3, "free").double()
    start = uniform(4, 3).log()
    family.set_scales(start, torch.ones(4, 3))
    blocks = torch.tensor([2, 0])
    unused = {
        "column_square": torch.ones(()),
        "precision": torch.ones(2, 3),
        "noise": torch.ones(()),
    }
    found = family.log_scale_of(blocks, sparse=True, **unused)
    assert torch.equal(found, start[blocks])
    found.sum().backward()
    gradient = family.log_scale.grad.coalesce()
    assert gradient.indices()[0].tolist() == [0, 2]
    assert torch.equal(gradient.values(), torch.ones(2, 3).double())
    assert len(list(family.parameters())) == 2


def test_counts_and_shapes():
    closed = MeanFieldWeights(4, 3)
    assert [p.shape for p in closed.parameters()] == [(4, 3)]
    blocks = torch.tensor([1, 3])
    assert closed.is_diagonal_column(blocks).all()
    assert closed.dense_of(blocks).shape == (2, 3, 0)
    assert closed.log_dense_diagonal().shape == (0,)
    with pytest.raises(ConfigError, match="diagonal=both: expected one of free, closed_form"):
        MeanFieldWeights(4, 3, "both")
