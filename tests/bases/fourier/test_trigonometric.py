"""Cosines and sines in one buffer: values, layout and gradients, compiled and in slabs."""

import pytest
import torch

from gpx.bases.fourier import trigonometric
from gpx.bases.fourier.trigonometric import trigonometric_features


def problem(n, d=2, blocks=3, per_block=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    frequencies = torch.randn(blocks, per_block, d, generator=generator, dtype=torch.float64)
    return x, frequencies, torch.tensor(0.7, dtype=torch.float64)


def plain(x, frequencies, scale):
    angles = torch.einsum("nd,lfd->nlf", x, frequencies)
    return scale * torch.cat([angles.cos(), angles.sin()], 2).flatten(1)


@pytest.mark.parametrize("slab", [1, 2**18])
@pytest.mark.parametrize("worth", [0, 2**60])
def test_features_are_the_cosines_then_the_sines_of_every_block(monkeypatch, slab, worth):
    monkeypatch.setattr(trigonometric, "SLAB_ANGLES", slab)
    monkeypatch.setattr(trigonometric, "MIN_COMPILED_ANGLES", worth)
    found = trigonometric_features(*problem(9))
    torch.testing.assert_close(found, plain(*problem(9)), rtol=0, atol=1e-14)
    assert found.mT.is_contiguous()
    assert trigonometric_features(*problem(0)).shape == (0, 24)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_gradients_of_inputs_frequencies_and_scale(n):
    arguments = [t.requires_grad_() for t in problem(n)]
    torch.autograd.gradcheck(trigonometric_features, arguments)
    for index in range(3):  # each alone: nothing else is computed for it
        alone = list(problem(n))
        alone[index].requires_grad_()
        torch.autograd.gradcheck(trigonometric_features, alone)
