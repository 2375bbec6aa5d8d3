"""Where the random layers of a network take their numbers from, without a global switch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpx.methods.base.posterior import Marginals


class Draws(NamedTuple):
    """Randomness of one pass through a network.

    Attributes:
        generator: source; None: torch's global one, as its own dropout has.
        shared: one draw of all weights for all rows, so that the pass is a function; otherwise
            rows are drawn independently of one another, which has less noise in training.
        joint: with ``shared``, whether values at several rows must have the joint law of q. A layer
            of weights has it; one of inducing points is as far from its mean at every row, in
            standard deviations, where that is not asked: then its marginals are exact.
        record: takes down all numbers in the order drawn; None: nobody wants them.
        known: numbers so taken down, which are given again; None: new ones are drawn.
    """

    generator: torch.Generator | None = None
    shared: bool = False
    joint: bool = False
    record: list[Tensor] | None = None
    known: Iterator[Tensor] | None = None

    def normals(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normals in the dtype and on the device of ``like``."""
        return self._drawn(lambda: self._normals(shape, like))

    def _normals(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return self._empty(shape, like).normal_(generator=self.generator).to(like.device)

    def kept(self, shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor:
        """Ones with ``probability``, else zeros, in the dtype and on the device of ``like``."""
        return self._drawn(lambda: self._kept(shape, probability, like))

    def _kept(self, shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor:
        images = len(shape) == 4
        if images:  # channels last, as images lie on a CPU; on every device, for the same draws
            shape = (shape[0], *shape[2:], shape[1])
        # a quarter of the time of torch.bernoulli
        uniform = self._empty(shape, like).uniform_(generator=self.generator)
        kept = uniform.lt_(probability).to(like.device)
        return kept.permute(0, 3, 1, 2) if images else kept

    def _drawn(self, new: Callable[[], Tensor]) -> Tensor:
        if self.known is not None:
            return next(self.known)
        found = new()
        if self.record is not None:
            self.record.append(found)
        return found

    def _empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        device = like.device if self.generator is None else self.generator.device
        return torch.empty(shape, dtype=like.dtype, device=device)


class RandomLayer(nn.Module, ABC):
    """A layer with a distribution q over its weights, random at training and at prediction.

    ``eval()`` does not silence it. It goes into any torch network; ``draws_of`` says where a pass
    takes its random numbers from, and without that they are torch's global ones, row by row.
    """

    draws = Draws()
    known_kl = True
    """Whether ``kl`` is the divergence itself, and not one up to a constant or none at all."""

    @property
    def random(self) -> bool:
        """Whether draws differ: not where nothing is masked, and there is no q."""
        return True

    def hold(self) -> None:
        """Keep what all passes at the same parameters need, until ``release``; see ``held``."""

    def release(self) -> None:
        """Drop what ``hold`` kept."""

    def draw_start(self, generator: torch.Generator) -> None:
        """Draw where its parameters begin. Default: they are where the constructor put them."""

    def drawn(self, law: Marginals, *leading: int) -> Tensor:
        """Independent draws of normals of any shape, with further ``leading`` dimensions."""
        noise = self.draws.normals((*leading, *law.mean.shape), law.mean)
        return law.mean + deviation(law.variance) * noise

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(q || p) of its own weights in nats, up to a constant where its class says so; ()."""


def deviation(variance: Tensor) -> Tensor:
    """Square roots of variances, any shape.

    Their gradient is zero where a variance is zero, as rounding leaves it at inducing points of a
    narrow q: the square root's own is infinite there, and makes NaN of what it is multiplied by.
    """
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


def repeated(network: nn.Module, x: Tensor, num: int) -> Tensor:
    """``num`` passes of x (n, d), in which rows are independent of one another: (num, n, p)."""
    found: Tensor = network(x.repeat(num, 1))
    return found.view(num, len(x), -1)


def random_layers(network: nn.Module) -> list[RandomLayer]:
    """All random layers of ``network``, in order of registration, each once."""
    return [layer for layer in network.modules() if isinstance(layer, RandomLayer)]


def is_random(network: nn.Module) -> bool:
    """Whether two passes through ``network`` differ."""
    return any(layer.random for layer in random_layers(network))


@contextmanager
def held(network: nn.Module) -> Iterator[None]:
    """Inside, parameters stay and no gradients are taken: layers factorise once, not at a pass."""
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
    """Inside, the random layers of ``network`` draw from ``generator``; see ``Draws``.

    With ``shared`` and a generator of the same seed every pass is the same function.
    """
    layers = random_layers(network)
    before = [layer.draws for layer in layers]
    try:
        for layer in layers:
            layer.draws = Draws(generator, shared, joint, record, known)
        yield
    finally:
        for layer, draws in zip(layers, before, strict=True):
            layer.draws = draws
