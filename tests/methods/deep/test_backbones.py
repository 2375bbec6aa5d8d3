"""Convolutional networks by their names: published sizes, residual blocks, batch normalisation."""

import warnings

import pytest
import torch
from draws import draws
from torch import nn
from torch.nn import functional

from gpx.errors import ConfigError
from gpx.kernels.convolutional import ImageShape
from gpx.methods.deep import draws_of
from gpx.methods.deep.backbones import convolutional_features
from gpx.methods.deep.convolutions import (
    BatchNorm,
    DroppedConvolution,
    ResidualBlock,
    ResponseNorm,
)

pytestmark = pytest.mark.usefixtures("float64_by_default")


@pytest.mark.parametrize(
    ("name", "shape", "size", "convolutions"),
    [
        ("lenet_mnist", (1, 28, 28), 4096, 2),
        ("lenet_cifar", (3, 32, 32), 4096, 2),
        ("lenet_3conv", (3, 32, 32), 1024, 3),
        ("lenet_small", (1, 8, 8), 256, 2),
        ("alexnet", (3, 32, 32), 4096, 5),
        ("alexnet_quarter", (3, 32, 32), 1024, 5),
        ("resnet", (3, 32, 32), 64, 13),
    ],
)
def test_published_networks_have_the_published_sizes(name, shape, size, convolutions):
    before = torch.get_rng_state()
    network, found = convolutional_features(name, ImageShape(*shape), 0.5, blocks=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert found == size
    layers = [m for m in network.modules() if isinstance(m, DroppedConvolution)]
    assert len(layers) == convolutions
    assert [layer.keep for layer in layers] == [1.0, *[0.5] * (convolutions - 1)]
    pixels = torch.rand(2, shape[0] * shape[1] * shape[2], generator=draws())
    assert network(pixels).shape == (2, size)


def test_the_response_norm_is_that_of_the_source():
    """a / (1 + 0.001 / 9 sum of squares over 4 channels on both sides)^0.75."""
    network, _ = convolutional_features("lenet_cifar", ImageShape(3, 8, 8))
    norm = next(m for m in network.modules() if isinstance(m, nn.LocalResponseNorm))
    a = 30.0 * torch.rand(1, 64, 2, 2, generator=draws())
    near = [a[:, max(0, c - 4) : c + 5].square().sum(1) for c in range(64)]
    want = a / (1.0 + 0.001 / 9 * torch.stack(near, 1)) ** 0.75
    torch.testing.assert_close(norm(a), want)


def test_the_response_norm_and_its_gradient_are_those_of_torch():
    x = 9.0 * torch.randn(3, 7, 4, 5, generator=draws(), dtype=torch.float64)
    sizes = {"alpha": 0.3, "beta": 0.75, "k": 1.2}
    results = []
    for made in (ResponseNorm(5, **sizes), nn.LocalResponseNorm(5, **sizes)):
        leaf = x.contiguous(memory_format=torch.channels_last).requires_grad_()
        found = made(leaf)
        (slope,) = torch.autograd.grad(found.square().sum(), leaf)
        results.append((found, slope))
    torch.testing.assert_close(*results)
    made = ResponseNorm(5, **sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.vmap(made)(x.unsqueeze(1))[:, 0], made(x))


@pytest.mark.parametrize(
    ("name", "shape", "published"),
    [
        ("lenet_small", (1, 8, 8), "c r m c r m"),
        ("lenet_mnist", (1, 28, 28), "c r m c r m"),
        ("lenet_cifar", (3, 8, 8), "c r h n c r n h"),
        ("lenet_3conv", (3, 8, 8), "c r h n c r n h c r n h"),
        ("alexnet", (3, 16, 16), "c r n h c r n h c r c r c r h"),
    ],
)
def test_features_and_gradients_are_those_of_the_published_order_of_layers(name, shape, published):
    """Convolution, rectifier, norm and pooling by torch, in torch's order of pixels."""
    network, _ = convolutional_features(name, ImageShape(*shape))
    layers = [m for m in network if isinstance(m, DroppedConvolution)]
    norms = [m for m in network if isinstance(m, nn.LocalResponseNorm)]
    for seed, layer in enumerate(layers):
        layer.draw_start(draws(seed))
    x = torch.rand(3, shape[0] * shape[1] * shape[2], generator=draws(9))
    filters = [layer.weight for layer in layers]
    with torch.no_grad():
        padded = network[0](x)
    plain = torch.empty(padded.shape).copy_(padded)
    assert plain.is_contiguous()
    left = iter(layers)
    for kind in published.split():
        if kind == "c":
            layer = next(left)
            padding, groups = layer.weight.shape[2] // 2, layer.groups
            plain = functional.conv2d(plain, layer.weight, layer.bias, 1, padding, 1, groups)
        elif kind == "h":
            plain = functional.max_pool2d(plain, 3, 2, 1)
        else:
            plain = {"r": torch.relu, "m": nn.MaxPool2d(2), "n": norms[0] if norms else None}[kind](
                plain
            )
    found, want = network(x), plain.flatten(1)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-13)
    weights = torch.randn(want.shape, generator=draws(7))
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), filters),
        torch.autograd.grad((want * weights).sum(), filters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_channels_of_a_pixel_lie_side_by_side():
    """As the quick kernels of pooling want it: through padding, convolution, pooling and masks."""
    for name, shape in (
        ("lenet_small", (1, 8, 8)),
        ("alexnet", (3, 16, 16)),
        ("resnet", (3, 8, 8)),
    ):
        network, _ = convolutional_features(name, ImageShape(*shape), 0.5, blocks=1)
        x = torch.rand(2, shape[0] * shape[1] * shape[2], generator=draws())
        for layer in network:
            x = layer(x)
            if x.ndim == 4:
                assert x.is_contiguous(memory_format=torch.channels_last), (name, layer)


def test_alexnet_has_the_published_number_of_weights():
    network, _ = convolutional_features("alexnet", ImageShape(3, 32, 32))
    layers = [m for m in network if isinstance(m, DroppedConvolution)]
    assert sum(layer.weight.numel() for layer in layers) == 2_218_688
    assert sum(layer.bias.numel() for layer in layers) == 1_344


@pytest.mark.parametrize(("blocks", "convolutions"), [(1, 7), (5, 31), (25, 151)])
def test_a_residual_network_has_six_convolutions_a_block_and_one(blocks, convolutions):
    network, size = convolutional_features("resnet", ImageShape(1, 4, 4), blocks=blocks)
    assert size == 64
    assert sum(isinstance(m, DroppedConvolution) for m in network.modules()) == convolutions


def test_a_residual_block_that_halves():
    """Convolutions of stride two beside the average of 2 x 2 pixels between channels of zeros."""
    block, x = ResidualBlock((2, 4), 1.0, penalty=True), torch.randn(3, 2, 6, 6, generator=draws())
    for layer in (block.first, block.second):
        layer.draw_start(draws(1))
        assert float(layer.bias.detach().abs().max()) == 0.0
        assert float(layer.weight.detach().abs().max()) < 2.0 * (2 / (9 * 8)) ** 0.5 * 1.5
    with torch.no_grad():
        found = block(x)
        a = functional.conv2d(x.relu() / (1 + 1e-5) ** 0.5, block.first.weight, None, 2, 1)
        a = a.relu() / (1 + 1e-5) ** 0.5
        a = functional.conv2d(a, block.second.weight, None, 1, 1)
    pooled = x.view(3, 2, 3, 2, 3, 2).mean((3, 5))
    zeros = torch.zeros(3, 1, 3, 3)
    torch.testing.assert_close(found, torch.cat([zeros, pooled, zeros], 1) + a)
    assert block(x[..., :5, :5]).shape == (3, 4, 3, 3)


def test_batch_statistics_are_for_training_alone():
    norm, x = BatchNorm(2), 3.0 + torch.randn(5, 2, 4, 4, generator=draws())
    torch.testing.assert_close(norm(x).mean((0, 2, 3)), torch.zeros(2))
    before = norm.running_mean.clone()
    assert float(before.min()) > 0.0
    with torch.no_grad():
        alone = torch.cat([norm(row) for row in x.split(1)])
        torch.testing.assert_close(norm(x), alone)
        want = (x - norm.running_mean.view(-1, 1, 1)) / (
            norm.running_var.view(-1, 1, 1) + 1e-5
        ).sqrt()
        torch.testing.assert_close(alone, want)
    assert torch.equal(norm.running_mean, before)


def test_masks_are_of_each_row_in_training_and_of_a_function_in_prediction():
    layer = DroppedConvolution((2, 3), 3, 0.5)
    layer.draw_start(draws())
    x = torch.ones(1, 2, 5, 5).expand(2, -1, -1, -1)
    with draws_of(layer, draws()):
        first, second = layer(x)
    assert not torch.equal(first, second)
    with draws_of(layer, draws(), shared=True):
        first, second = layer(x)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("vgg", {}, "backbone=vgg: expected one of lenet_small"),
        ("resnet", {"blocks": 0}, "^blocks=0 must be at least 1$"),
    ],
)
def test_unknown_networks_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        convolutional_features(name, ImageShape(1, 8, 8), **options)
