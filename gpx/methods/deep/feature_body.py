"""Networks whose features are the inputs of a Gaussian process: dense, convolutional, identity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, class_name
from gpx.kernels.convolutional import shape_of_images
from gpx.methods.deep.backbones import Backbone, convolutional_features
from gpx.methods.deep.draws import draws_of
from gpx.methods.deep.weights import DroppedWeights
from gpx.tensor_checks import check_at_least, check_widths

FeatureNetwork = Literal["identity", "dense"] | Backbone | nn.Module
"""The inputs themselves; a dense network; the convolutional ones of ``gpx.methods.deep``; a module
of your own that maps inputs (n, d) to features (n, h)."""

CHUNK = 1024
"""Rows whose features are computed at once outside of training."""

ROUNDING = 100.0
"""Features that vary by less than this number of rounding errors are constant."""


class Standardised(nn.Module):
    """Standardises features with the mean and standard deviation measured before training.

    The identity before ``measure`` is called.

    Args:
        size: number of features.
        by_number: also divide by the square root of their number, so that distances do not grow
            with it; this suits a kernel of all features with a lengthscale of one.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, size: int, by_number: bool) -> None:
        super().__init__()
        self.by_number = by_number
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """(n, h) -> (n, h)."""
        return (x - self.mean) / self.deviation

    @torch.no_grad()
    def measure(self, x: Tensor) -> None:
        """Measure mean and deviation of features x (n, h); constant features get deviation one."""
        self.mean.copy_(x.mean(0))
        spread = x.std(0, correction=0)
        # the mean of equal numbers is rounded, so that their deviation may be above zero
        constant = spread <= ROUNDING * torch.finfo(x.dtype).eps * x.abs().amax(0)
        spread = torch.where(constant, torch.ones_like(spread), spread)
        self.deviation.copy_(spread * x.shape[1] ** 0.5 if self.by_number else spread)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """A context in which all modules of ``network`` are in ``eval()`` mode; then as before."""
    parts = [part for part in network.modules() if part.training]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part in parts:
            part.training = True


class FeatureBody(nn.Module):
    """Maps inputs (n, d) to standardised features (n, h).

    Without gradients the network is in ``eval()`` mode, as in predictions: features that a
    posterior is solved from, and the bound of all data, must not depend on masks or on how rows are
    batched, and must not change running statistics.

    Args:
        network: maps (n, d) to (n, h); None: the inputs themselves, unchanged.
        size: h.
        by_number: see ``Standardised``.
    """

    def __init__(self, network: nn.Module | None, size: int, *, by_number: bool = True) -> None:
        super().__init__()
        self.network = network
        self.size = size
        self.standardised = Standardised(size, by_number)

    def forward(self, x: Tensor) -> Tensor:
        """As the class says."""
        if self.network is None:
            features = x
        elif torch.is_grad_enabled():
            features = self.network(x)
        else:
            with evaluating(self.network):
                features = self.network(x)
        found: Tensor = self.standardised(features)
        return found

    @torch.no_grad()
    def features(self, x: Tensor, generator: torch.Generator | None) -> Iterator[Tensor]:
        """Features of all rows, in blocks."""
        for rows in x.split(CHUNK):
            with draws_of(self, generator):
                found = self(rows)
            yield found

    def measure(self, x: Tensor, generator: torch.Generator) -> None:
        """Measure the present features of x (n, d) for standardisation."""
        if self.network is not None:
            self.standardised.measure(torch.cat(list(self.features(x, generator))))


def feature_body(
    name: FeatureNetwork,
    num_inputs: int,
    *,
    hidden: Sequence[int] = (),
    num_features: int = 2,
    image_shape: Sequence[int] | None = None,
    blocks: int = 5,
    keep: float = 1.0,
    narrow: bool = False,
) -> FeatureBody:
    """Make a feature body by its name, or of a network of your own.

    Args:
        name: ``identity``; ``dense``: rectified linear units and a linear output layer; a
            convolutional network without its dense layers; or a module, which is used as it is,
            trained with the rest and, like all networks, in ``eval()`` mode wherever no gradients
            are computed. Masks of ``nn.Dropout`` come from torch's global generator, not from the
            seed of a run. Of the options below it takes only ``narrow``, which does not add a layer
            then.
        num_inputs: d.
        hidden, num_features: units of the hidden layers and number of outputs of ``dense``.
        image_shape, blocks: of convolutional networks.
        keep: probability that dropout keeps an activation, before every layer but the first; below
            1 weights have priors N(0, I), at 1 they are plain parameters.
        narrow: for functions of one feature each: adds a linear layer of ``num_features`` outputs
            to convolutional networks, and does not divide by the root of the number of features.

    Raises:
        ConfigError: no such network, sizes below one, or a module that does not map (n, d) to
            (n, h) or is combined with ``keep``.
    """
    if isinstance(name, nn.Module):
        if keep < 1.0:
            raise ConfigError(
                f"keep={keep}: masks of weights are of backbone='dense' and others "
                "that are named; a network of your own has the layers that you give it"
            )
        return FeatureBody(name, _num_features(name, num_inputs), by_number=not narrow)
    names = ("identity", "dense", *get_args(Backbone))
    if name not in names:
        raise ConfigError(f"backbone={name}: expected one of {', '.join(names)}, or a torch module")
    if name == "identity":
        return FeatureBody(None, num_inputs)
    if name != "dense":
        shape, prior = shape_of_images(num_inputs, image_shape), keep < 1.0
        network, size = convolutional_features(name, shape, keep, penalty=prior, blocks=blocks)
        if not narrow:
            return FeatureBody(network, size)
        check_at_least(1, num_features=num_features)
        linear = DroppedWeights(size, num_features, keep, bias=True, penalty=prior)
        return FeatureBody(nn.Sequential(network, linear), num_features, by_number=False)
    check_widths("hidden", hidden)
    check_at_least(1, num_inputs=num_inputs, num_features=num_features)
    sizes = [num_inputs, *hidden, num_features]
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] if number else []
        layers.append(
            DroppedWeights(
                inputs,
                outputs,
                keep if number else 1.0,
                bias=True,
                scale=(2.0 / inputs) ** 0.5,
                penalty=keep < 1.0,
            )
        )
    return FeatureBody(nn.Sequential(*layers), num_features, by_number=not narrow)


@torch.no_grad()
def _num_features(network: nn.Module, num_inputs: int) -> int:
    """h of a network that maps (n, d) to (n, h), found on two rows of zeros."""
    own = next(network.parameters(), None)
    try:
        rows = torch.zeros(2, num_inputs) if own is None else own.new_zeros(2, num_inputs)
        with evaluating(network):
            found = network(rows)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"backbone={class_name(network)}: does not take inputs (n, {num_inputs}): {error}"
        ) from error
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"backbone={class_name(network)}: makes {shape} of inputs (2, {num_inputs}), expected "
            "(2, h) for h features; end an image network with nn.Flatten()"
        )
    return found.shape[1]
