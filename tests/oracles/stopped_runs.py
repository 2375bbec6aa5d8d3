"""Runs that are stopped after some step, as by a signal."""

import signal
from contextlib import contextmanager
from unittest import mock

import pytest

from gpx.training.interrupt import Interrupted
from gpx.training.session import Session


@contextmanager
def stopped_at(step):
    """The run inside gets SIGTERM in this step; that it does not end by it fails the test."""
    original = Session.end_step

    def end_step(session):
        if session.step == step:
            session.guard.received = signal.SIGTERM
        original(session)

    with mock.patch.object(Session, "end_step", end_step), pytest.raises(Interrupted):
        yield
