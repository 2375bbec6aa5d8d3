"""Benchmarks: how they time and measure memory, their tables, and that all run from one command."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def timing(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("timing")
    sys.modules.pop("timing", None)


def test_every_benchmark_takes_the_threads_that_the_common_command_hands_it():
    scripts = sorted(SCRIPTS.glob("bench_*.py"))
    assert len(scripts) > 10
    takes = '"--threads"', "command_line(__doc__"
    assert [p.name for p in scripts if not any(way in p.read_text() for way in takes)] == []


def test_all_take_turns_and_those_that_warm_up_do_not_count(timing):
    calls = []
    work = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = timing.in_turns(work, 2, warm=1, primed=True)
    assert "".join(calls) == "aabb" * 3
    assert [len(found[name]) for name in "ab"] == [2, 2]


def test_the_fair_clock_is_the_processors_on_one_thread(timing, monkeypatch):
    seen = [timing.Spent(wall, processor) for wall, processor in ((9, 1), (7, 3), (8, 2))]
    for threads, fair in ((1, 2), (2, 8)):
        monkeypatch.setattr(timing.torch, "get_num_threads", lambda threads=threads: threads)
        assert timing.fair(seen) == fair
    assert timing.least(seen) == (7, 1)


def test_memory_of_a_call_is_what_it_adds():
    """In a process of its own: another may keep freed memory, which a call then uses first."""
    program = """
import torch
from timing import added_mib, tensors_mib

def work():  # 64 MiB, twice
    return float((torch.ones(64 * 2**17, dtype=torch.float64) + 1.0)[0])

tensors = tensors_mib(work)
held = torch.ones(2**24)
print(tensors, added_mib(work))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=SCRIPTS, capture_output=True, text=True, check=True
    )
    tensors, added = map(float, done.stdout.split())
    assert tensors == pytest.approx(128.0, abs=1.0)
    assert 64.0 < added < 192.0
