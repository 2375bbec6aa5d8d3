"""Parts of the work that processes share, and what is said where one of them has ended."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from gpx.errors import ProcessLost
from gpx.linalg import memory, memory_for_all, processes
from gpx.linalg.processes import Processes, work_shared


@pytest.mark.parametrize(("total", "count"), [(5, 4), (4, 3), (12, 4), (101, 7), (7, 7)])
def test_parts_follow_one_another_and_none_is_empty(total, count):
    parts = [Processes(number, count).part(total) for number in range(count)]
    assert parts[0].start == 0
    assert parts[-1].stop == total
    assert all(left.stop == right.start for left, right in pairwise(parts))
    sizes = [part.stop - part.start for part in parts]
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


@pytest.mark.parametrize(("total", "count"), [(5, 4), (12, 4), (101, 7), (3, 5)])
def test_parts_are_put_together_in_their_order(total, count, monkeypatch):
    whole = torch.arange(2.0 * total).reshape(total, 2)
    everyone = [Processes(number, count) for number in range(count)]
    sent = []

    def gather(found, part):
        sent.append(part.clone())
        if len(sent) == count:
            found.copy_(torch.cat(sent))

    monkeypatch.setattr(processes, "gather", gather)
    for each in everyone:
        found = each.all_gather(whole[each.part(total)], total)
    torch.testing.assert_close(found, whole, rtol=0, atol=0)


def test_a_process_that_has_ended_is_one_sentence(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("Connection closed by peer\nand more")

    monkeypatch.setattr(dist, "all_reduce", broken, raising=False)
    with pytest.raises(ProcessLost, match=r"have lost one another.*\(Connection closed by peer\)$"):
        Processes(1, 2).all_max(0.0)


def test_memory_is_what_the_process_with_the_least_has(monkeypatch):
    class Second(Processes):
        def all_max(self, *values):
            return [max(value, -1000.0) for value in values]  # the other one has 1000 bytes

    monkeypatch.setattr(memory, "available_memory", lambda device: 4000)
    device = torch.device("cpu")
    assert memory_for_all(device) == 4000
    with work_shared(Second(1, 2)):
        assert memory_for_all(device) == 1000


def test_tensors_of_several_kinds_are_exchanged_in_place(monkeypatch):
    sent = []

    def all_reduce(message):
        sent.append(len(message))
        message.mul_(3.0)

    monkeypatch.setattr(dist, "all_reduce", all_reduce, raising=False)
    single, double = torch.ones(2, 3), torch.ones(4, dtype=torch.float64)
    turned, scalar = torch.ones(3, 2).mT, torch.ones(())
    Processes(0, 2).all_sum(single, double, turned, scalar)
    assert sent == [13, 4]  # one message for each dtype
    assert all(bool((tensor == 3.0).all()) for tensor in (single, double, turned, scalar))
