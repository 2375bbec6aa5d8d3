"""Independent random streams from one seed: randomness is passed on, never global."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose; different purposes give unrelated streams."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def stream(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on ``device`` for one purpose of a run."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, purpose))
