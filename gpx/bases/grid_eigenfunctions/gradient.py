"""Gradient of a weighted sum of eigenfunction values, gathered block by block."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, GridModes
from gpx.bases.grid_eigenfunctions.sums import data_blocks


def eigenfunction_gradient(
    basis: GridEigenfunctions, x: Tensor, weight: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """d sum_ij W_ij phi_j(x_i), for a chosen set of functions on a grid that stays.

    Args:
        basis: ``select`` has been called; differentiated in those parameters of its kernel that
            require a gradient, outputscale included.
        x (n, d): inputs; their gradient is gathered when they require one.
        weight (n, p): W, columns in the order of ``basis.modes().plan``.

    Returns:
        tensors (kernel parameters, then x if it requires a gradient) and their gradients.

    Cost: twice that of the features; memory of one block of them.
    """
    with torch.enable_grad():
        modes = basis.modes()
    leaf = modes.transforms.detach().requires_grad_()
    parameters: list[Tensor] = [p for p in basis.kernel.parameters() if p.requires_grad]
    totals = [torch.zeros_like(t, dtype=torch.float64) for t in (leaf, *parameters)]
    x_gradient = torch.zeros_like(x) if x.requires_grad else None
    for rows in data_blocks(basis, modes, x):
        part = x[rows].detach().requires_grad_(x.requires_grad)
        with torch.enable_grad():
            unit = basis.features(part, GridModes(leaf, modes.log_values, modes.plan))
            block = basis.factors.outputscale.sqrt().to(x.dtype) * unit
        targets = [leaf, *parameters, *([part] if x.requires_grad else [])]
        found = torch.autograd.grad(
            block, targets, grad_outputs=weight[rows].mT.to(x.dtype), allow_unused=True
        )
        for total, grad in zip(totals, found, strict=False):
            if grad is not None:
                total += grad
        if x_gradient is not None and found[-1] is not None:
            x_gradient[rows] = found[-1]
    through = (
        torch.autograd.grad(
            modes.transforms, parameters, grad_outputs=totals[0].to(leaf.dtype), allow_unused=True
        )
        if parameters
        else ()
    )
    gradients = [
        (total if grad is None else total + grad).to(p.dtype)
        for p, total, grad in zip(parameters, totals[1:], through, strict=True)
    ]
    if x_gradient is None:
        return parameters, gradients
    return [*parameters, x], [*gradients, x_gradient]
