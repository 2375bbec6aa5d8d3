"""Convolutional networks without Gaussian processes: with dropout masks and priors, and plain."""

import math

import pytest
import torch
from draws import draws

from gpx.calibration import Temperature
from gpx.errors import ConfigError
from gpx.likelihoods import Softmax
from gpx.methods.deep.convolutions import DroppedConvolution
from gpx.metrics.evaluate import class_log_probabilities
from gpx.models import CNN
from gpx.objectives import SampledELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")

Y = torch.tensor([0.0, 1.0, 2.0, 0.0], dtype=torch.float64)


def images(n=4):
    return torch.rand(n, 64, generator=draws(1))


def model(**options):
    given = {"num_features": 16, "predict_samples": 5, **options}
    made = CNN(likelihood=Softmax(3), num_inputs=64, **given)
    made.initialise(images(), Y, generator=draws())
    return made


def test_the_divergence_is_that_of_the_source():
    """Half the kept share of the squares of what is masked, half the squares of the rest."""
    made, keep = model(dropout=True, keep=0.4), 0.4
    first, second = (m for m in made.network.body.modules() if isinstance(m, DroppedConvolution))
    hidden = made.network.body[1].weights
    masked = [second.weight, hidden.mean, made.network.head.mean]
    whole = [first.weight, first.bias, second.bias, hidden.bias, made.network.head.bias]
    with torch.no_grad():
        for bias in whole[1:]:  # some start at zero
            bias.fill_(0.3)
    want = 0.5 * keep * sum(m.square().sum() for m in masked)
    want = want + 0.5 * sum(m.square().sum() for m in whole)
    torch.testing.assert_close(made.kl(), want)
    found = SampledELBO(4).evidence(made, images(), Y, generator=draws())
    assert found.kind == "estimate"
    made.kl().backward()
    torch.testing.assert_close(second.weight.grad, keep * second.weight.detach())


def test_the_plain_network_is_the_bayesian_one_without_masks_and_priors():
    plain, bayesian, x = model(), model(dropout=True, keep=1.0), images()
    bayesian.load_state_dict(plain.state_dict())
    assert plain.kl().item() == 0.0
    assert bayesian.kl().item() > 0.0
    found = plain.condition(x, Y).predictive(x, plain.likelihood).probs
    want = bayesian.condition(x, Y).predictive(x, bayesian.likelihood).probs
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(found, plain.network(x).softmax(1), rtol=1e-4, atol=1e-5)
    assert plain.condition(x, Y).facts() == {"draws": 1}


def test_the_bound_of_the_plain_network_is_its_cross_entropy():
    made, x = model(), images()
    found = SampledELBO(8).evidence(made, x, Y).value
    want = -2.0 * torch.nn.functional.cross_entropy(made.network(x), Y.long(), reduction="sum")
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_features": 0}, "num_features=0 must be at least 1"),
        ({"dropout": True, "keep": 0.0}, "dropout rate of 1 leaves nothing"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        model(**options)


@pytest.mark.parametrize("masked", [False, True])
def test_a_confident_mistake_has_its_full_loss(masked):
    """Also where float32 rounds one minus the probability to one."""
    made = model(dropout=masked, keep=0.95, predict_samples=2).float()
    with torch.no_grad():
        made.network.head.mean.mul_(200.0)
    posterior, x = made.new_posterior(), images().float()
    law = posterior.predictive(x, made.likelihood)
    f = posterior.components(x).mean.double().view(-1, len(x), 3)
    expected = (f.log_softmax(2).logsumexp(0) - math.log(len(f))).clamp_min(-75.0)
    assert float(expected.min()) < -20.0
    for found in (law, Temperature()(law)):
        logs, _ = class_log_probabilities("multiclass", found, Y)
        torch.testing.assert_close(logs.double().clamp_min(-75.0), expected, rtol=1e-4, atol=1e-4)
