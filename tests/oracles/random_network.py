"""A model without a kernel: a layer of fixed random units, and a Gaussian over their weights."""

import torch

from gpx.errors import ShapeError
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Marginals, Posterior
from gpx.methods.sparse.svgp import BoundTerms


class RandomNetwork(Model):
    """f(x) = tanh(x A + b)^T w, w ~ N(0, I) a priori and N(mu, diag(s)^2) a posteriori."""

    def __init__(self, *, likelihood, num_inputs, num_units=20):
        super().__init__()
        self.likelihood = likelihood
        draws = torch.Generator().manual_seed(0)
        self.register_buffer("layer", torch.randn(num_inputs + 1, num_units, generator=draws))
        self.weight_mean = torch.nn.Parameter(torch.zeros(num_units))
        self.log_scale = torch.nn.Parameter(torch.zeros(num_units))

    def check(self, x):
        if x.shape[1] + 1 != self.layer.shape[0]:
            raise ShapeError(f"RandomNetwork is made for {self.layer.shape[0] - 1} inputs")

    def bound_terms(self, x):
        square = (2.0 * self.log_scale).exp()
        kl = 0.5 * (square + self.weight_mean.square() - 1.0).sum() - self.log_scale.sum()
        mean, variance = moments(self.layer, self.weight_mean, square, x)
        return BoundTerms(Marginals(mean, variance), kl, None)

    @torch.no_grad()
    def condition(self, x, y):
        posterior = self.new_posterior()
        square = (2.0 * self.log_scale).exp()
        posterior.keep(x, layer=self.layer, weight_mean=self.weight_mean, square=square)
        return posterior

    def new_posterior(self):
        return RandomNetworkPosterior()


class RandomNetworkPosterior(Posterior):
    """Marginals of a trained ``RandomNetwork``."""

    data_sized = ("layer", "weight_mean", "square")

    def __init__(self):
        super().__init__()
        self.register_data_sized()

    @torch.no_grad()
    def predict(self, x):
        return Marginals(*moments(self.layer, self.weight_mean, self.square, x))

    def sample_paths(self, num, *, generator):
        weights = torch.randn(num, len(self.square), generator=generator).to(self.square)
        weights = self.weight_mean + weights * self.square.sqrt()
        return lambda x: weights @ units(self.layer, x).mT


def units(layer, x):
    """(n, num_units)."""
    return (x @ layer[:-1] + layer[-1]).tanh()


def moments(layer, mean, square, x):
    """Of f at x (n, d): (n,) each."""
    phi = units(layer, x)
    return phi @ mean, phi.square() @ square
