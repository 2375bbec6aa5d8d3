"""Loss and gradient of a fixed-shape step, recorded once as a CUDA graph and replayed.

A step of SVGP is some 140 kernels, one of QSGP on sampled functions some 300; replayed they are one
launch (``gpx.linalg.replayed``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from gpx.linalg.replayed import Record, Replayed, record_cuda_graph

Evaluate = Callable[..., tuple[Tensor, Mapping[str, Tensor]]]
"""Loss () and its parts for a batch x (b, d), y (b,) and what was drawn for it; the loss with its
graph."""


class Leaves(Protocol):
    """What an evaluation leaves for later in the step, in the arrays that it has made."""

    left: Any


@dataclass
class _Outputs:
    """What an evaluation has made.

    Attributes:
        loss (), parts: without graphs.
        gradients: of the parameters, in order; None where there is none.
        left: what the evaluation left in ``state``.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    gradients: list[Tensor | None]
    left: Any


class ReplayedStep:
    """Evaluates a loss and leaves gradients in its parameters, from a recording where it can.

    Args:
        evaluate: the loss; see ``Replayed`` for what it may do.
        parameters: those that it is to be differentiated in; read in place by every replay.
        record: makes a recording; another one in tests, None for none.
        owners: modules whose buffers the loss reads: one that is replaced by another array needs
            a new recording, as other parameters that move do.
        state: where the evaluation leaves something for later in the step.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        parameters: Sequence[nn.Parameter],
        record: Record | None = record_cuda_graph,
        *,
        owners: Sequence[nn.Module] = (),
        state: Leaves | None = None,
    ) -> None:
        self.parameters, self.state = list(parameters), state
        # not its own methods, which would keep the recording until a collection of cycles
        evaluated = partial(_evaluated, evaluate, self.parameters, state)
        self._replayed = Replayed(evaluated, record, partial(_places, self.parameters, owners))

    @property
    def given_up(self) -> str | None:
        """Why steps run as they are; None where they need not."""
        return self._replayed.given_up

    @property
    def replays(self) -> int:
        """Steps that came from a recording."""
        return self._replayed.replays

    def __call__(self, *given: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss and parts, detached, of a batch and what was drawn; gradients in the parameters."""
        outputs = self._replayed(*given)
        for parameter, gradient in zip(self.parameters, outputs.gradients, strict=True):
            parameter.grad = gradient
        if self.state is not None:
            self.state.left = outputs.left
        return outputs.loss, outputs.parts


def _places(parameters: Sequence[nn.Parameter], owners: Sequence[nn.Module]) -> object:
    moving = tuple(p.requires_grad for p in parameters)
    return moving, tuple(b.data_ptr() for owner in owners for b in owner.buffers())


def _evaluated(
    evaluate: Evaluate, parameters: Sequence[nn.Parameter], state: Leaves | None, *given: Tensor
) -> _Outputs:
    for parameter in parameters:
        parameter.grad = None
    loss, parts = evaluate(*given)
    loss.backward()
    return _Outputs(
        loss.detach(),
        {name: part.detach() for name, part in parts.items()},
        [parameter.grad for parameter in parameters],
        None if state is None else state.left,
    )
