"""One thread per process, stated: the suite runs side by side processes (pytest-xdist)."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def float64_by_default():
    """New tensors are float64 while a test runs."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(previous)
