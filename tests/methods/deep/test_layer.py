"""A layer of random features: prior, q, draws and divergence."""

import pytest
import torch
from draws import draws
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, ArcCosine, Linear, Matern32
from gpx.methods.deep import (
    DroppedWeights,
    FullWeights,
    GPLayer,
    MeanFieldWeights,
    draws_of,
    total_kl,
)
from gpx.methods.deep.draws import Draws

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n=6, d=3):
    return torch.randn(n, d, generator=draws(1))


def anywhere(weights, seed=2):
    """q at some other place than the start."""
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws(seed)))
    return weights


KERNELS = {
    "RBF": lambda: RBF(3, [0.9, 1.4, 2.0], 1.3),
    "Matern32": lambda: Matern32(3, [0.9, 1.4, 2.0], 1.3),
    **{f"ArcCosine {n}": lambda n=n: ArcCosine(n, 3, [0.9, 1.4, 2.0], 1.3) for n in (0, 1, 2)},
}


@pytest.mark.parametrize("directions", ["independent", "orthogonal"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_prior_has_the_covariance_of_the_kernel(name, directions):
    """Relative Frobenius error of 40,000 features; measured 0.002 to 0.02, order 2 the largest."""
    kernel, x = KERNELS[name](), inputs(20)
    layer = GPLayer(kernel, 3, num_features=40_000, directions=directions)
    want = kernel.evaluate(x).detach()
    error = (layer.prior_covariance(x) - want).norm() / want.norm()
    assert float(error) < 0.04


def test_structured_directions_have_the_covariance_of_the_kernel_at_many_inputs():
    """They are biased, by 1 / sqrt(d); measured 0.006."""
    x, kernel = inputs(20, 64), RBF(None, 8.0)
    layer = GPLayer(kernel, 64, num_features=8192, directions="structured")
    want = kernel.evaluate(x).detach()
    assert float((layer.prior_covariance(x) - want).norm() / want.norm()) < 0.02


@pytest.mark.parametrize("kernel", [RBF(), ArcCosine(1)])
def test_learned_frequencies_start_at_the_prior(kernel):
    x = inputs(20)
    layer = GPLayer(kernel, 3, num_features=40_000, frequencies="learned")
    with torch.no_grad():
        layer.features.frequencies.log_deviation.fill_(-30.0)
    with draws_of(layer, draws(), shared=True):
        found = layer.prior_covariance(x)
    want = kernel.evaluate(x).detach()
    assert float((found - want).norm() / want.norm()) < 0.04


def test_functions_of_the_prior_have_the_covariance_of_the_features():
    """Every entry within 4.5 standard errors of 20,000 functions: false alarm below 1e-4."""
    layer = GPLayer(RBF(), 3, num_outputs=20_000, num_features=50)
    x = inputs(5)
    with torch.no_grad():
        layer.weights.log_deviation.zero_()
        with draws_of(layer, draws(), shared=True):
            f = layer(x)
    want = layer.prior_covariance(x)
    variance = want.diagonal()
    error = ((variance[:, None] * variance + want.square()) / 20_000).sqrt()
    assert bool(((f @ f.mT / 20_000 - want).abs() < 4.5 * error).all())


@pytest.mark.parametrize("family", [MeanFieldWeights, FullWeights])
def test_divergence_and_marginals_are_those_of_the_dense_gaussian(family):
    weights, x = anywhere(family(4, 2)), inputs(6, 4)
    if family is FullWeights:
        roots = list(weights.root)
    else:
        roots = [column.exp().diag() for column in weights.log_deviation.mT]
    dense = [
        MultivariateNormal(mean, root @ root.mT)
        for mean, root in zip(weights.mean.mT, roots, strict=True)
    ]
    prior = MultivariateNormal(torch.zeros(4), torch.eye(4))
    want = sum(kl_divergence(q, prior) for q in dense)
    torch.testing.assert_close(weights.kl(), want, rtol=1e-12, atol=0.0)
    mean, variance = weights.marginals(x)
    for column, q in enumerate(dense):
        torch.testing.assert_close(mean[:, column], x @ q.mean)
        covariance = x @ q.covariance_matrix @ x.mT
        torch.testing.assert_close(variance[:, column], covariance.diagonal())


@pytest.mark.parametrize("family", [MeanFieldWeights, FullWeights])
@pytest.mark.parametrize("shared", [False, True])
def test_draws_have_the_marginals(family, shared):
    """Mean and variance of 4,000 draws within 4.5 standard errors: false alarm below 3e-4."""
    weights, x = anywhere(family(4, 2)), inputs(3, 4)
    generator, num = draws(), 4000
    with torch.no_grad(), draws_of(weights, generator, shared=shared):
        f = torch.stack([weights(x) for _ in range(num)])
        mean, variance = weights.marginals(x)
    assert bool(((f.mean(0) - mean).abs() < 4.5 * (variance / num).sqrt()).all())
    assert bool(((f.var(0) / variance - 1.0).abs() < 4.5 * (2.0 / num) ** 0.5).all())


@pytest.mark.parametrize("family", [MeanFieldWeights, FullWeights])
def test_q_starts_at_a_gaussian_posterior(family):
    root = torch.randn(4, 4, generator=draws()) + 3.0 * torch.eye(4)
    precision, mean = root @ root.mT, torch.randn(4, 1, generator=draws(3))
    weights = family(4, 1)
    weights.start(mean, precision)
    x = torch.eye(4)
    found = weights.marginals(x)
    torch.testing.assert_close(found.mean, mean)
    # the best mean-field Gaussian has the inverse of the diagonal, the full one its own
    full = torch.linalg.inv(precision).diagonal()
    want = full if family is FullWeights else precision.diagonal().reciprocal()
    torch.testing.assert_close(found.variance.squeeze(1), want)


def test_masked_weights_start_with_the_mean_of_a_gaussian_posterior():
    """Averaged over all masks of four inputs, of which half are kept."""
    mean, weights = torch.randn(4, 1, generator=draws(3)), DroppedWeights(4, 1, keep=0.5)
    weights.start(mean, torch.eye(4))
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)
    average = (masks.unsqueeze(2) * weights.mean.detach()).mean(0)
    torch.testing.assert_close(average, mean)


def test_the_gradient_of_the_dropout_penalty_is_the_kept_share_of_the_weights():
    weights = anywhere(DroppedWeights(4, 2, keep=0.3, bias=True))
    weights.kl().backward()
    torch.testing.assert_close(weights.mean.grad, 0.3 * weights.mean.detach())
    torch.testing.assert_close(weights.bias.grad, weights.bias.detach())


def test_unscaled_masks_with_their_penalty_are_rescaled_masks_with_theirs():
    """Inverted dropout divides by keep; with weights keep M and |.|^2 / (2 keep) it is the same."""
    keep, x = 0.4, inputs(5, 4)
    weights = anywhere(DroppedWeights(4, 2, keep))
    with draws_of(weights, draws()):
        found = weights(x)
    mask = torch.bernoulli(torch.full((5, 4), keep), generator=draws())
    inverted = keep * weights.mean
    torch.testing.assert_close(found, (x * mask / keep) @ inverted, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(weights.kl(), inverted.square().sum() / (2.0 * keep))


def test_a_kept_network_is_a_linear_unit_network():
    """keep = 1 and arc-cosine features of order one: linear, ReLU, linear."""
    layer = GPLayer(ArcCosine(1), 3, 2, 10, frequencies="dropout", covariance="dropout", keep=1.0)
    anywhere(layer.weights)
    x = inputs()
    want = torch.relu(x @ layer.features.frequencies.mean) @ layer.weights.mean * (2 / 10) ** 0.5
    torch.testing.assert_close(layer(x), want)
    layer.eval()
    torch.testing.assert_close(layer(x), want)


def test_frequencies_that_are_points_have_no_masks_and_the_whole_prior():
    """Those of dropout with every input kept, from the same start; weights keep their masks."""
    options = {"covariance": "dropout", "keep": 0.4, "seed": 3}
    point = GPLayer(ArcCosine(1), 3, 2, 10, frequencies="point", **options)
    masked = GPLayer(ArcCosine(1), 3, 2, 10, frequencies="dropout", **options)
    frequencies = anywhere(point.features.frequencies)
    x = inputs()
    assert torch.equal(point.features(x), point.features(x))
    features = torch.relu(x @ frequencies.mean) * (2 / 10) ** 0.5
    torch.testing.assert_close(point.features(x), features)
    torch.testing.assert_close(frequencies.kl(), 0.5 * frequencies.mean.square().sum())
    assert masked.features.frequencies.random
    assert point.weights.keep == masked.weights.keep == 0.4
    # the same parameters: each loads the other's
    masked.load_state_dict(point.state_dict())
    assert torch.equal(masked.features.frequencies.mean, frequencies.mean)


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_masks_keep_their_share_and_are_the_same_whatever_the_order_in_memory(keep):
    """200,000 entries; five standard errors, false alarm 1 in 1.7 million for each of two."""
    like = torch.empty(50, 40, 10, 10)
    images = like.to(memory_format=torch.channels_last)  # as they lie on a CPU, and not on a GPU
    mask, other = (
        Draws(torch.Generator().manual_seed(3)).mask(tuple(x.shape), keep, x)
        for x in (images, like)
    )
    assert torch.equal(mask, other)
    assert mask.stride() == images.stride()
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    error = (keep * (1.0 - keep) / mask.numel()) ** 0.5
    assert abs(float(mask.mean()) - keep) < 5.0 * error
    # neighbours in memory are independent
    flat = mask.permute(0, 2, 3, 1).flatten()
    both = float((flat[1:] * flat[:-1]).mean())
    spread = keep**2 * (1.0 - keep**2) + 2.0 * keep**3 * (1.0 - keep)
    assert abs(both - keep**2) < 5.0 * (spread / mask.numel()) ** 0.5
    shared = Draws(torch.Generator().manual_seed(3), shared=True).mask((40, 10, 10), keep, like)
    assert shared.shape == (40, 10, 10)


def test_eval_does_not_silence_masks():
    layer = GPLayer(ArcCosine(1), 3, 2, 10, covariance="dropout").eval()
    anywhere(layer.weights)
    with draws_of(layer, draws()):
        assert not torch.equal(layer(inputs()), layer(inputs()))


def test_a_layer_goes_into_any_network():
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), GPLayer(RBF(), 8, 2), nn.Softmax(1))
    x = inputs()
    with draws_of(network, draws(5)):
        first = network(x)
    with draws_of(network, draws(5)):
        assert torch.equal(network(x), first)
    assert not torch.equal(network(x), network(x))  # torch's own generator
    loss = -first.log().sum() + total_kl(network)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    assert float(network[0].weight.grad.abs().max()) > 0.0


