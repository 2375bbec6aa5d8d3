"""Kernel launches and host waits of training steps on the CUDA branch, counted without a GPU.

A run trains on tensors that claim to be on CUDA (``claimed_cuda``), without compiled kernels, and
every operation that would be a launch there is counted; views, bookkeeping and what the host
computes for itself are none. Not seen: time, what torch's optimisers do to several tensors in one
launch, waits inside operations.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from claimed_cuda import claimed_cuda, on_host
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from recordings import Capture
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.linalg.replayed import Replayed
from gpx.runs import RunFolder, run
from gpx.training.session import Session

SILENT = {
    "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "detach", "detach_",
    "lift_fresh", "resize_", "set_", "is_same_size", "_local_scalar_dense", "alias", "unbind",
    "sym_size", "_record_function_enter_new", "_record_function_exit",
    "_unsafe_view",
}  # fmt: skip
"""Operations that launch nothing and are no views."""

H200 = 139 * 2**30
"""Bytes of the device that is imagined: chunks are as long as they would be there."""

QUICK = [
    "trainer.baselines=false", "init.num_points=100", "init.max_evaluations=3",
    "trainer.tensorboard=false", "trainer.figures=false", "trainer.device=cuda", "data=robot_arm",
    "trainer.log_every=1000", "trainer.eval_every=0",
]  # fmt: skip


class Launches(TorchDispatchMode):
    """Counts operations by name, and with ``places`` by the line of gpx that asks for them."""

    def __init__(self, places: bool = False) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.places = places

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled here, and to be skipped takes longer than most operations."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if not getattr(function, "is_view", False) and name not in SILENT and not on_host():
            self.counts[_place() if self.places else name] += 1
        return function(*args, **(kwargs or {}))


def _place() -> str:
    own = [f for f in traceback.extract_stack() if "/gpx/" in f.filename]
    if not own:
        return "torch (backward pass)"
    return f"{own[-1].filename.rsplit('/gpx/', 1)[-1]}:{own[-1].lineno} {own[-1].line}"


class Step(NamedTuple):
    """What one training step launches, and where it waits.

    Attributes:
        launches: number of operations by name or place.
        waits: how often each line of gpx waits for a result.
    """

    launches: Counter[str]
    waits: Counter[str]


class _LastStep(Exception):
    """Ends a run that has made its steps: predictions and metrics are not counted."""


def steps_of(*options: str, places: bool = False, recorded: bool = False) -> list[Step]:
    """Launches and waits of every step of a run but the first, by its ``options``.

    With ``recorded``, what a GPU records as a graph is one launch from the fourth time on
    (``recordings.Capture`` refuses what a GPU refuses), named "graph".
    """
    warnings.filterwarnings("ignore", message=".*synchron.*")
    marks: list[Step] = []
    counted = Launches(places)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        GlobalHydra.instance().clear()
        stack.enter_context(
            initialize_config_dir(str(Path(__file__).parents[2] / "configs"), version_base="1.3")
        )
        config = compose("train", overrides=[*QUICK, *options])
        waits = stack.enter_context(claimed_cuda(H200))
        ended = Session.end_step

        def mark(self: Session) -> None:
            if not marks:  # what comes before would only be counted for nothing, and takes longer
                stack.enter_context(counted)
            marks.append(Step(Counter(counted.counts), Counter(waits)))
            if self.step >= self.max_steps:
                raise _LastStep
            ended(self)

        if recorded:
            stack.enter_context(mock.patch.object(Replayed, "__init__", _captured(waits, counted)))
        stack.enter_context(mock.patch.object(Session, "end_step", mark))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        with contextlib.suppress(_LastStep):
            run(config, RunFolder(Path(folder) / "run"))
    return [
        Step(after.launches - before.launches, after.waits - before.waits)
        for before, after in itertools.pairwise(marks)
    ]


def _captured(waits: Counter[str], counted: Launches) -> Callable[..., None]:
    """``Replayed.__init__`` with a stand-in for the recordings of a GPU."""
    made = Replayed.__init__

    def init(self: Replayed, function: Any, record: Any, *args: Any, **kwargs: Any) -> None:
        stand_in = None if record is None else Capture(waits, launches=counted)
        made(self, function, stand_in, *args, **kwargs)

    return init


def most(steps: list[Step]) -> tuple[int, int]:
    """Launches and waits of the step that has most of them."""
    return max(s.launches.total() for s in steps), max(s.waits.total() for s in steps)
