"""Available memory is a plausible number of bytes."""

from pathlib import Path

import pytest
import torch

from gpx.linalg import available_memory


@pytest.mark.skipif(not Path("/proc/meminfo").is_file(), reason="needs Linux")
def test_on_a_cpu_it_is_between_nothing_and_the_total():
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    free = available_memory(torch.device("cpu"))
    assert 0 < free <= total


def test_where_nobody_tells_it_is_none():
    assert available_memory(torch.device("meta")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_falls_with_what_is_held():
    device = torch.device("cuda")
    before = available_memory(device)
    held = torch.empty(2**28, dtype=torch.uint8, device=device)
    assert available_memory(device) <= before - held.numel()
