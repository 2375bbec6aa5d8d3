"""Classes as signs of latent targets, which make a probit model one of regression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpx.sampling.truncated_normal import signed_normals

if TYPE_CHECKING:
    from gpx.methods.reweighted.model import Reweighted

ROWS = 4096
"""Rows whose features are held at once."""


@torch.no_grad()
def redraw_latents(
    model: Reweighted,
    position: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    size: int,
    generator: torch.Generator,
) -> None:
    """One step of Gibbs sampling of the latent targets u of a probit model, given theta.

    y = sign(u) with u = m(x) + Phi w + noise of variance one: given u this is regression, of which
    the model keeps the sums Phi^T (u - m) and |u - m|^2. The weights are drawn given all u, then
    the u of some rows given these weights and the labels, and the sums follow the rows that moved.
    The weights are forgotten: a step of theta may come next, given u alone.

    Args:
        model: its ``latents`` and statistics move.
        position (k + 1,): theta.
        x (n, d), y (n,): all training data, labels -1 and 1.
        size: rows to redraw, min(size, n) consecutive ones from a random one on.
        generator: on the device of x.

    Cost: that of drawing weights (``ReweightedWeights.draw``) and O(size m), nothing of n.
    Source: Evans thesis, section 5.3.5; Albert and Chib 1993 (probit).
    """
    statistics, n = model.statistics, x.shape[0]
    weights = model.form.weights(position[:-1], position[-1]).draw(1, generator=generator)[0]
    start = torch.randint(n, (1,), generator=generator, device=x.device)
    chosen = (start + torch.arange(min(size, n), device=x.device)) % n
    projected, squared = statistics.projected.clone(), statistics.squared.clone()
    for rows in chosen.split(ROWS):
        features, offset = model.basis(x[rows]).double(), model.mean(x[rows]).double()
        drawn = signed_normals(offset + features @ weights, y[rows], generator=generator)
        new, old = drawn - offset, model.latents[rows]
        projected += (new - old) @ features
        squared += (new.square() - old.square()).sum()
        model.latents[rows] = new
    model.retarget(projected, squared)
