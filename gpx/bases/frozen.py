"""Copies of a basis at earlier hyperparameters."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gpx.bases.base import Basis


def flat_parameters(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Copy of ``parameters``, at least one, in one vector."""
    return torch.cat([p.detach().reshape(-1) for p in parameters])


def frozen_basis(basis: Basis, hyperparameters: Tensor) -> Basis:
    """Copy of ``basis`` at other hyperparameters, none of them trainable.

    Args:
        basis: to copy, with its buffers.
        hyperparameters: values of all its parameters, from ``flat_parameters``.
    """
    frozen = copy.deepcopy(basis).requires_grad_(False)
    set_parameters(frozen, hyperparameters)
    return frozen


@torch.no_grad()
def set_parameters(basis: Basis, hyperparameters: Tensor) -> None:
    """Set the parameters of ``basis`` to those of ``flat_parameters``."""
    offset = 0
    for parameter in basis.parameters():
        flat = hyperparameters[offset : offset + parameter.numel()]
        parameter.copy_(flat.view_as(parameter))
        parameter.grad = None
        offset += parameter.numel()
