"""Random layers of networks, and control of where they take their random numbers from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpx.methods.base.posterior import Marginals

Draw = Callable[[torch.Generator | None], Tensor]
"""Draws the numbers of one place in a pass from a generator."""


class Draws(NamedTuple):
    """Randomness of one pass through a network.

    Attributes:
        generator: source of random numbers; None: torch's global generator.
        shared: one draw of all weights for all rows, so that the pass is a function of x; otherwise
            rows are drawn independently, which gives less noisy gradients.
        joint: with ``shared``, whether values at several rows must have the joint distribution of
            q. Layers of weights always have it. Layers with inducing points otherwise deviate from
            their mean by the same number of standard deviations at every row, so that only the
            marginals are exact.
        record: list to which all random numbers are appended; None: not recorded.
        known: recorded numbers to use instead of new ones; None: new ones are drawn.
        plan: list to which the functions that draw them are appended; None: not noted.
    """

    generator: torch.Generator | None = None
    shared: bool = False
    joint: bool = False
    record: list[Tensor] | None = None
    known: Iterator[Tensor] | None = None
    plan: list[Draw] | None = None

    def normals(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normals with the dtype and device of ``like``."""
        return self._draw(partial(_normals, shape, like.dtype, like.device))

    def mask(self, shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor:
        """Ones with ``probability``, otherwise zeros, with the dtype and device of ``like``."""
        return self._draw(partial(_mask, shape, probability, like.dtype, like.device))

    def _draw(self, new: Draw) -> Tensor:
        if self.known is not None:
            return next(self.known)
        found = new(self.generator)
        if self.record is not None:
            self.record.append(found)
        if self.plan is not None:
            self.plan.append(new)
        return found


def _normals(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor:
    return _empty(shape, dtype, device, generator).normal_(generator=generator).to(device)


def _mask(
    shape: tuple[int, ...],
    probability: float,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor:
    images = len(shape) == 4
    if images:  # channels last, the layout of images on CPUs; the draws are then the same
        shape = (shape[0], *shape[2:], shape[1])
    # four times as fast as torch.bernoulli
    uniform = _empty(shape, dtype, device, generator).uniform_(generator=generator)
    mask = uniform.lt_(probability).to(device)
    return mask.permute(0, 3, 1, 2) if images else mask


def _empty(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None,
) -> Tensor:
    """An array on the device of the generator, which draws nowhere else."""
    return torch.empty(shape, dtype=dtype, device=device if generator is None else generator.device)


class RandomLayer(nn.Module, ABC):
    """A layer with a distribution q over its weights, random in training and prediction.

    ``eval()`` does not disable the randomness. The layer can be used in any torch network.
    ``draws_of`` sets where a pass takes its random numbers from; by default it is torch's global
    generator, independently for each row.
    """

    draws = Draws()
    known_kl = True
    """Whether ``kl`` is the divergence itself, not only up to a constant."""
    repeats = True
    """Whether every pass runs the same operations (``Model.fixed_shapes``)."""

    @property
    def random(self) -> bool:
        """Whether draws differ; False without masks and without q."""
        return True

    def hold(self) -> None:
        """Cache what is the same in all passes until ``release``; see ``held``."""

    def release(self) -> None:
        """Drop what ``hold`` has cached."""

    def draw_start(self, generator: torch.Generator) -> None:
        """Draw initial parameters; by default they stay as constructed."""

    def draw_from(self, marginals: Marginals, *leading: int) -> Tensor:
        """Independent draws of normals of any shape, with further ``leading`` dimensions."""
        noise = self.draws.normals((*leading, *marginals.mean.shape), marginals.mean)
        return marginals.mean + deviation(marginals.variance) * noise

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(q || p) of its own weights in nats (), up to a constant unless ``known_kl``."""


def deviation(variance: Tensor) -> Tensor:
    """Square roots of variances, any shape.

    Their gradient is zero where a variance is zero, which happens by rounding at inducing points of
    a narrow q. There the gradient of the plain square root is infinite and would give NaN.
    """
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


def repeated(network: nn.Module, x: Tensor, num: int) -> Tensor:
    """``num`` passes of x (n, ...) with independent rows: (num, n, p)."""
    found: Tensor = network(copies(x, num))
    return found.view(num, len(x), -1)


def copies(x: Tensor, num: int) -> Tensor:
    """x (n, ...) ``num`` times, one below the other, in the memory format of x."""
    return torch.cat([x] * num) if num > 1 else x


def random_layers(network: nn.Module) -> list[RandomLayer]:
    """All random layers of ``network``, in order of registration, each once."""
    return [layer for layer in network.modules() if isinstance(layer, RandomLayer)]


def is_random(network: nn.Module) -> bool:
    """Whether two passes through ``network`` differ."""
    return any(layer.random for layer in random_layers(network))


def split_at_draws(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """What a sequence of layers does before the first random one, and the rest.

    A sequence with hooks of its own is not taken apart: they would not be called.
    """
    if not is_random(network):
        return network, nn.Sequential()
    hooked = network._forward_hooks or network._forward_pre_hooks
    if type(network) is not nn.Sequential or hooked:
        return nn.Sequential(), network
    layers = list(network)
    place = next(i for i, layer in enumerate(layers) if is_random(layer))
    fixed, drawn = split_at_draws(layers[place])
    return nn.Sequential(*layers[:place], fixed), nn.Sequential(drawn, *layers[place + 1 :])


@contextmanager
def held(network: nn.Module) -> Iterator[None]:
    """A context without gradients or parameter changes, in which layers factorise only once."""
    layers = random_layers(network)
    try:
        for layer in layers:
            layer.hold()
        yield
    finally:
        for layer in layers:
            layer.release()


def total_kl(network: nn.Module) -> Tensor:
    """Sum of the divergences of all random layers of ``network`` in nats; ()."""
    found = [layer.kl() for layer in random_layers(network)]
    return torch.stack(found).sum() if found else torch.zeros(())


@contextmanager
def draws_of(
    network: nn.Module,
    generator: torch.Generator | None,
    *,
    shared: bool = False,
    joint: bool = False,
    record: list[Tensor] | None = None,
    known: Iterator[Tensor] | None = None,
) -> Iterator[None]:
    """A context in which the random layers of ``network`` draw from ``generator``; see ``Draws``.

    With ``shared``, passes with generators of the same seed are the same function.
    """
    with drawing(network, Draws(generator, shared, joint, record, known)):
        yield


@contextmanager
def drawing(network: nn.Module, draws: Draws) -> Iterator[None]:
    """A context in which the random layers of ``network`` take their numbers from ``draws``."""
    layers = random_layers(network)
    before = [layer.draws for layer in layers]
    try:
        for layer in layers:
            layer.draws = draws
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.draws = own