def test_a_shared_draw_is_one_function_whatever_other_rows():
    layer, x = anywhere(GPLayer(RBF(), 3, 2, frequencies="learned")), inputs()
    with draws_of(layer, draws(7), shared=True):
        whole = layer(x)
    with draws_of(layer, draws(7), shared=True):
        torch.testing.assert_close(layer(x[2:3]), whole[2:3], rtol=1e-12, atol=1e-13)


def test_hyperparameters_of_the_kernel_are_learned_and_fixed_frequencies_are_not():
    layer = GPLayer(RBF(3), 3, 1, 20)
    layer.weights.mean.data.normal_(generator=draws())
    with draws_of(layer, draws()):
        layer(inputs()).sum().backward()
    gradient = layer.kernel.parametrizations["lengthscale"].original.grad
    assert bool(gradient.isfinite().all())
    assert float(gradient.abs().min()) > 0.0
    assert [name for name, _ in layer.named_parameters() if "features" in name] == [
        "features.kernel.parametrizations.lengthscale.original",
        "features.kernel.parametrizations.outputscale.original",
    ]


def test_a_kernel_is_made_for_the_inputs_of_the_layer():
    kernel = RBF(2, [1.0, 3.0], 0.7)
    layer = GPLayer(kernel, 5, num_features=20)
    torch.testing.assert_close(layer.kernel.lengthscale, torch.full((5,), 2.0))
    torch.testing.assert_close(layer.kernel.outputscale, torch.tensor(0.7))
    assert kernel.lengthscale.shape == (2,)
    with pytest.raises(ShapeError, match=r"5 inputs got shape \(6, 3\)"):
        layer(inputs())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_features": 0}, "^num_features=0 must be at least 1$"),
        ({"num_features": 7}, "num_features=7: .* must be even"),
        ({"num_features": 7, "frequencies": "learned"}, "must be even"),
        ({"frequencies": "some"}, "frequencies=some: expected one of fixed, learned, dropout"),
        ({"directions": "some"}, "directions=some: expected one of independent"),
        ({"covariance": "some"}, "covariance=some: expected one of mean_field"),
        ({"covariance": "dropout", "keep": 0.0}, "keep=0.0: an input must be kept"),
        ({"keep": 1.5}, "keep=1.5: an input must be kept"),
        ({"kernel": Linear()}, "take one stationary or arc-cosine kernel .*, got Linear"),
        ({"kernel": Matern32(), "frequencies": "learned"}, "takes an RBF or an arc-cosine kernel"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        GPLayer(**{"kernel": RBF(), "num_inputs": 3, **options})


def test_the_law_of_a_draw_given_the_row_is_normal():
    """Kolmogorov's distance of 4,000 local draws below 0.03: false alarm 1e-3."""
    weights, x = anywhere(MeanFieldWeights(4, 1)), inputs(1, 4)
    with torch.no_grad(), draws_of(weights, draws(11)):
        f = weights(x.expand(4000, -1)).squeeze(1).sort().values
    mean, variance = (part.detach() for part in weights.marginals(x))
    law = Normal(mean.squeeze(), variance.sqrt().squeeze())
    place = (torch.arange(4000) + 0.5) / 4000
    assert float((law.cdf(f) - place).abs().max()) < 0.03
