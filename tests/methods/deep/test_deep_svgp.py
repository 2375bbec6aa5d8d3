"""Deep processes with inducing points: one layer is SVGP, hidden layers begin as linear maps."""

import pytest
import torch
from draws import draws

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Bernoulli, Gaussian, MixedOutputs, Softmax
from gpx.means import Constant
from gpx.methods.deep import draws_of
from gpx.models import SVGP, DeepSVGP
from gpx.objectives import SVGPELBO, SampledELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")

NUM = 40


def data():
    x = torch.randn(NUM, 2, generator=draws())
    return x, x.sin().sum(1) + 0.2 * torch.randn(NUM, generator=draws(1))


def parts(likelihood=None):
    return {
        "kernel": RBF(2, [0.9, 1.3], 1.2),
        "mean": Constant(0.1),
        "likelihood": Gaussian(0.1) if likelihood is None else likelihood,
        "num_inputs": 2,
        "num_inducing": 9,
    }


def model(likelihood=None, **options):
    return DeepSVGP(**{**parts(likelihood), "predict_samples": 6, **options})


def started(*arguments, **options):
    made = model(*arguments, **options)
    made.initialise(*data(), generator=draws(3))
    return made


def test_one_layer_is_svgp():
    x, y = data()
    found, want = started(depth=1), SVGP(**parts(), refit=False)
    want.initialise(x, y, generator=draws(3))
    a = SampledELBO(NUM, expected=True).evidence(found, x[:10], y[:10]).value
    b = SVGPELBO(NUM).evidence(want, x[:10], y[:10]).value
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0.0)
    predicted = found.condition(x, y).predict(x)
    for one, other in zip(predicted, want.condition(x, y).predict(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_at_the_start_two_layers_are_one():
    """Hidden functions are their inputs within 0.003: what one layer predicts, nearly."""
    x, y = data()
    one, two = started(depth=1), started(depth=2)
    found, want = two.condition(x, y).predict(x), one.condition(x, y).predict(x)
    # the prior of a hidden function is wide away from its inducing points
    hidden = two.layers[0].marginals(two.layers[0].inducing.detach())
    assert float(hidden.variance.detach().max()) < 1e-4
    torch.testing.assert_close(hidden.mean, two.layers[0].inducing, rtol=0.0, atol=1e-9)
    assert float((found.mean - want.mean).square().mean()) < 0.1
    assert float((found.mean - y).square().mean()) < 0.3 * float(y.var())


def test_hidden_functions_that_start_as_the_inputs_have_their_lengthscales():
    made = model(depth=2, width=3, kernel=RBF(2, 1.3))
    made.layers[0].kernel.lengthscale = torch.tensor([0.4, 5.0])
    x, y = data()
    made.initialise(x, y, generator=draws(3))
    assert torch.equal(made.layers[0].mean(x)[:, 1:], x)
    later = made.layers[1].kernel.lengthscale
    torch.testing.assert_close(later, torch.tensor([1.3, 0.4, 5.0]))


def test_draws_propagate_row_by_row():
    """Rows of one prediction have the law of rows drawn alone: 1,500 draws of the hidden layer.

    Mean and variance of f at each row within 4.5 standard errors: false alarm 1e-4.
    """
    made, x, num = started(depth=2), data()[0][:4], 1500
    made.predict_samples = num
    found = made.condition(*data()).predict(x)
    with torch.no_grad():
        f = made.sample_latents(x, num, generator=draws(11))
    mean, variance = f.mean(0), f.var(0)
    assert bool(((found.mean - mean).abs() < 4.5 * (2.0 * variance / num).sqrt()).all())
    spread = ((f - mean).square() - variance).square().mean(0).div(num).sqrt()
    assert bool(((found.variance - variance).abs() < 4.5 * 2.0**0.5 * spread).all())


@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli, lambda: Softmax(3)])
def test_every_layer_is_trained(likelihood):
    x, y = data()
    made = model(likelihood(), depth=3, width=3)
    targets = y if isinstance(made.likelihood, Gaussian) else (y > 0).double()
    targets = targets.sub(0.5).sign() if isinstance(made.likelihood, Bernoulli) else targets
    made.initialise(x, targets, generator=draws(3))
    objective = SampledELBO(NUM, 2, expected=True)
    objective.evidence(made, x, targets, generator=draws(4)).value.backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
    posterior = made.condition(x, targets)
    assert posterior.predictive(x, made.likelihood).log_prob(targets).shape == (NUM,)


def test_training_raises_the_bound():
    x, y = data()
    made, objective = started(), SampledELBO(NUM, 4, expected=True)
    optimiser = torch.optim.Adam(made.parameters(), lr=0.02)
    generator = draws(6)
    before = objective.evidence(made, x, y, generator=draws(9)).value.item()
    for _ in range(80):
        optimiser.zero_grad()
        (-objective.evidence(made, x, y, generator=generator).value).backward()
        optimiser.step()
    assert objective.evidence(made, x, y, generator=draws(9)).value.item() > before + 5.0


@pytest.mark.parametrize(("width", "want"), [(1, 1), (2, 2), (4, 4), (None, 2)])
def test_hidden_means_are_linear(width, want):
    x, _ = data()
    x = x * torch.tensor([3.0, 0.5])
    made = model(depth=2, width=width)
    made.initialise(x, x[:, 0], generator=draws())
    mean = made.layers[0].mean(x)
    assert mean.shape == (NUM, want)
    if want == 1:
        _, _, vectors = torch.linalg.svd(x - x.mean(0))
        torch.testing.assert_close(mean.abs(), (x @ vectors[:1].mT).abs())
    else:
        torch.testing.assert_close(mean[:, -2:], x)
        assert float(mean[:, :-2].abs().sum()) == 0.0


def test_paths_are_functions():
    x, y = data()
    posterior = started(depth=2).condition(x, y)
    paths = posterior.sample_paths(3, generator=draws())
    whole = paths(x)
    assert whole.shape == (3, NUM)
    torch.testing.assert_close(paths(x[4:6]), whole[:, 4:6], rtol=1e-9, atol=1e-10)
    made = started(depth=2)
    with torch.no_grad(), draws_of(made.network, draws(), shared=True, joint=True):
        assert made.network(x).shape == (NUM, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 0}, "^depth=0 must be at least 1$"),
        ({"width": 0}, "width=0"),
        ({"predict_samples": 0}, "predict_samples=0"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        model(**options)


def test_layers_have_kernels_of_their_own_whatever_the_kernel():
    given = RBF() + Matern32()
    made = DeepSVGP(**{**parts(), "kernel": given}, depth=2)
    kernels = [layer.kernel for layer in made.layers]
    assert kernels[0] is not kernels[1]
    assert given not in kernels
    groups = made.parameter_groups()
    assert sum(map(len, groups.values())) == len(list(made.parameters()))


def test_fewer_functions_than_outputs_start_at_the_principal_axes():
    x, y = data()
    targets = torch.stack([y, 2.0 * y, x[:, 0]], 1)
    made, want = model(MixedOutputs(3, 2), depth=2), MixedOutputs(3, 2)
    made.initialise(x, targets, generator=draws(3))
    want.start(targets)
    torch.testing.assert_close(made.likelihood.mixing, want.mixing)
