"""Independent random streams from one seed; generators are always passed explicitly."""

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


def continued(generator: torch.Generator, state: torch.Tensor) -> bool:
    """Put a generator where another was stopped, and say whether it could.

    States of other kinds of devices have other sizes: then it is left as it is.
    """
    stored = state.cpu()
    if stored.shape != generator.get_state().shape:
        return False
    generator.set_state(stored)
    return True


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Seed torch's global generators within the block; restore those of torch, NumPy and Python.

    gpx itself only draws from generators that are passed as arguments, but modules written by users
    may draw from the global ones, whose states must not change for the caller.

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
        if not started:  # torch.manual_seed has also set the seed for a later start of CUDA
            torch.cuda.manual_seed_all(torch_seed)
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
