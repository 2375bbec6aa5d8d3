"""Copies of a basis that are not trained, at the present hyperparameters or at earlier ones."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from gpx.bases.base import Basis
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.flat_parameters import assign

AnyBasis = TypeVar("AnyBasis", bound=Basis)


def flat_parameters(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Copy of ``parameters``, at least one, in one vector."""
    return torch.cat([p.detach().reshape(-1) for p in parameters])


def fixed_copy(basis: AnyBasis) -> AnyBasis:
    """Copy of a basis whose functions are chosen; none of its hyperparameters is trainable.

    Test inputs that a grid was placed by are left out: the copy will not be placed again, and they
    may be far larger than all the rest.
    """
    made = copy.deepcopy(basis).requires_grad_(False)
    for part in made.modules():
        if isinstance(part, GridEigenfunctions):
            part.forget_test_inputs()
    return made


def frozen_basis(basis: Basis, hyperparameters: Tensor) -> Basis:
    """Copy of ``basis`` at other hyperparameters, none of them trainable.

    Args:
        basis: to copy, with its buffers.
        hyperparameters: values of all its parameters, from ``flat_parameters``.
    """
    frozen = fixed_copy(basis)
    set_parameters(frozen, hyperparameters)
    return frozen


def set_parameters(basis: Basis, hyperparameters: Tensor) -> None:
    """Set the parameters of ``basis`` to those of ``flat_parameters``; they have no gradients."""
    assign(list(basis.parameters()), hyperparameters)
    basis.zero_grad()
