"""Deep Gaussian processes with inducing points in every layer, doubly stochastic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.inference.variational import GAUSSIAN, row_scale
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.means.base import Mean
from gpx.methods.base.model import Hyperparameters
from gpx.methods.deep.deep_gp import DeepBody, take_lengthscales
from gpx.methods.deep.feature_model import few_rows
from gpx.methods.deep.inducing_layer import InducingLayer
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.tensor_checks import check_at_least

MOST_WIDTH = 30
"""Functions of a hidden layer where none are asked for, at most."""

DEVIATION = 1e-5**0.5
"""Of q(v) of hidden layers at the start."""


class LinearMap(nn.Module):
    """x -> x P with a fixed matrix P (d, p): the prior mean of a hidden layer.

    The identity with zeros in front where p >= d; otherwise the projection to the p principal
    components of the inputs, once ``measure`` has seen them.
    """

    matrix: Tensor

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        ones = torch.eye(num_inputs, min(num_inputs, num_outputs))
        front = torch.zeros(num_inputs, max(0, num_outputs - num_inputs))
        self.register_buffer("matrix", torch.cat([front, ones], 1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, p)."""
        return x @ self.matrix

    @torch.no_grad()
    def measure(self, x: Tensor) -> None:
        """Principal components of x (n, d), where there are fewer outputs than inputs."""
        inputs, outputs = self.matrix.shape
        if outputs < inputs:
            centred = (x - x.mean(0)).double()
            _, vectors = torch.linalg.eigh(centred.mT @ centred)
            self.matrix.copy_(vectors.flip(1)[:, :outputs])


class DeepSVGP(NetworkModel):
    """A chain of sparse variational Gaussian processes, each with a q(u) of its own.

    f = F_L(... F_1(x)): the marginals of every layer at a row need that row of the layer before
    alone, so that draws pass through it row by row. Hidden layers have a linear prior mean, and
    start as that mean; the last layer then starts as ``SVGP`` does. Depth one is ``SVGP``.

    Args:
        kernel: of every layer at the start; each has its own.
        mean: of the last layer.
        likelihood: any.
        num_inputs: d.
        num_data: n when known; caps the number of inducing points at n.
        depth: number of layers L.
        width: functions of hidden layers; None: d, or 30 where that is less.
        num_inducing: M of every layer.
        warm_start: with a Gaussian likelihood, start q(u) of the last layer at its optimum.
        jitter: as in ``SVGP``.
        predict_samples: draws of the hidden layers that a prediction averages.
        seed: of the draws of predictions.

    Raises:
        ConfigError: sizes below one.

    Cost: O(L (M^3 + p M^2 B)) a step. Source: Salimbeni and Deisenroth, "Doubly stochastic
    variational inference for deep Gaussian processes", NeurIPS 2017.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_inputs: int,
        num_data: int | None = None,
        depth: int = 2,
        width: int | None = None,
        num_inducing: int = 128,
        warm_start: bool = True,
        jitter: float = 1e-6,
        predict_samples: int = 50,
        seed: int = 0,
    ) -> None:
        middle = min(num_inputs, MOST_WIDTH) if width is None else width
        check_at_least(1, depth=depth, width=middle, num_inducing=num_inducing)
        size = num_inducing if num_data is None else min(num_inducing, num_data)
        sizes = [num_inputs, *[middle] * (depth - 1)]
        hidden = [
            InducingLayer(
                kernel, inputs, middle, size, mean=LinearMap(inputs, middle), jitter=jitter
            )
            for inputs in sizes[:-1]
        ]
        head = InducingLayer(
            kernel, sizes[-1], likelihood.num_latents, size, mean=mean, jitter=jitter
        )
        super().__init__(
            Network(DeepBody(hidden, False), head),
            likelihood,
            num_inputs=num_inputs,
            predict_samples=predict_samples,
            seed=seed,
        )
        self.warm_start = warm_start

    @property
    def layers(self) -> list[InducingLayer]:
        """All layers, the first one first."""
        body, head = self.network.body, self.network.head
        assert isinstance(body, DeepBody)
        return [m for m in (*body.layers, head) if isinstance(m, InducingLayer)]

    def hyperparameters(self) -> Hyperparameters:
        """The kernel of the first layer, the mean function of the last, and the likelihood."""
        mean = self.layers[-1].mean
        assert isinstance(mean, Mean)
        return Hyperparameters(self.layers[0].kernel, mean, self.likelihood)

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Place inducing points where the linear maps take the data; start every q(u)."""
        first, *others = self.layers
        for layer in others:
            take_lengthscales(first.kernel, layer.kernel, x.shape[1])
        *hidden, head = self.layers
        few = few_rows(x, generator)
        for layer in hidden:
            assert isinstance(layer.mean, LinearMap)
            layer.mean.measure(few)
            layer.place(few, generator=generator)
            factor = DEVIATION * layer.q.factor()
            layer.q.assign(layer.q.mean, factor)
            few = layer.mean(few)
        head.place(few, generator=generator)
        if self.warm_start and isinstance(self.likelihood, GAUSSIAN):
            inputs = x
            for layer in hidden:
                inputs = layer.mean(inputs)
            scale = row_scale(self.row_noise, self.likelihood)
            parts = [(inputs, y, scale)]
            head.fit(parts, len(x), self.likelihood, noise=scale is None)
