"""Squared distances by matrix products: the two factors, and one tile of their product.

Accuracy: the squared distance comes from |a|^2 + |b|^2 - 2 a.b with centred inputs (``centre``),
so its absolute error is a few machine epsilons times |a|^2 + |b|^2. Norms are shrunk by a relative
``4 eps`` (of the order of that error), so that coincident rows give exactly zero after the clamp
instead of rounding noise whose square root would not be small.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SAMPLED_ROWS = 32
"""Number of evenly spaced rows whose middle value is used."""


def centre(z1: Tensor, z2: Tensor, square: bool, *, guarded: bool) -> Tensor:
    """The point (..., 1, d) that coordinates z1 (..., n1, d) and z2 (..., n2, d) are taken from.

    Distances do not depend on it, but their digits do: a row far from all others, such as one with
    a code like 1e6 for a missing value, must not move it away from them.

    Args:
        square: z1 are the rows of z2.
        guarded: for predictions, whose rows may be any. In each column it is in the middle of
            whichever of both sets varies less, as the rows of the other only matter near these.
            False: the mean of z2, for training, whose rows are standardised.
    """
    if not guarded or 0 in z1.shape or 0 in z2.shape:
        return z2.mean(-2, keepdim=True)
    if square:
        return _middle(z2)
    first, last = (z.var(-2, correction=0, keepdim=True) for z in (z1, z2))
    return torch.where(first < last, _middle(z1), _middle(z2))


def is_trained(kernel: nn.Module) -> bool:
    """Whether a parameter of the kernel can be trained, which none of a posterior's kernel can.

    It does not depend on whether gradients are switched on, so that values do not either.
    """
    return any(p.requires_grad for p in kernel.parameters())


def _middle(z: Tensor) -> Tensor:
    """Medians (..., 1, d) of some rows."""
    if torch.compiler.is_exporting():  # a number of rows that is not known yet is no index
        places = torch.arange(z.shape[-2], device=z.device).unsqueeze(-1)
        chosen = (places == (z.shape[-2] - 1) // 2).to(z)
        return (z.sort(-2).values * chosen).sum(-2, keepdim=True)
    some = z[..., :: -(-z.shape[-2] // SAMPLED_ROWS), :].sort(-2).values
    return some[..., (some.shape[-2] - 1) // 2, :].unsqueeze(-2)


def extended_coordinates(
    x1: Tensor,
    x2: Tensor,
    square: bool,
    lengthscale: Tensor | None = None,
    *,
    centred: bool = True,
    guarded: bool = True,
) -> Tensor:
    """Factors of squared distances, stacked: (n1 + n2, d + 2), or a batch of them.

    Rows of the first factor, left, are (z, c |z|^2, 1), those of the second, right, are
    (z, 1, c |z|^2), for z = x / lengthscale minus ``centre`` and c = -(1 - 4 eps) / 2, so that
    left @ right.mT = -r2 / 2.

    Args:
        x1 (n1, d), x2 (n2, d): inputs; the same ones with ``square``. Or b of each.
        lengthscale: None: the inputs are already scaled.
        centred: whether the inputs are already centred.
        guarded: otherwise, as for ``centre``.
    """
    n1, n2, d = x1.shape[-2], x2.shape[-2], x1.shape[-1]
    dtype = x1.dtype if lengthscale is None else torch.result_type(x1, lengthscale)
    both = x1.new_ones(*x1.shape[:-2], n1 + n2, d + 2, dtype=dtype)
    first, last = slice(None, n1), slice(n1, None)
    coordinates = both[..., :-2]
    twice = both.view(*x1.shape[:-2], 2, n1, d + 2) if square else both  # the same rows, twice
    if square:
        parts = [(x1.unsqueeze(-3).expand(*x1.shape[:-2], 2, n1, d), twice[..., :-2])]
    else:
        parts = [(x1, coordinates[..., first, :]), (x2, coordinates[..., last, :])]
    for x, part in parts:
        if lengthscale is None:
            part.copy_(x)
        else:
            torch.div(x, lengthscale, out=part)
    if n2 and not centred:  # the distance does not depend on the centre: it carries no gradient
        z1, z2 = coordinates[..., first, :], coordinates[..., last, :]
        coordinates.sub_(centre(z1, z2, square, guarded=guarded))
    norms = coordinates.square().sum(-1)
    constant = -0.5 * (1.0 - 4.0 * torch.finfo(dtype).eps)
    if square:  # column d of the first half and d + 1 of the second
        places = twice[..., -2:].diagonal(dim1=-3, dim2=-1)
        torch.mul(norms.view(twice.shape[:-1]).mT, constant, out=places)
    else:
        torch.mul(norms[..., first], constant, out=both[..., first, -2])
        torch.mul(norms[..., last], constant, out=both[..., last, -1])
    return both


def distance_factors(z1: Tensor, z2: Tensor, square: bool) -> tuple[Tensor, Tensor]:
    """left (n1, d + 2) and right (n2, d + 2) of centred and scaled inputs."""
    both = extended_coordinates(z1, z2, square)
    return both[: len(z1)], both[len(z1) :]


def distances_(
    left: Tensor,
    right: Tensor,
    factor: float,
    offset: int | None,
    bounds: tuple[float, float],
    out: Tensor,
) -> Tensor:
    """One tile of ``factor`` times r2 from left and right, clamped to ``bounds``, in ``out``.

    ``offset`` is the column of the tile's first diagonal element, which is made exactly zero; None
    where the tile does not contain part of the diagonal.
    """
    product = torch.addmm if left.ndim == 2 else torch.baddbmm
    product(out, left, right.mT, beta=0.0, alpha=-2.0 * factor, out=out)
    out.clamp_(*bounds)
    if offset is not None:
        out.diagonal(offset, -2, -1).zero_()
    return out
