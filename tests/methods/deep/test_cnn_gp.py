"""Convolutional networks with a Gaussian process as head: sizes, limits, averages over masks."""

import pytest
import torch
from draws import draws
from torch.nn import functional

from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian, Softmax
from gpx.methods.deep.convolutions import DroppedConvolution
from gpx.metrics import classification_metrics, entropy_ecdf
from gpx.models import CNNGP
from gpx.objectives import SampledELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")


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


def test_the_divergence_is_that_of_the_source():
    """Half the kept share of the squares of what is masked, half the squares of the rest."""
    made, keep = model(keep=0.4), 0.4
    first, second = (m for m in made.network.body.modules() if isinstance(m, DroppedConvolution))
    masked = [second.weight, made.network.head.features.frequencies.mean]
    masked += [made.network.head.weights.mean]
    whole = [first.weight, first.bias, second.bias]
    want = 0.5 * keep * sum(m.square().sum() for m in masked)
    want = want + 0.5 * sum(m.square().sum() for m in whole)
    torch.testing.assert_close(made.kl(), want)
    found = SampledELBO(4).evidence(made, images(), torch.zeros(4), generator=draws())
    assert found.kind == "estimate"
    made.kl().backward()
    torch.testing.assert_close(second.weight.grad, keep * second.weight.detach())


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


@pytest.mark.parametrize("options", [{}, {"backbone": "resnet", "blocks": 1}])
def test_metrics_of_classes_do_not_depend_on_the_batches_of_predictions(options, monkeypatch):
    """Masks belong to a draw and not to a batch, and normalisation uses statistics of training."""
    made, x = model(**options), images(23)
    with torch.no_grad():
        made.network.head.weights.mean.mul_(40.0)
    classes = torch.arange(23) % 3
    posterior = made.condition(x, classes.double())

    def measures(*parts):
        found = torch.cat([posterior.predictive(rows, made.likelihood).probs for rows in parts])
        thresholds = torch.linspace(0.0, 1.1, 12)
        shares = entropy_ecdf(found, thresholds).tolist()
        return [*classification_metrics(found.log(), classes).values(), *shares]

    whole = measures(x)
    assert measures(*x.split(7)) == pytest.approx(whole, abs=1e-12)
    monkeypatch.setattr("gpx.methods.deep.posterior.PREDICT_CHUNK", 5)
    assert measures(x) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backbone": "vgg"}, "backbone=vgg: expected one of lenet_small"),
        ({"depth": 0}, "depth=0"),
        ({"num_features": 0}, "^num_features=0 must be at least 1$"),
        ({"width": 0}, "width=0"),
        ({"keep": 0.0}, "keep=0.0: an input must be kept .* dropout rate of 1 leaves nothing"),
        ({"keep": 1.5}, "keep=1.5: an input must be kept"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        model(Gaussian(0.1), **options)


def test_predictions_with_input_gradients_leave_the_normalisation_alone():
    """Gradients switch on batch statistics in training only, and statistics are not updated."""
    x, made = images(), model(backbone="resnet", blocks=1)
    posterior = made.condition(x, torch.zeros(4))
    before = posterior.predict(x).mean
    found = posterior.predict(x.clone().requires_grad_()).mean
    torch.testing.assert_close(found.detach(), before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(posterior.predict(x).mean, before, rtol=0.0, atol=0.0)
    assert made.network.training
