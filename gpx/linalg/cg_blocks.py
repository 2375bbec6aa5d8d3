"""Blocks of steps of conjugate gradients, recorded as a CUDA graph once per solve and replayed.

A step is some 25 kernels of a few microseconds beside its product, and none of them waits for the
host: where vectors are short, a GPU mostly waits for launches. With a graph, all steps between two
convergence checks are one launch. For a GPU only.
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
    """Result of k steps, beside the vectors, which the steps change in place.

    Attributes:
        gamma, slope, measure, active (..., c): the state after the steps.
        measures, actives, curvatures, step_sizes, ratios (k, ..., c): records of every step.
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
    """Runs the steps of an iteration in blocks, replayed from a recording where possible.

    The first blocks of a solve run unrecorded, so that short solves never pay for a recording. The
    recording and the memory of its temporaries are released at the end of the solve: another
    operator, or the same one with other hyperparameters, is recorded anew.

    Args:
        state: the iteration, after ``begin``.
        steps: steps per block.
        recordings: makes the recording, and notes the kinds of solve that cannot be recorded.
    """

    def __init__(self, state: CGIteration, steps: int, recordings: Recordings) -> None:
        self.state, self.steps, self._recordings = state, steps, recordings
        # functions, not bound methods: a reference cycle would keep the vectors and the operator
        # alive until the garbage collector runs
        run, addresses = partial(_run_steps, state, steps), partial(_addresses, state)
        self._replayed = Replayed(run, recordings.record, addresses, eager=0)
        self._eager = 1  # blocks run unrecorded so far; the caller has made the first one

    @property
    def replays(self) -> int:
        """Number of blocks that were replayed."""
        return self._replayed.replays

    @property
    def given_up(self) -> str | None:
        """Why blocks are not recorded; None while they may be."""
        return self._replayed.given_up

    def advance(self) -> None:
        """The next ``steps`` steps, with results bit-identical to single steps."""
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
            self._recordings.refused[_solve_kind(state)] = self.given_up

    def release(self) -> None:
        """Release the recording, at the end of the solve."""
        self._replayed.release()


def _run_steps(
    state: CGIteration, steps: int, gamma: Tensor, slope: Tensor, active: Tensor
) -> _Block:
    """Run ``steps`` steps; of the iteration only the vectors are changed, in place."""
    noted = noted_checks()
    checks = len(noted or ())
    before = {name: getattr(state, name) for name in (*STATE, *KEPT)}
    for name in KEPT:
        setattr(state, name, Records(state.active if name == "actives" else state.zero))
    state.gamma, state.slope, state.active = gamma, slope, active
    try:
        for _ in range(steps):
            state.step()
        if noted is not None and len(noted) > checks:
            # a failed factorisation means a repeated call, but the vectors have already changed
            raise RuntimeError("a product or a preconditioner factorises a matrix every time")
        left = [getattr(state, name) for name in STATE]
        return _Block(*left, *(getattr(state, name).stacked() for name in KEPT))
    finally:  # a recording only captures the kernels; the state must be as before
        for name, value in before.items():
            setattr(state, name, value)


def _addresses(state: CGIteration) -> object:
    return tuple(vectors.data_ptr() for vectors in (state.x, state.r, state.p))


def make_blocks(state: CGIteration, steps: int) -> CGBlocks | None:
    """Blocks of ``steps`` steps; None where single steps are used.

    These are on a CPU, where convergence is checked after every step; where processes share the
    products and communicate within them; and where a solve of this kind could not be recorded.
    """
    recordings = solve_recordings()
    wanted = state.rhs.is_cuda and steps > 1 and sharing().count == 1
    if not wanted or recordings.record is None or _solve_kind(state) in recordings.refused:
        return None
    return CGBlocks(state, steps, recordings)


def _solve_kind(state: CGIteration) -> Hashable:
    """Names of operator and preconditioner, and shapes: the key under which a refusal is stored."""
    names = (_name(state.matmul), _name(state.preconditioner))
    return (*names, state.rhs.shape, state.rhs.dtype, state.product_dtype)


def _name(function: object) -> str:
    owner = getattr(function, "__self__", function)
    whole = getattr(function, "__qualname__", "")
    return f"{type(owner).__module__}.{type(owner).__qualname__} {whole}"
