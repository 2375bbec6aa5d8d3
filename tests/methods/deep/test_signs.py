"""Frequencies by Hadamard matrices: dense products, lengths, deviations and their penalty."""

import pytest
import torch
from draws import draws

from gpx.bases.random_directions import hadamard_rows
from gpx.errors import ConfigError
from gpx.kernels import RBF, ArcCosine
from gpx.likelihoods import Softmax
from gpx.methods.deep import GPLayer, draws_of
from gpx.methods.deep.signs import SignFrequencies
from gpx.models import CNNGP

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n=6, d=5):
    return torch.randn(n, d, generator=draws(1))


@pytest.mark.parametrize("learned", [False, True])
def test_it_is_the_dense_product(learned):
    layer, x = SignFrequencies(5, 12, learned=learned, keep=1.0), inputs()
    h = hadamard_rows(torch.arange(16), 16) / 4.0
    d = layer.signs + layer.deviations if learned else layer.signs
    dense = 4.0 * h @ torch.diag(d[0]) @ h @ torch.diag(d[1]) @ h @ torch.diag(d[2])
    torch.testing.assert_close(layer(x), x @ dense[:12, :5].mT, rtol=1e-12, atol=1e-12)


def test_signs_alone_keep_lengths():
    layer, x = SignFrequencies(5, 16), inputs()
    torch.testing.assert_close(layer(x).square().sum(1), 16.0 * x.square().sum(1))


def test_without_deviations_they_are_fixed():
    fixed, learned = SignFrequencies(5, 12, seed=3), SignFrequencies(5, 12, learned=True, seed=3)
    with torch.no_grad():
        assert not torch.equal(learned(inputs()), fixed(inputs()))
        learned.deviations.zero_()
    with draws_of(learned, draws()):
        assert torch.equal(learned(inputs()), fixed(inputs()))
    assert fixed.known_kl
    assert not learned.known_kl
    assert list(fixed.parameters()) == []
    assert float(fixed.kl()) == 0.0


def test_a_narrow_prior_pins_the_signs():
    wide = SignFrequencies(5, 12, learned=True, deviation=0.1)
    narrow = SignFrequencies(5, 12, learned=True, deviation=1e-9)
    with draws_of(narrow, draws()):
        found = narrow(inputs())
    torch.testing.assert_close(found, SignFrequencies(5, 12)(inputs()), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(narrow.kl(), wide.kl())  # of the start, whatever its unit


def test_deviations_start_at_their_prior_and_its_penalty_pulls_them_to_zero():
    """Mean and variance of 3 x 4,096 normals within 4.5 standard errors: false alarm 2e-5."""
    layer = SignFrequencies(4096, 4096, learned=True, keep=0.3, deviation=0.2)
    z = layer.deviations.detach() / 0.2
    assert abs(float(z.mean())) < 4.5 / z.numel() ** 0.5
    assert abs(float(z.var()) - 1.0) < 4.5 * (2.0 / z.numel()) ** 0.5
    layer.kl().backward()
    torch.testing.assert_close(layer.deviations.grad, 0.3 / 0.04 * layer.deviations.detach())


def test_masks_are_of_each_row_or_of_a_function():
    layer, x = SignFrequencies(5, 12, learned=True), inputs(1).expand(2, -1)
    with draws_of(layer, draws()):
        first, second = layer(x)
    assert not torch.equal(first, second)
    with draws_of(layer, draws(), shared=True):
        first, second = layer(x)
    assert torch.equal(first, second)


@pytest.mark.parametrize("kernel", [RBF(None, 8.0), ArcCosine(1)])
def test_the_prior_has_the_covariance_of_the_kernel_at_many_inputs(kernel):
    """Biased by 1 / sqrt(d); 8,192 units, measured 0.011 and 0.016."""
    x = inputs(20, 64)
    layer = GPLayer(kernel, 64, num_features=8192, frequencies="fixed_signs")
    want = kernel.evaluate(x).detach()
    assert float((layer.prior_covariance(x) - want).norm() / want.norm()) < 0.04


def test_the_published_network_has_the_published_number_of_parameters():
    made = CNNGP(
        likelihood=Softmax(10),
        num_inputs=3072,
        backbone="alexnet",
        frequencies="learned_signs",
        num_features=4096,
    )
    trained = [p for p in made.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == 2_273_280


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SignFrequencies(0, 3), "num_inputs=0"),
        (lambda: SignFrequencies(3, 3, deviation=0.0), "deviation=0.0 must be positive"),
        (lambda: SignFrequencies(3, 3, learned=True, keep=0.0), "keep=0.0: an input must be kept"),
        (
            lambda: GPLayer(RBF(), 3, frequencies="fixed_signs", directions="orthogonal"),
            "directions=orthogonal: frequencies=fixed_signs have the directions of Hadamard",
        ),
    ],
)
def test_invalid_options_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
