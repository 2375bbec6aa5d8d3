"""Rounds: sweeps go on as long as they gain, and the search as long as all of them did."""

import pytest
import torch

from gpx.methods.direct import rounds
from gpx.methods.direct.rounds import SweptRounds


class Bounded(SweptRounds):
    """A model whose bound takes the given values, a sweep each."""

    def __init__(self, bounds, restarts=3):
        super().__init__()
        self.bounds, self.restarts, self.swept = bounds, restarts, 0

    def sweep(self):
        self.swept += 1

    def bound_value(self):
        return self.bounds[min(self.swept, len(self.bounds) - 1)]

    def condition(self, x, y):
        raise AssertionError("no round needs a posterior")

    def new_posterior(self):
        raise AssertionError("no round needs a posterior")

    def go_on(self):
        return self.next_round(torch.zeros(1), torch.zeros(1), 0.0, generator=torch.Generator())


def test_sweeps_end_where_one_gains_too_little():
    made = Bounded([-20.0, -15.0, -12.0, -11.995, -5.0])
    assert made.go_on()
    assert made.swept == 3
    assert made.note == "sweeps of coordinate ascent gained 8.01 nats"


def test_the_search_ends_where_all_sweeps_gain_too_little():
    made = Bounded([-20.0, -19.995])
    assert not made.go_on()
    assert made.swept == 1


def test_sweeps_that_gain_without_end_are_cut_short():
    made = Bounded([float(number) for number in range(100)])
    assert made.go_on()
    assert made.swept == rounds.MAX_SWEEPS


@pytest.mark.parametrize("restarts", [0, 3])
def test_there_is_a_search_for_every_restart_and_one_before(restarts):
    made = Bounded([-20.0, -10.0], restarts)
    assert made.num_rounds == 1 + restarts
    assert made.go_on() == (restarts > 0)
    assert made.swept == (2 if restarts else 0)
