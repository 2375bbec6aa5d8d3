"""Available memory is a plausible number of bytes; a budget is a share of it, or as given."""

from pathlib import Path

import pytest
import torch

from gpx.errors import ConfigError
from gpx.linalg import (
    allowed_memory,
    available_memory,
    budget_in_bytes,
    halved_until_it_fits,
    require_memory,
    total_memory,
)


@pytest.mark.skipif(not Path("/proc/meminfo").is_file(), reason="needs Linux")
def test_on_a_cpu_it_is_between_nothing_and_the_total():
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    free = available_memory(torch.device("cpu"))
    assert 0 < free <= total


def test_files_that_a_container_has_cached_count_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr("gpx.linalg.memory.CGROUP", tmp_path)
    monkeypatch.setattr("gpx.linalg.memory._from_meminfo", lambda name: None)
    (tmp_path / "memory.max").write_text("8000000000\n")
    (tmp_path / "memory.current").write_text("7900000000\n")
    assert available_memory(torch.device("cpu")) == 10**8
    lines = "anon 400000000", "file 7400000000", "inactive_anon 1", "inactive_file 7000000000"
    (tmp_path / "memory.stat").write_text("\n".join([*lines, "active_file 400000000", ""]))
    assert available_memory(torch.device("cpu")) == 75 * 10**8


def test_where_nobody_tells_it_is_none():
    assert available_memory(torch.device("meta")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_falls_with_what_is_held():
    device = torch.device("cuda")
    before = available_memory(device)
    held = torch.empty(2**28, dtype=torch.uint8, device=device)
    assert available_memory(device) <= before - held.numel()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1000, 1000),
        ("1000", 1000),
        ("4GiB", 2**32),
        (" 1.5 MiB ", 3 * 2**19),
        ("500MB", 500_000_000),
        ("2e9", 2_000_000_000),
    ],
)
def test_a_budget_is_bytes_or_text(given, expected):
    assert budget_in_bytes(given, free=1) == expected


def test_a_budget_nobody_gave_is_a_share_of_the_machine():
    assert budget_in_bytes(None, free=2**34, total=2**35) == 2**33
    assert budget_in_bytes(None, free=2**35, total=2**35) == 2**33  # the same on a quieter day
    assert budget_in_bytes(None, free=2**33, total=2**35) == 2**32  # less where it is not there
    assert budget_in_bytes(None, free=2**34) == 2**32
    assert budget_in_bytes(None, free=0, total=2**35) == budget_in_bytes(None, free=10**6) == 2**26
    assert budget_in_bytes(None) == 2**30


@pytest.mark.skipif(not Path("/proc/meminfo").is_file(), reason="needs Linux")
def test_the_whole_memory_is_at_least_what_is_free():
    device = torch.device("cpu")
    assert total_memory(device) >= available_memory(device)
    assert total_memory(torch.device("meta")) is None


@pytest.mark.parametrize("given", [0, "0GiB"])
def test_a_budget_of_nothing_is_refused(given):
    with pytest.raises(ConfigError, match=f"^memory_budget={given} must be positive, for example"):
        budget_in_bytes(given)


@pytest.mark.parametrize("given", [-1, True, "much", "4 gigs", "-2GiB", 1.5e9j, "nan", ""])
def test_a_budget_that_is_none_is_refused_by_name(given):
    with pytest.raises(ConfigError, match=r"memory_budget=.* is no number of bytes"):
        budget_in_bytes(given)


@pytest.mark.parametrize("given", [3.3, "0.5"])
def test_a_budget_in_an_unwritten_unit_is_refused(given):
    with pytest.raises(ConfigError, match=rf"memory_budget={given} is a fraction .* {given}GiB"):
        budget_in_bytes(given)


def test_what_may_be_held_is_the_budget_or_what_is_free():
    meta = torch.device("meta")  # nobody tells
    assert allowed_memory(None, meta) == (None, "")
    assert allowed_memory(1000, meta) == (1000, "memory_budget=1000 may be held")
    assert allowed_memory("3MiB", meta) == (3 * 2**20, "memory_budget=3.0MiB may be held")
    cpu = torch.device("cpu")
    found, said = allowed_memory("2GiB", cpu)
    assert found == 2**31
    assert said.startswith("memory_budget=2.0GiB may be held")
    if available_memory(cpu) is not None:
        assert said.endswith("GiB are free on cpu)")
        assert allowed_memory(None, cpu)[1].endswith("GiB are free on cpu")


def test_chunks_are_halved_until_they_fit():
    tried = []

    def attempt(budget):
        tried.append(budget)
        if budget > 2**28:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "done"

    assert halved_until_it_fits(attempt, 2**30) == "done"
    assert tried == [2**30, 2**29, 2**28]


def test_what_cannot_be_cut_any_further_is_out_of_memory():
    tried = []

    def attempt(budget):
        tried.append(budget)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        halved_until_it_fits(attempt, 2**27 + 5)
    assert tried == [2**27 + 5, 2**26 + 2, 2**26]  # MIN_BUDGET is the last


def test_an_array_that_does_not_fit_is_refused_with_its_size_and_a_way_out(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr("gpx.linalg.memory.available_memory", lambda _: 2**30)
    require_memory(2**30, cpu, "this", "take less")
    with pytest.raises(ConfigError) as caught:
        require_memory(2**31, cpu, "this", lambda free: f"take {free / 2**30:g} GiB")
    said = "this needs about 2.0 GiB and 1.0 GiB are free on cpu; take 1 GiB"
    assert str(caught.value) == said
    monkeypatch.setattr("gpx.linalg.memory.available_memory", lambda _: None)
    require_memory(2**31, cpu, "this", "take less")  # nobody knows


@pytest.mark.parametrize(
    ("needed", "budget", "said"),
    [
        (2**21, "1MiB", "about 2.0 MiB and memory_budget=1.0MiB may be held"),
        (2000, 1000, "about 2,000 bytes and memory_budget=1000 may be held"),
    ],
)
def test_small_arrays_above_a_small_budget_are_said_in_units_of_their_size(needed, budget, said):
    with pytest.raises(ConfigError, match=f"^this needs {said}"):
        require_memory(needed, torch.device("cpu"), "this", "take less", budget)


def test_small_arrays_do_not_ask_how_much_is_free(monkeypatch):
    def asked(device):
        raise AssertionError("asked")

    monkeypatch.setattr("gpx.linalg.memory.available_memory", asked)
    require_memory(2**22, torch.device("cpu"), "this", "take less")
    with pytest.raises(AssertionError, match="asked"):
        require_memory(2**24, torch.device("cpu"), "this", "take less")
