"""Tensors that tests begin with: given numbers, and random ones that a seed determines."""

import torch
from torch import Tensor


def double(value: object) -> Tensor:
    """A number, or lists of numbers, in float64."""
    return torch.tensor(value, dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Independent standard normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    """Independent numbers between 0 and 1, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def draws(seed: int = 0) -> torch.Generator:
    """A generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def spd(n: int, seed: int = 0) -> Tensor:
    """A symmetric positive definite matrix (n, n) with eigenvalues of one and more."""
    a = draw(n, n, seed=seed)
    return a @ a.mT / n + torch.eye(n, dtype=torch.float64)
