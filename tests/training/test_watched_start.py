"""Steps of a start where several processes share the run."""

import itertools
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from gpx.errors import DidNotConverge
from gpx.linalg.processes import Processes, work_shared
from gpx.training.interrupt import Interrupted
from gpx.training.session import Session
from gpx.training.watched_start import WatchedStart


class Second(Processes):
    """The second of two; the first was asked to stop."""

    def all_max(self, *values):
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
        _stops=nullcontext,
        **{"step": 2, "max_steps": 9, "seconds_of_start": 77.0, "seconds": 77.5},
        **{"_logged_step": 0, "_logged_seconds": 0.0},
    )
    Session.report(session, 1.0, {}, {})
    session.step, session.seconds = 3, 77.6
    Session.report(session, 1.0, {}, {})
    assert [round(progress.seconds_per_step, 9) for progress in told] == [0.25, 0.1]


def watched(monkeypatch, began, checkpoint_seconds=1e9):
    """A start that began then, after 3 seconds of an earlier session; its clock, lines, states."""
    clock, said, saved = [began], [], []
    monkeypatch.setattr("gpx.training.watched_start.time.perf_counter", lambda: clock[0])
    session = SimpleNamespace(
        guard=SimpleNamespace(received=None),
        config=SimpleNamespace(checkpoint_seconds=checkpoint_seconds),
        seconds=3.0,
        save_start=lambda state, seconds: saved.append((state, seconds)),
        say=said.append,
    )
    return WatchedStart(session), clock, said, saved


def test_a_start_says_ten_times_where_it_is_and_at_what_pace(monkeypatch):
    watch, clock, said, saved = watched(monkeypatch, 100.0)
    for step in range(1, 25):
        clock[0] += 0.25 if step < 4 else 0.5
        watch.step(step, 24, torch.tensor(0.5), dict)
    told = [int(line.split("/")[0].rpartition(" ")[2]) for line in said]
    assert told == [1, *range(2, 25, 2)]
    assert said[0] == "pretraining, step 1/24  loss/point +0.5000  250 ms/step"
    assert said[2].endswith("375 ms/step")  # of steps 3 and 4
    assert said[-1].endswith("500 ms/step")
    assert not saved


def test_a_start_is_saved_every_so_many_seconds_with_those_it_took(monkeypatch):
    watch, clock, _, saved = watched(monkeypatch, 100.0, checkpoint_seconds=2.0)
    for step in range(1, 8):
        clock[0] += 0.75
        watch.step(step, 7, torch.tensor(0.5), lambda step=step: {"step": step})
    assert saved == [({"step": 3}, 3.0 + 2.25), ({"step": 6}, 3.0 + 4.5)]


def test_a_loss_that_is_no_number_ends_a_start_where_somebody_looks(monkeypatch):
    watch, _, _, saved = watched(monkeypatch, 0.0)
    bad = torch.tensor(float("nan"))
    watch.step(1, 40, torch.zeros(()), dict)
    watch.step(2, 40, bad, dict)  # nobody looks, so that nothing waits for the device
    with pytest.raises(DidNotConverge, match="the loss is nan at step 4 of pretraining"):
        watch.step(4, 40, bad, dict)
    assert not saved


def test_a_start_has_half_of_the_budget(monkeypatch):
    seconds = itertools.count(50)
    monkeypatch.setattr(
        "gpx.training.watched_start.time.perf_counter", lambda: float(next(seconds))
    )
    said = []
    session = SimpleNamespace(budget=8.0, seconds=1.0, cut_short=[], say=said.append)
    watch = WatchedStart(session)
    assert [watch.spent() for _ in range(4)] == [False, False, True, True]  # 1 + 3 of 8 seconds
    watch.cut_short("the search")
    assert session.cut_short == ["the search"]
    assert said == [
        "the search ends early: 50% of trainer.budget=8 seconds are spent before the first step of "
        "training"
    ]
    session.budget = None
    assert not watch.spent()
