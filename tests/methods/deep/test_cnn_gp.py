"""Convolutional networks with a Gaussian process for a head: sizes, limits, what is averaged."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian, Softmax
from gpx.methods.deep import draws_of
from gpx.methods.deep.backbones import (
    DroppedConvolution,
    ImageShape,
    convolutional_features,
    shape_of_images,
)
from gpx.models import CNNGP
from gpx.objectives import SampledELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=4):
    return torch.rand(n, 64, generator=draws(1))


def model(likelihood=None, **options):
    made = CNNGP(
        likelihood=Softmax(3) if likelihood is None else likelihood,
        num_inputs=64,
        **{"num_features": 16, "predict_samples": 5, **options},
    )
    made.initialise(images(), torch.zeros(4), generator=draws())
    return made


@pytest.mark.parametrize(
    ("name", "shape", "size", "convolutions"),
    [
        ("lenet_mnist", (1, 28, 28), 4096, 2),
        ("lenet_cifar", (3, 32, 32), 4096, 2),
        ("lenet_3conv", (3, 32, 32), 1024, 3),
        ("lenet_small", (1, 8, 8), 256, 2),
    ],
)
def test_published_networks_have_the_published_sizes(name, shape, size, convolutions):
    before = torch.get_rng_state()
    network, found = convolutional_features(name, ImageShape(*shape), 0.5)
    assert torch.equal(torch.get_rng_state(), before)
    assert found == size
    layers = [m for m in network if isinstance(m, DroppedConvolution)]
    assert len(layers) == convolutions
    assert [layer.keep for layer in layers] == [1.0, *[0.5] * (convolutions - 1)]
    pixels = torch.rand(2, shape[0] * shape[1] * shape[2], generator=draws())
    assert network(pixels).shape == (2, size)


def test_the_response_norm_is_that_of_the_source():
    """a / (1 + 0.001 / 9 sum of squares over 4 channels on both sides)^0.75."""
    network, _ = convolutional_features("lenet_cifar", ImageShape(3, 8, 8))
    norm = next(m for m in network if isinstance(m, nn.LocalResponseNorm))
    a = 30.0 * torch.rand(1, 64, 2, 2, generator=draws())
    near = [a[:, max(0, c - 4) : c + 5].square().sum(1) for c in range(64)]
    want = a / (1.0 + 0.001 / 9 * torch.stack(near, 1)) ** 0.75
    torch.testing.assert_close(norm(a), want)


def test_without_masks_it_is_the_plain_network():
    made = model(keep=1.0)
    first, second = (m for m in made.network.body if isinstance(m, DroppedConvolution))
    x = images()
    c = functional.max_pool2d(
        functional.conv2d(x.view(4, 1, 8, 8), first.weight, first.bias, padding=1).relu(), 2
    )
    c = functional.max_pool2d(functional.conv2d(c, second.weight, second.bias, padding=1).relu(), 2)
    head = made.network.head
    units = torch.relu(c.flatten(1) @ head.features.frequencies.mean)
    want = units @ head.weights.mean * (2 / 16) ** 0.5
    found = made.condition(x, torch.zeros(4)).predict(x)
    torch.testing.assert_close(found.mean, want)
    assert float(found.variance.max()) < 1e-20


@pytest.mark.parametrize("head", ["gp", "dropout"])
def test_the_divergence_is_that_of_the_source(head):
    """Half the kept share of the squares of what is masked, half the squares of the rest."""
    made, keep = model(head=head, keep=0.4), 0.4
    first, second = (m for m in made.network.body.modules() if isinstance(m, DroppedConvolution))
    masked, whole = [second.weight], [first.weight, first.bias, second.bias]
    if head == "gp":
        masked += [made.network.head.features.frequencies.mean, made.network.head.weights.mean]
    else:
        hidden = made.network.body[1].weights
        masked += [hidden.mean, made.network.head.mean]
        whole += [hidden.bias, made.network.head.bias]
    want = 0.5 * keep * sum(m.square().sum() for m in masked)
    want = want + 0.5 * sum(m.square().sum() for m in whole)
    torch.testing.assert_close(made.kl(), want)
    found = SampledELBO(4).evidence(made, images(), torch.zeros(4), generator=draws())
    assert found.kind == "estimate"
    made.kl().backward()
    torch.testing.assert_close(second.weight.grad, keep * second.weight.detach())


def test_the_plain_network_is_the_bayesian_one_without_masks_and_priors():
    plain, bayesian, x = model(head="dense"), model(head="dropout", keep=1.0), images()
    bayesian.load_state_dict(plain.state_dict())
    assert plain.kl().item() == 0.0
    assert bayesian.kl().item() > 0.0
    y = torch.tensor([0.0, 1.0, 2.0, 0.0])
    found = plain.condition(x, y).predictive(x, plain.likelihood).probs
    want = bayesian.condition(x, y).predictive(x, bayesian.likelihood).probs
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(found, plain.network(x).softmax(1), rtol=1e-4, atol=1e-5)
    assert plain.condition(x, y).facts() == {"draws": 1}


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


def test_a_hidden_layer_sees_the_features_and_so_does_the_next():
    made = model(depth=3, width=4)
    sizes = [m.num_inputs for m in (*made.network.body[1].layers, made.network.head)]
    assert sizes == [256, 260, 260]
    y = torch.tensor([0.0, 1.0, 2.0, 0.0])
    SampledELBO(4).evidence(made, images(), y, generator=draws()).value.backward()
    gradients = [p.grad for p in made.parameters() if p.requires_grad]
    assert all(g is not None and g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("learn", [False, True])
def test_the_kernel_is_trained_where_that_is_asked(learn):
    made = model(frequencies="fixed", learn_kernel=learn)
    y = torch.tensor([0.0, 1.0, 2.0, 0.0])
    SampledELBO(4).evidence(made, images(), y, generator=draws()).value.backward()
    parameters = list(made.network.head.kernel.parameters())
    assert len(parameters) == 2
    assert all((p.grad is not None) == learn for p in parameters)
    assert len(made.parameter_groups()["hyperparameters"]) == (2 if learn else 0)


def test_probabilities_sum_to_one_and_are_averaged_over_masks():
    made, x = model(), images()
    with torch.no_grad():
        made.network.head.weights.mean.mul_(40.0)
    posterior = made.condition(x, torch.zeros(4))
    found = posterior.predictive(x, made.likelihood).probs
    torch.testing.assert_close(found.sum(1), torch.ones(4))
    torch.testing.assert_close(found, posterior.components(x).mean.softmax(-1).mean(0))


def test_shapes_of_images():
    assert shape_of_images(64) == (1, 8, 8)
    assert shape_of_images(3072) == (3, 32, 32)
    assert shape_of_images(60, (3, 4, 5)) == (3, 4, 5)
    assert shape_of_images(20, (4, 5)) == (1, 4, 5)
    with pytest.raises(ConfigError, match="60 inputs are no square image of one or three"):
        shape_of_images(60)
    with pytest.raises(ConfigError, match=r"image_shape=\[3, 4\] does not hold 60 inputs"):
        shape_of_images(60, (3, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head": "svm"}, "head=svm: expected one of gp, dropout, dense"),
        ({"backbone": "vgg"}, "backbone=vgg: expected one of lenet_small"),
        ({"depth": 0}, "depth=0"),
        ({"depth": 2, "head": "dense"}, "depth=2 counts layers of Gaussian processes"),
        ({"keep": 0.0}, "keep=0.0: an input must be kept .* dropout rate of 1 leaves nothing"),
        ({"keep": 1.5}, "keep=1.5: an input must be kept"),
    ],
)
def test_options_that_do_not_fit(options, words):
    with pytest.raises(ConfigError, match=words):
        model(Gaussian(0.1), **options)
