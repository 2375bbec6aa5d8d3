import os
import signal

import pytest

from gpx.training.interrupt import Interrupted, InterruptGuard, StoppedAtOnce, signals_raised


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_noted_and_handlers_restored(number):
    def ours(*_):
        pass

    found = signal.signal(number, ours)  # under nohup SIGHUP is ignored, and stays so
    try:
        with InterruptGuard() as guard:
            os.kill(os.getpid(), number)
            assert guard.received == number
        assert signal.getsignal(number) is ours
    finally:
        signal.signal(number, found)


def test_a_second_ctrl_c_interrupts_at_once():
    def press_twice():
        with InterruptGuard():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press_twice()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_outside_of_training_a_signal_raises(number):
    before = signal.signal(number, lambda *_: None)
    try:
        with signals_raised():
            raising = signal.getsignal(number)
            with InterruptGuard() as guard:
                os.kill(os.getpid(), number)
                assert guard.received == number
            assert signal.getsignal(number) is raising
            with pytest.raises(StoppedAtOnce) as stop:
                os.kill(os.getpid(), number)
        assert stop.value.signal_number == number
        assert signal.getsignal(number) is not raising
    finally:
        signal.signal(number, before)


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup leaves it
    try:
        with signals_raised():
            os.kill(os.getpid(), signal.SIGHUP)
        with InterruptGuard() as guard:
            os.kill(os.getpid(), signal.SIGHUP)
            assert guard.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_exception_names_its_signal():
    assert str(Interrupted(signal.SIGTERM)) == "SIGTERM"


def test_handlers_that_python_did_not_install_are_left_alone(monkeypatch):
    def installed(number, handler):
        pytest.fail("the handler before could not be installed again")

    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # in a program that embeds Python
    monkeypatch.setattr(signal, "signal", installed)
    with signals_raised(), InterruptGuard() as guard:
        assert guard.received is None
