"""Loss and gradient of a step of fixed shapes, recorded once as a CUDA graph and replayed.

A step of SVGP or QSGP launches hundreds of kernels; a replay is a single launch
(``gpx.linalg.replayed``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg.replayed import Record, Replayed, record_cuda_graph
from gpx.methods.base.batch import Batch
from gpx.methods.base.objective import Evidence, Objective

MOST_RECORDED_ROWS = 200_000
"""Above, kernels take longer than their launches, and a recording would only keep its memory."""
Evaluate = Callable[..., tuple[Tensor, Mapping[str, Tensor]]]
"""Maps a batch x (b, d), y (b,) and its random draws to the loss (), with graph, and its parts."""


class Leaves(Protocol):
    """An object in which an evaluation leaves tensors for later in the step."""

    left: Any


@dataclass
class _Outputs:
    """Results of one evaluation.

    Attributes:
        loss (), parts: detached.
        gradients: of the parameters, in order; None for a parameter without one.
        left: value of ``state.left``.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    gradients: list[Tensor | None]
    left: Any


class ReplayedStep:
    """Evaluates a loss and its gradients, by replaying a recording where possible.

    Args:
        evaluate: the loss; see ``Replayed`` for what it may do.
        parameters: to differentiate by; a replay reads their current values. A new recording is
            made when one is replaced.
        record: makes a recording; None to never record.
        owners: modules whose buffers the loss reads. A new recording is made when a buffer is
            replaced, when other parameters require gradients, and when a module changes between
            ``train()`` and ``eval()``.
        state: object in which the evaluation leaves tensors for later in the step.
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
        # functions, as methods would form a reference cycle that keeps the recording
        evaluated = partial(_evaluate, evaluate, self.parameters, state)
        places, changed = partial(_places, self.parameters, owners), partial(_statistics, owners)
        self._replayed = Replayed(evaluated, record, places, changed=changed)

    @property
    def given_up(self) -> str | None:
        """Why steps are not recorded; None if they can be."""
        return self._replayed.given_up

    @property
    def replays(self) -> int:
        """Number of steps that were replayed."""
        return self._replayed.replays

    def __call__(self, *given: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Detached loss and parts; the gradients are left in the parameters."""
        outputs = self._replayed(*given)
        for parameter, gradient in zip(self.parameters, outputs.gradients, strict=True):
            parameter.grad = gradient
        if self.state is not None:
            self.state.left = outputs.left
        return outputs.loss, outputs.parts


def _places(parameters: Sequence[nn.Parameter], owners: Sequence[nn.Module]) -> object:
    """What a recording depends on: parameters with gradients, addresses of all arrays, modes."""
    moving = tuple((p.requires_grad, p.data_ptr()) for p in parameters)
    modes = tuple(module.training for owner in owners for module in owner.modules())
    return moving, modes, tuple(b.data_ptr() for owner in owners for b in owner.buffers())


def _statistics(owners: Sequence[nn.Module]) -> list[Tensor]:
    """Running statistics, which torch's normalisations change in every pass."""
    modules = [module for owner in owners for module in owner.modules()]
    return [b for m in modules if isinstance(m, _NormBase) for b in m.buffers(recurse=False)]


def _evaluate(
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


def worth_recording(objective: Objective[Any], model: Any, num_rows: int) -> bool:
    """Whether steps of so many rows may be recorded, and a replay would be faster."""
    return num_rows <= MOST_RECORDED_ROWS and objective.recordable(model)


def replayed_batches(
    objective: Objective[Any],
    model: Any,
    parameters: Sequence[nn.Parameter],
    loss_of: Callable[[Evidence, Tensor], tuple[Tensor, Mapping[str, Tensor]]],
    generator: torch.Generator | None,
    record: Record | None = record_cuda_graph,
) -> Callable[[Batch], tuple[Tensor, Mapping[str, Tensor]]]:
    """Loss, its parts and gradients of mini-batches, replayed where their sizes were seen before.

    Args:
        objective, model: with ``objective.recordable(model)``.
        parameters: that get gradients.
        loss_of: the loss () and its parts from the evidence of a batch and its x.
        generator: of the draws of a step.
        record: as of ``ReplayedStep``.
    """

    def given(x: Tensor, y: Tensor, *more: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        rows, more = (more[0], more[1:]) if objective.needs_rows else (None, more)
        known = () if model.row_noise is None else more[: len(RowNoise._fields)]
        batch = Batch(x, y, rows, RowNoise(*known) if known else None)
        return loss_of(objective.evidence_given(model, batch, more[len(known) :]), x)

    step = ReplayedStep(given, parameters, record, owners=(model, objective), state=objective)

    def replayed(batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        drawn = objective.step_draws(model, batch.x, generator=generator)
        rows = (batch.rows,) if objective.needs_rows and batch.rows is not None else ()
        return step(batch.x, batch.y, *rows, *(batch.noise or ()), *drawn)

    return replayed
