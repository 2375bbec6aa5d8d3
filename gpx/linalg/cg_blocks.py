"""Blocks of steps of conjugate gradients, recorded once a solve and replayed.

A step is some 25 kernels of a few microseconds beside its product, and nothing in it asks the host:
where vectors are short, a GPU waits for launches most of the time. Between two looks at which sides
go on, all steps are one launch.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from gpx.linalg.cg_iteration import CGIteration
from gpx.linalg.cholesky import noted_checks
from gpx.linalg.processes import sharing
from gpx.linalg.replayed import EAGER_STEPS, Recordings, Replayed, solve_recordings
from gpx.linalg.step_records import Records


class _Block(NamedTuple):
    """What k steps leave beside the vectors, which they change in place.

    Attributes:
        gamma, slope, measure, active (..., c): of the state after them.
        measures, actives, curvatures, step_sizes, ratios (k, ..., c): kept of each.
    """

    gamma: Tensor
    slope: Tensor
    measure: Tensor
    active: Tensor
    measures: Tensor
    actives: Tensor
    curvatures: Tensor
    step_sizes: Tensor
    ratios: Tensor


STATE = ("gamma", "slope", "measure", "active")
KEPT = ("measures", "actives", "curvatures", "step_sizes", "ratios")
"""Attributes of ``CGIteration`` for the fields of ``_Block``, in its order: current values, and
records with a row for each step."""


class CGBlocks:
    """Makes steps of an iteration by blocks, from a recording where it can.

    The first blocks of a solve run as they are, so that short solves never pay for a recording. The
    recording ends with the solve, and with it the memory of one block's temporaries: another
    operator, or the same one with other hyperparameters, is recorded anew.

    Args:
        state: the iteration, begun.
        steps: in a block.
        recordings: how, and where to note that a solve of this kind cannot be recorded.
    """

    def __init__(self, state: CGIteration, steps: int, recordings: Recordings) -> None:
        self.state, self.steps, self._recordings = state, steps, recordings
        # not its own methods, which would keep the vectors and the operator until a collection
        made, places = partial(_made, state, steps), partial(_places, state)
        self._replayed = Replayed(made, recordings.record, places, eager=0)
        self._eager = 1  # so many steps are made one by one before the first block

    @property
    def replays(self) -> int:
        """Blocks that came from a recording."""
        return self._replayed.replays

    @property
    def given_up(self) -> str | None:
        """Why blocks run as they are; None where they need not."""
        return self._replayed.given_up

    def advance(self) -> None:
        """The next ``steps`` steps: the same numbers, to the bit, as one by one."""
        state = self.state
        if self._eager < EAGER_STEPS or self.given_up is not None:
            self._eager += 1
            for _ in range(self.steps):
                state.step()
            return
        products = state.products + self.steps
        made = self._replayed(state.gamma, state.slope, state.active)
        for name, value in zip(STATE, made, strict=False):
            setattr(state, name, value)
        for name, rows in zip(KEPT, made[len(STATE) :], strict=True):
            getattr(state, name).extend(rows)
        state.products = products  # a replay calls no function that could count
        if self.given_up is not None:
            self._recordings.refused[_kind(state)] = self.given_up

    def release(self) -> None:
        """Let go of the recording, at the end of the solve."""
        self._replayed.release()


def _made(state: CGIteration, steps: int, gamma: Tensor, slope: Tensor, active: Tensor) -> _Block:
    """So many steps from there: vectors are changed in place, and nothing else of the iteration."""
    noted = noted_checks()
    checks = len(noted or ())
    before = {name: getattr(state, name) for name in (*STATE, *KEPT)}
    for name in KEPT:
        setattr(state, name, Records(state.active if name == "actives" else state.zero))
    state.gamma, state.slope, state.active = gamma, slope, active
    try:
        for _ in range(steps):
            state.step()
        if noted is not None and len(noted) > checks:  # vectors that have moved cannot go back
            raise RuntimeError("a product or a preconditioner factorises a matrix every time")
        left = [getattr(state, name) for name in STATE]
        return _Block(*left, *(getattr(state, name).stacked() for name in KEPT))
    finally:  # a recording that fails has computed nothing
        for name, value in before.items():
            setattr(state, name, value)


def _places(state: CGIteration) -> object:
    return tuple(vectors.data_ptr() for vectors in (state.x, state.r, state.p))


def blocks_of(state: CGIteration, steps: int) -> CGBlocks | None:
    """Blocks of so many steps; None where steps are better made one by one.

    So they are on a CPU, where the host looks after every step, where processes share the products
    (they talk to one another inside), and where a solve of this kind could not be recorded.
    """
    recordings = solve_recordings()
    wanted = state.rhs.is_cuda and steps > 1 and sharing().count == 1
    if not wanted or recordings.record is None or _kind(state) in recordings.refused:
        return None
    return CGBlocks(state, steps, recordings)


def _kind(state: CGIteration) -> Hashable:
    """Operator, preconditioner and shapes by name: what a refusal is remembered by."""
    names = (_name(state.matmul), _name(state.preconditioner))
    return (*names, state.rhs.shape, state.rhs.dtype, state.product_dtype)


def _name(function: object) -> str:
    owner = getattr(function, "__self__", function)
    whole = getattr(function, "__qualname__", "")
    return f"{type(owner).__module__}.{type(owner).__qualname__} {whole}"
