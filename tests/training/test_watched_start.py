"""Steps of a start where several processes share the run."""

import itertools
import signal
from types import SimpleNamespace

import pytest
import torch

from gpx.linalg.processes import Processes, work_shared
from gpx.training.interrupt import Interrupted
from gpx.training.session import Session
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


def test_the_pace_of_the_first_steps_does_not_count_the_start():
    told = []
    session = SimpleNamespace(
        require_finite=lambda loss, parts: None,
        objective=SimpleNamespace(num_data=lambda x: 10),
        x=torch.zeros(10, 1),
        model=SimpleNamespace(),
        monitors=[SimpleNamespace(progress=lambda progress, model: told.append(progress))],
        **{"step": 2, "max_steps": 9, "seconds_of_start": 77.0, "seconds": 77.5},
        **{"_logged_step": 0, "_logged_seconds": 0.0},
    )
    Session.report(session, 1.0, {}, {})
    session.step, session.seconds = 3, 77.6
    Session.report(session, 1.0, {}, {})
    assert [round(progress.seconds_per_step, 9) for progress in told] == [0.25, 0.1]


def test_a_start_has_half_of_the_budget(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr(
        "gpx.training.watched_start.time.perf_counter", lambda: float(next(seconds))
    )
    said = []
    session = SimpleNamespace(budget=8.0, seconds=1.0, cut_short=[], say=said.append)
    watch = WatchedStart(session)
    assert [watch.spent() for _ in range(4)] == [False, False, True, True]  # 1 + 3 of 8 seconds
    watch.cut_short("the search")
    assert session.cut_short == ["the search"]
    assert said == ["the search ends early: the start has taken 50% of trainer.budget=8 seconds"]
    session.budget = None
    assert not watch.spent()
