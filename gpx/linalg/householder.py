"""Orthogonal matrices as products of Householder reflections, applied at O(m^2) in blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.linalg.known_gradient import first_derivative_only

BLOCK = 32
"""Number of reflections that are applied together, by matrix products."""


def reflect(reflectors: Tensor, vector: Tensor) -> Tensor:
    """U^T b for U = H_1 H_2 ... H_k with H_i = I - 2 v_i v_i^T / |v_i|^2.

    Every orthogonal matrix of size m is such a product of m - 1 reflections times signs. Row i of
    ``reflectors`` is read from column i on, the rest of it counts as zero; a row of zeros is the
    identity.

    Args:
        reflectors (k, m): v_i as rows, k <= m.
        vector (m,): b.

    Returns:
        (m,): differentiable once in both.

    Cost: 2 k m BLOCK multiply-adds forward and three times that backward: O(m^2), k / BLOCK
    sequential steps.
    Source: Evans thesis, section 5.2.2; blocks after Schreiber and Van Loan 1989.
    """
    return _Reflect.apply(reflectors, vector)


def rotation_of(reflectors: Tensor) -> Tensor:
    """U = H_1 ... H_m (m, m) itself, of reflectors (m, m) with ones on the diagonal; no gradient.

    Cost: 4/3 m^3 multiply-adds.
    """
    columns = reflectors.detach().triu().mT.contiguous()
    return torch.linalg.householder_product(columns, 2.0 / columns.square().sum(0))


def _block(reflectors: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a block (from its first column on), 2 / |v|^2, and their Gram matrix."""
    rows = reflectors[start : start + BLOCK, start:].triu()
    gram = rows @ rows.mT
    squared = gram.diagonal()
    return rows, torch.where(squared > 0.0, 2.0 / squared, 0.0), gram


class _Reflect(torch.autograd.Function):
    """With c_i = H_i c_{i-1}, the numbers x_i = v_i^T c_{i-1} of a block solve a triangular system.

    x_i = v_i^T c_0 - sum_{j<i} (v_i^T v_j) t_j x_j, t_i = 2 / |v_i|^2, and c_end = c_0 - V^T t x.
    The adjoints a_{i-1} = H_i a_i run backwards in the same way, z_i = v_i^T a_i, and

        d / d v_i = -t_i (x_i a_i + z_i c_{i-1}) + t_i^2 x_i z_i v_i.
    """

    @staticmethod
    def forward(ctx: Any, reflectors: Tensor, vector: Tensor) -> Tensor:
        c, kept = vector.clone(), []
        for start in range(0, reflectors.shape[0], BLOCK):
            rows, t, gram = _block(reflectors, start)
            inner = torch.tril(gram, -1) * t
            inner.diagonal().fill_(1.0)
            x = torch.linalg.solve_triangular(
                inner, (rows @ c[start:]).unsqueeze(1), upper=False
            ).squeeze(1)
            c[start:] -= (t * x) @ rows
            kept.append(x)
        ctx.save_for_backward(reflectors, c, *kept)
        return c

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor]:
        reflectors, c, *kept = ctx.saved_tensors
        a, c = grads[0].clone(), c.clone()
        found = torch.zeros_like(reflectors)
        for number in reversed(range(len(kept))):
            start, x = number * BLOCK, kept[number]
            rows, t, gram = _block(reflectors, start)
            inner = torch.triu(gram, 1) * t
            inner.diagonal().fill_(1.0)
            z = torch.linalg.solve_triangular(
                inner, (rows @ a[start:]).unsqueeze(1), upper=True
            ).squeeze(1)
            c[start:] += (t * x) @ rows  # a reflection is its own inverse: c before the block
            # a_i and c_{i-1} of every reflection, less what those after and before it took
            after = a[start:] - torch.triu((t * z).expand(len(z), -1), 1) @ rows
            before = c[start:] - torch.tril((t * x).expand(len(x), -1), -1) @ rows
            slope = (t * t * x * z).unsqueeze(1) * rows
            slope -= (t * x).unsqueeze(1) * after + (t * z).unsqueeze(1) * before
            found[start : start + BLOCK, start:] = slope.triu()
            a[start:] -= (t * z) @ rows
        return found, a
