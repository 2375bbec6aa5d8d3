"""Loss and gradient of a fixed-shape step, recorded once as a CUDA graph and replayed.

A step of SVGP is some 160 kernels of a few microseconds each, one of QSGP on sampled functions some
300: launched one by one, a GPU waits for the host most of the time. Recorded, they are one launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gpx.linalg.cholesky import checks_deferred

logger = logging.getLogger(__name__)

EAGER_STEPS = 3
"""Steps before a recording: libraries are loaded and have chosen their algorithms by then."""
MOST_FAILURES = 3
"""Replays in a row whose factorisation failed, after which recording is given up."""

Evaluate = Callable[..., tuple[Tensor, Mapping[str, Tensor]]]
"""Loss () and its parts for a batch x (b, d), y (b,) and what was drawn for it; the loss with its
graph."""


class Leaves(Protocol):
    """What an evaluation leaves for later in the step, in the arrays that it has made."""

    left: Any


@dataclass
class _Outputs:
    """Arrays of a recording, which every replay fills anew.

    Attributes:
        loss (), parts: without graphs.
        gradients: of the parameters, in order; None where there is none.
        failed (): whether a factorisation failed, so that nothing else here is to be used.
        left: what the evaluation left in ``state``.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    gradients: list[Tensor | None]
    failed: Tensor
    left: Any


def recorded(body: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels of ``body`` as a CUDA graph; what comes back launches all of them.

    Raises:
        RuntimeError: an operation of ``body`` cannot be recorded (it waits, or copies from the
            host).
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    replay: Callable[[], None] = graph.replay
    return replay


class ReplayedStep:
    """Evaluates a loss and leaves gradients in its parameters, from a recording where it can.

    The first ``EAGER_STEPS`` of a kind (shapes of what comes in, parameters that move, buffers in
    their places) run as they are; then the step is recorded. A recorded factorisation cannot raise
    its jitter: it notes that it failed, the note is read after the replay, and such a step is
    evaluated again as it is, which raises the jitter or says what is wrong. Gradients of a failed
    replay are never used.

    Whatever ``evaluate`` does must be the same kernels on the same arrays at every step: no
    draws, no state that is replaced rather than changed in place (``Model.fixed_shapes``).

    Args:
        evaluate: the loss.
        parameters: those that it is to be differentiated in; read in place by every replay.
        record: makes a recording; another one in tests.
        owners: modules whose buffers the loss reads: one that is replaced by another array needs
            a new recording.
        state: where the evaluation leaves something for later in the step.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        parameters: Sequence[nn.Parameter],
        record: Callable[[Callable[[], None]], Callable[[], None]] = recorded,
        *,
        owners: Sequence[nn.Module] = (),
        state: Leaves | None = None,
    ) -> None:
        self.owners, self.state = owners, state
        self.evaluate, self.parameters, self.record = evaluate, list(parameters), record
        self.given_up: str | None = None
        self.replays = 0
        self._kind: Any = None
        self._eager, self._failures = 0, 0
        self._replay: Callable[[], None] | None = None
        self._inputs: tuple[Tensor, ...] | None = None
        self._outputs: _Outputs | None = None

    def __call__(self, *given: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss and parts, detached, of a batch and what was drawn; gradients in the parameters."""
        kind = (
            tuple(tensor.shape for tensor in given),
            tuple(p.requires_grad for p in self.parameters),
            tuple(b.data_ptr() for owner in self.owners for b in owner.buffers()),
        )
        if kind != self._kind:
            self._kind, self._eager = kind, 0
            self._replay = self._inputs = self._outputs = None
        if self.given_up is None and self._replay is None and self._eager >= EAGER_STEPS:
            self._start(given)
        if self._replay is not None:
            found = self._replayed(given)
            if found is not None:
                return found
        self._eager += 1
        return self._as_it_is(*given)

    def _as_it_is(self, *given: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        for parameter in self.parameters:
            parameter.grad = None
        loss, parts = self.evaluate(*given)
        loss.backward()
        return loss.detach(), {name: part.detach() for name, part in parts.items()}

    def _start(self, given: tuple[Tensor, ...]) -> None:
        """Record the step, or say why not."""
        self._inputs = inputs = tuple(tensor.clone() for tensor in given)

        def body() -> None:
            with checks_deferred() as checks:
                loss, parts = self._as_it_is(*inputs)
            failed = [check.reshape(1) for check in checks]
            none = torch.zeros(1, dtype=torch.bool, device=loss.device)
            gradients = [parameter.grad for parameter in self.parameters]
            failed_at_all = torch.cat([none, *failed]).any()
            left = None if self.state is None else self.state.left
            self._outputs = _Outputs(loss, dict(parts), gradients, failed_at_all, left)

        try:
            self._replay = self.record(body)
        except RuntimeError as error:
            self._give_up(f"the step cannot be recorded ({str(error).splitlines()[0]})")

    def _replayed(self, given: tuple[Tensor, ...]) -> tuple[Tensor, Mapping[str, Tensor]] | None:
        """The step from the recording; None where a factorisation failed."""
        assert self._replay is not None
        assert self._inputs is not None
        for held, tensor in zip(self._inputs, given, strict=True):
            held.copy_(tensor)
        self._replay()
        outputs = self._outputs
        assert outputs is not None
        if bool(outputs.failed):
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._give_up("its factorisations need jitter that a recording cannot choose")
            return None
        self._failures = 0
        self.replays += 1
        for parameter, gradient in zip(self.parameters, outputs.gradients, strict=True):
            parameter.grad = gradient
        if self.state is not None:
            self.state.left = outputs.left
        return outputs.loss, outputs.parts

    def _give_up(self, reason: str) -> None:
        self.given_up = reason
        self._replay = self._inputs = self._outputs = None
        logger.warning("no CUDA graph: %s; steps go on without", reason)
