"""Steps of a start where several processes share the run."""

import signal
from types import SimpleNamespace

import pytest
import torch

from gpx.linalg.processes import Processes, work_shared
from gpx.training.interrupt import Interrupted
from gpx.training.watched_start import WatchedStart


class Second(Processes):
    """The second of two; the first was asked to stop."""

    def agreed(self, *values):
        return [max(value, other) for value, other in zip(values, (0.0, 15.0), strict=True)]


def test_a_start_stops_in_every_process_where_one_was_asked_to():
    saved = []
    session = SimpleNamespace(
        guard=SimpleNamespace(received=None),
        config=SimpleNamespace(checkpoint_seconds=1e9),
        seconds=0.0,
        save_start=lambda state, seconds: saved.append(state),
        say=lambda line: None,
    )
    loss = torch.zeros(())
    WatchedStart(session).step(1, 10, loss, dict)
    assert saved == []
    with work_shared(Second(1, 2)), pytest.raises(Interrupted) as stop:
        WatchedStart(session).step(1, 10, loss, dict)
    assert stop.value.signal_number == signal.SIGTERM
    assert saved == [{}]
