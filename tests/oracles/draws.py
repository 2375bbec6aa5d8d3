"""Random inputs of tests: float64, the same for the same seed."""

import torch
from torch import Tensor


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Independent standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def spd(n: int, seed: int = 0) -> Tensor:
    """A symmetric positive definite matrix (n, n) with eigenvalues of one and more."""
    a = draw(n, n, seed=seed)
    return a @ a.mT / n + torch.eye(n, dtype=torch.float64)
