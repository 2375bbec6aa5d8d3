"""The deadline of an initialisation."""

from gpx.methods.base.start import Deadline, Unwatched


def test_a_start_without_a_watcher_has_no_deadline():
    watch = Unwatched()
    assert not watch.spent()
    assert watch.earlier() is None


def test_a_deadline_that_was_met_once_stays_passed():
    class Watch(Unwatched):
        answers = iter([False, True])

        def spent(self):
            return next(self.answers)

    deadline = Deadline(Watch())
    assert not deadline.passed
    assert [deadline() for _ in range(3)] == [False, True, True]  # not asked a third time
    assert deadline.passed
