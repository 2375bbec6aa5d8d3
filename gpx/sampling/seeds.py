"""Independent random streams from one seed: randomness is passed on, never global."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose; different purposes give unrelated streams."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def stream(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on ``device`` for one purpose of a run."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, purpose))


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Torch's global generators start at ``seed`` inside; afterwards all of them are as found.

    gpx draws from generators that are passed on. Modules that users write may draw from the global
    ones of torch, NumPy and Python, whose states the caller's own draws go on from.

    Args:
        seed: 64 bits, with or without sign.
    """
    started = torch.cuda.is_initialized()
    devices = range(torch.cuda.device_count()) if started else ()
    python_state, torch_seed = random.getstate(), torch.initial_seed()
    numpy_state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield
    finally:
        if not started:  # what torch.manual_seed had set for the day when CUDA starts
            torch.cuda.manual_seed_all(torch_seed)
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
