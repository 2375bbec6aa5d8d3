"""Counted steps: which are due, also after a resume."""

from gpx.methods.base.step_count import StepCount


def test_every_third_step_is_due_also_after_a_resume():
    count = StepCount()
    assert [count.count_step(3) for _ in range(4)] == [False, False, True, False]
    resumed = StepCount()
    resumed.load_state_dict(count.state_dict())
    assert resumed.steps == 4
    assert [resumed.count_step(3) for _ in range(3)] == [False, True, False]


def test_an_interval_of_one_is_always_due():
    count = StepCount()
    assert all(count.count_step(1) for _ in range(3))


def test_an_interval_of_zero_is_never_due():
    count = StepCount()
    assert not any(count.count_step(0) for _ in range(3))
    assert count.steps == 3
