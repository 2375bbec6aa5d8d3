import math

import numpy as np
import torch

from gpx.training.evaluation_record import Record


def three_evaluations():
    record = Record(torch.zeros(2, dtype=torch.float64))
    for number, loss in enumerate([3.0, 1.0, 2.0]):
        gradient = torch.full((2,), float(number), dtype=torch.float64)
        record.evaluations.append((0.5 * number, loss, gradient))
    return record


def test_its_state_makes_it_again():
    record = three_evaluations()
    record.restarts.append(2)
    again = Record.of(record.state_dict())
    assert again.start.tolist() == [0.0, 0.0]
    assert again.restarts == [2]
    for ours, theirs in zip(again.evaluations, record.evaluations, strict=True):
        assert ours[:2] == theirs[:2]
        assert torch.equal(ours[2], theirs[2])


def test_states_without_evaluations_or_of_earlier_versions_are_read():
    assert Record.of(Record().state_dict()) == Record()
    begun = Record.of(Record(torch.ones(1), bounded=True).state_dict())
    assert begun.evaluations == []
    assert begun.bounded
    old = three_evaluations().state_dict()
    for name in ("dropped", "lowest_dropped", "bounded", "restarts"):
        del old[name]
    assert (Record.of(old).count, Record.of(old).lowest) == (3, 1.0)


def test_dropped_evaluations_still_count():
    record = three_evaluations()
    point = np.array([4.0, 5.0])
    record.begin_at(point, True)
    point += 1.0
    assert record.start.tolist() == [4.0, 5.0]
    assert (record.count, record.lowest, record.bounded) == (3, 1.0, True)
    record.evaluations.append((0.0, 0.25, torch.zeros(2)))
    assert (record.count, record.lowest) == (4, 0.25)
    record.begin_at(point, True)
    assert (record.count, record.lowest) == (4, 0.25)
    assert Record.of(record.state_dict()).count == 4


def test_nothing_is_lower_than_an_empty_record():
    assert Record().lowest == math.inf
