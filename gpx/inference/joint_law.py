"""Joint laws of the latent function at groups of inputs, differentiable in the inputs."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inference.batched_covariance import batched_covariances
from gpx.kernels.base import Kernel
from gpx.methods.base.model import Posterior


class Projected(NamedTuple):
    """What a posterior says of groups of inputs; everything about pairs of them follows from it.

    Attributes:
        x (..., q, d): the inputs, q in each group.
        mean (..., q): posterior mean.
        explained (..., q, r): rows e; the data take e . e' from the prior covariance k(x, x').
        added (..., q, s): rows a, whose a . a' is what approximate inference leaves uncertain of
            it; None where that is nothing.
    """

    x: Tensor
    mean: Tensor
    explained: Tensor
    added: Tensor | None = None


class JointLaw(Posterior):
    """A Gaussian posterior process with covariance k(x, x') - e . e' + a . a' (``Projected``).

    A subclass writes ``project_rows``; what is asked of pairs of inputs follows.
    """

    kernel: Kernel

    @abstractmethod
    def project_rows(self, x: Tensor) -> Projected:
        """Written by the subclass: ``Projected`` of one group x (n, d), differentiable in x.

        Raises:
            NotAvailable: this posterior has no joint law in closed form.
        """

    def project(self, x: Tensor) -> Projected:
        """``Projected`` of groups of inputs x (..., q, d), differentiable in x.

        Raises:
            NotAvailable: this posterior has no joint law in closed form.

        Cost: as a prediction of every row.
        """
        rows = self.project_rows(x.reshape(-1, x.shape[-1]))
        groups = x.shape[:-1]
        return Projected(
            x,
            rows.mean.reshape(groups),
            rows.explained.reshape(*groups, rows.explained.shape[-1]),
            None if rows.added is None else rows.added.reshape(*groups, rows.added.shape[-1]),
        )

    def covariance_between(self, left: Projected, right: Projected | None = None) -> Tensor:
        """Posterior covariances (..., p, q) of groups of p and of q inputs; None: left with itself.

        The groups' leading dimensions are broadcast. Without observation noise.

        Cost: r + s multiply-adds and a kernel entry for every pair.
        """
        other = left if right is None else right
        found = self._prior(left.x, None if right is None else right.x)
        found = found - left.explained @ other.explained.mT
        if left.added is not None and other.added is not None:
            found = found + left.added @ other.added.mT
        return found

    def _prior(self, left: Tensor, right: Tensor | None) -> Tensor:
        """k (..., p, q) between groups (..., p, d) and (..., q, d)."""
        if left.ndim == 2 and (right is None or right.ndim == 2):
            return self.kernel.evaluate(left, right)
        groups = left.shape[:-2]
        if right is not None:
            groups = torch.broadcast_shapes(groups, right.shape[:-2])
            right = right.expand(*groups, *right.shape[-2:]).reshape(-1, *right.shape[-2:])
        left = left.expand(*groups, *left.shape[-2:]).reshape(-1, *left.shape[-2:])
        found = batched_covariances(self.kernel, left, right)
        return found.reshape(*groups, *found.shape[-2:])

    @torch.no_grad()
    def joint_covariance(self, x: Tensor) -> Tensor:
        """As in ``Posterior``. Cost: that of predictions, and r + s operations a pair of rows."""
        return self.covariance_between(self.project_rows(x))
