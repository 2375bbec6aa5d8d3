"""Predictions of random networks: how many draws they take, fixed draws, threads, no rows."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError

import pytest
import torch
from torch import nn

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, GaussianOutputs, Laplace, Poisson, Softmax
from gpx.means import Zero
from gpx.methods.deep import GPLayer, Network, NetworkModel
from gpx.methods.deep.draws import draws_of
from gpx.methods.deep.weights import DroppedWeights
from gpx.models import SVDKL, DeepGP, DeepSVGP

X = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).view(6, 2)


def deep(likelihood, **options):
    torch.manual_seed(0)
    made = DeepGP(
        kernel=RBF(), likelihood=likelihood, num_inputs=2, num_features=10, width=3, **options
    )
    return made.double().new_posterior()


def on_grids(likelihood):
    torch.manual_seed(0)
    made = SVDKL(
        kernel=RBF(), likelihood=likelihood, num_inputs=2, hidden=(4,), num_features=3, grid_size=8
    ).double()
    with torch.no_grad():
        made.network.head.mixing.normal_()
    return made.new_posterior()


def passes(module, predict):
    """Number of passes through a part of a network in a prediction."""
    calls = []
    hook = module.register_forward_hook(lambda *_: calls.append(0))
    predict()
    hook.remove()
    return len(calls)


def test_marginals_that_are_not_drawn_take_one_pass():
    """Outputs that mix the same functions are dependent, but each is one normal variable."""
    likelihood = GaussianOutputs(2).double()
    posterior = on_grids(likelihood)
    assert passes(posterior.network.body, lambda: posterior.predictive(X, likelihood)) == 1
    assert posterior.components(X).mean.shape == (1, 6, 2)


def test_shares_of_draws_are_as_precise_as_the_laws_of_counts():
    """Which are float64 for a float32 model, too."""
    likelihood = Poisson()
    single = deep(likelihood).float()
    law = single.predictive(X.float(), likelihood)
    assert law.component_distribution.mean.dtype == torch.float64
    assert law.mixture_distribution.probs.dtype == torch.float64


def test_classes_by_dependent_functions_take_all_draws_of_the_head():
    likelihood = Softmax(3).double()
    posterior = on_grids(likelihood)
    number, network = posterior.num_samples, posterior.network
    assert passes(network.head, lambda: posterior.predictive(X, likelihood)) == number > 1
    assert passes(network.body, lambda: posterior.predictive(X, likelihood)) == 1


def test_classes_of_a_plain_network_are_not_averaged():
    likelihood = Softmax(3).double()
    network = Network(nn.Linear(2, 4), DroppedWeights(4, 3, 1.0)).double()
    network.head.draw_start(torch.Generator().manual_seed(0))
    posterior = NetworkModel(network, likelihood, num_inputs=2).new_posterior()
    found = posterior.predictive(X, likelihood).probs
    torch.testing.assert_close(found, posterior.network(X).softmax(1), rtol=1e-14, atol=0)


def with_masks(likelihood):
    """Two dense layers, the second with masks, in a sequence of sequences."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Sequential(nn.Linear(2, 5), nn.Tanh()),
        nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.Tanh(), DroppedWeights(5, 4))),
        nn.Tanh(),
    )
    head = GPLayer(RBF(), 4, likelihood.num_latents, num_features=10)
    return NetworkModel(Network(body, head), likelihood, num_inputs=2, predict_samples=7).double()


@pytest.mark.parametrize("likelihood", [Gaussian(), Softmax(3)])
def test_layers_before_the_first_random_one_are_evaluated_once(likelihood):
    likelihood = likelihood.double()
    model = with_masks(likelihood)
    posterior = model.new_posterior()
    body = posterior.network.body

    def predict():
        posterior.predictive(X, likelihood)

    assert passes(body[0], predict) == passes(body[1][0], predict) == 1
    assert passes(body[1][1][1], predict) == passes(body[2], predict) == 7
    generator = torch.Generator().manual_seed(0)
    paths = posterior.sample_paths(3, generator=generator)
    assert passes(body[0], lambda: paths(X)) == 1

    rows = []
    hook = model.network.body[0].register_forward_hook(lambda _, x, y: rows.append(len(y)))
    assert model.sample_latents(X, 4).shape[:2] == (4, 6)
    assert model.sample_marginals(X, 4).mean.shape[:2] == (4, 6)
    hook.remove()
    assert rows == [6, 6]


def test_a_sequence_with_a_hook_is_not_taken_apart():
    model = with_masks(Gaussian().double())
    rows = []
    hook = model.network.body.register_forward_hook(lambda _, x, y: rows.append(len(y)))
    model.sample_latents(X, 4)
    assert rows == [24]
    hook.remove()
    hook = model.network.body[0].register_forward_hook(lambda _, x, y: rows.append(len(y)))
    model.sample_latents(X, 4)
    assert rows == [24, 6]
    hook.remove()


def test_draws_are_those_of_passes_through_the_whole_network():
    likelihood = Softmax(3).double()
    posterior = with_masks(likelihood).new_posterior()

    def of_draws(function):
        found = []
        for number in range(7):
            generator = torch.Generator().manual_seed((posterior.seed << 20) + number)
            with draws_of(posterior.network, generator, shared=True):
                found.append(function(X))
        return torch.stack(found)

    means = of_draws(lambda x: posterior.network.marginals(x).mean)
    torch.testing.assert_close(posterior.components(X).mean, means)
    shares = of_draws(posterior.network).softmax(2).mean(0)
    torch.testing.assert_close(posterior.predictive(X, likelihood).probs, shares)


def test_class_probabilities_stay_as_they_are_when_draws_are_fixed():
    """Fixed numbers are of passes for marginals, which do not draw the weights of the head."""
    likelihood = Softmax(3).double()
    posterior = deep(likelihood)
    want = posterior.predictive(X, likelihood).probs
    posterior.fix()
    torch.testing.assert_close(posterior.predictive(X, likelihood).probs, want)


def test_factors_of_fixed_draws_outlive_sampled_functions():
    posterior = DeepSVGP(
        kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=2, num_inducing=3
    ).new_posterior()
    posterior.fix()
    posterior.sample_paths(2, generator=torch.Generator())(X.float())
    assert posterior.network.head._inverse is not None


class Meeting(nn.Module):
    """Waits for another thread to come as far, half a second at most."""

    def __init__(self):
        super().__init__()
        self.barrier = None

    def forward(self, x):
        if self.barrier is not None:
            with suppress(BrokenBarrierError):
                self.barrier.wait(0.5)
        return x


def test_threads_do_not_take_the_draws_of_each_other():
    meeting = Meeting()
    body = nn.Sequential(
        GPLayer(RBF(), 2, 3, 10, seed=1), meeting, GPLayer(RBF(), 3, 3, 10, seed=2)
    )
    made = NetworkModel(
        Network(body, GPLayer(RBF(), 3, 1, 10)), Gaussian(), num_inputs=2, predict_samples=2
    ).double()
    posterior = made.new_posterior()
    want = posterior.components(X).variance
    posterior.network.body[1].barrier = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda x: posterior.components(x).variance, [X, X]):
            assert torch.equal(found, want)


@pytest.mark.parametrize("likelihood", [Laplace(), GaussianOutputs(2), Softmax(3)])
def test_no_rows_have_a_law(likelihood):
    likelihood = likelihood.double()
    assert deep(likelihood).predictive(X[:0], likelihood).batch_shape == (0,)
