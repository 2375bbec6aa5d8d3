"""Deep Gaussian processes with inducing points in every layer (doubly stochastic)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.inference.variational import GAUSSIAN, row_scale
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.means.base import Mean
from gpx.methods.base.model import Hyperparameters
from gpx.methods.deep.deep_gp import DeepBody, copy_kernel_parameters
from gpx.methods.deep.feature_model import few_rows
from gpx.methods.deep.inducing_layer import InducingLayer
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.tensor_checks import check_at_least

MAX_DEFAULT_WIDTH = 30
"""Largest default number of functions of a hidden layer."""

HIDDEN_DEVIATION = 1e-5**0.5
"""Initial standard deviation of q(v) of hidden layers."""


class LinearMap(nn.Module):
    """x -> x P with a fixed matrix P (d, p): the prior mean of a hidden layer.

    If p >= d, the identity after columns of zeros; otherwise the projection to the p principal
    components of the inputs given to ``measure``.
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
        """Set P to the principal components of x (n, d), if there are fewer outputs than inputs."""
        inputs, outputs = self.matrix.shape
        if outputs < inputs:
            centred = (x - x.mean(0)).double()
            _, vectors = torch.linalg.eigh(centred.mT @ centred)
            self.matrix.copy_(vectors.flip(1)[:, :outputs])


class DeepSVGP(NetworkModel):
    """A chain of sparse variational Gaussian processes, each with its own q(u).

    f = F_L(... F_1(x)). The marginals of a layer at a row depend only on the same row of the layer
    before, so that draws pass through the layers row by row. Hidden layers have a linear prior mean
    and start close to it; the last layer starts as in ``SVGP``. Depth one is ``SVGP``.

    Args:
        kernel: initial kernel of every layer; each layer gets a copy.
        mean: of the last layer.
        likelihood: any.
        num_inputs: d.
        num_data: n if known; limits the number of inducing points to n.
        depth: number of layers L.
        width: number of functions of a hidden layer; None: d, at most 30.
        num_inducing: M of every layer.
        warm_start: with a Gaussian likelihood, start q(u) of the last layer at its optimum.
        jitter: as in ``SVGP``.
        predict_samples: number of draws of the hidden layers that a prediction averages.
        seed: of the draws in predictions.

    Raises:
        ConfigError: sizes below one.

    Cost: O(L (M^3 + p M^2 B)) per step. Source: Salimbeni and Deisenroth, "Doubly stochastic
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
        middle = min(num_inputs, MAX_DEFAULT_WIDTH) if width is None else width
        check_at_least(1, depth=depth, width=middle, num_inducing=num_inducing, num_data=num_data)
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
        """All layers in order."""
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
        """Place the inducing points of each layer among the linearly mapped data; start q(u)."""
        self.likelihood.start(y)
        first, *others = self.layers
        for layer in others:  # if wide enough, their last d inputs start as those of the model
            copy_kernel_parameters(first.kernel, layer.kernel, x.shape[1])
        *hidden, head = self.layers
        few = few_rows(x, generator)
        for layer in hidden:
            assert isinstance(layer.mean, LinearMap)
            layer.mean.measure(few)
            layer.place(few, generator=generator)
            factor = HIDDEN_DEVIATION * layer.q.factor()
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
