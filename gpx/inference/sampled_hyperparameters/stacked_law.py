"""The joint laws of exact processes that differ in their hyperparameters, as one batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpx.errors import NotAvailable, class_name
from gpx.inference.joint_law import JointLaw, Projected
from gpx.inference.sampled_hyperparameters.stacked import StackedProcesses
from gpx.inference.stacked_kernels import Stacks, mapped, stacked_covariances
from gpx.kernels.base import Kernel
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals


class StackedLaw(JointLaw):
    """S exact processes as one law, whose last group axis is that of the processes.

    What ``SeveralLaws`` is of any processes, one after the other. Inputs are (..., S, q, d), or
    (..., 1, q, d), which all processes share; means are (..., S, q).

    Args:
        processes: as one batch.
        chosen: numbers (S,) of those that it has.

    Cost: S n^2 multiply-adds a row, and S kernel entries for every pair in a group.
    """

    inputs: Tensor
    roots: Tensor
    weights: Tensor

    def __init__(self, processes: StackedProcesses, chosen: Tensor) -> None:
        super().__init__()
        self.kernel: Kernel = processes.kernel
        self.mean: Mean = processes.mean
        self.register_buffer("inputs", processes.inputs)
        self.register_buffer("roots", processes.roots[chosen])
        self.register_buffer("weights", processes.weights[chosen])
        # by name: parameters of a copy have other ids
        for name, parameter in self._parameters_of_parts():
            self.register_buffer(name, processes.stacks[id(parameter)][chosen])

    def _parameters_of_parts(self) -> list[tuple[str, nn.Parameter]]:
        parts = (("kernel", self.kernel), ("mean", self.mean))
        return [
            (f"{part}_values_{number}", parameter)
            for part, module in parts
            for number, parameter in enumerate(module.parameters())
        ]

    def _stacks(self, repeats: int = 1) -> Stacks:
        """Values of all parameters, those of the S processes ``repeats`` times."""
        found = {}
        for name, parameter in self._parameters_of_parts():
            values = self.get_buffer(name)
            found[id(parameter)] = values.repeat(repeats, *[1] * (values.ndim - 1))
        return found

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def num_inputs(self) -> int:
        """Number of columns of the data."""
        return self.inputs.shape[1]

    def project_rows(self, x: Tensor) -> Projected:
        """As ``project``."""
        return self.project(x)

    def project(self, x: Tensor) -> Projected:
        """``Projected`` of groups x (..., S or 1, q, d), differentiable in x."""
        groups = x.expand(*x.shape[:-3], len(self), *x.shape[-2:]).movedim(-3, 0)
        rows = groups.reshape(len(self), -1, x.shape[-1])  # (S, t, d)
        stacks = self._stacks()
        known = self.inputs.expand(len(self), *self.inputs.shape)
        cross = stacked_covariances(self.kernel, stacks, rows, known)  # (S, t, n)
        offset = mapped(self.mean, stacks, lambda own, at: own(at), rows)
        mean = offset + (cross @ self.weights.unsqueeze(2)).squeeze(2)
        explained = torch.linalg.solve_triangular(self.roots, cross.mT, upper=False).mT
        mean = mean.reshape(groups.shape[:-1]).movedim(0, -2)
        explained = explained.reshape(*groups.shape[:-1], len(self.inputs)).movedim(0, -3)
        return Projected(x, mean, explained)

    def _prior(self, left: Tensor, right: Tensor | None) -> Tensor:
        others = [left] if right is None else [left, right]
        groups = torch.broadcast_shapes((len(self),), *(part.shape[:-2] for part in others))
        flat = [part.expand(*groups, *part.shape[-2:]).flatten(0, -3) for part in others]
        stacks = self._stacks(groups.numel() // len(self))
        return stacked_covariances(self.kernel, stacks, *flat).unflatten(0, groups)

    def predict(self, x: Tensor) -> Marginals:
        """Means and variances (S, t) of the processes at x (t, d)."""
        there = self.project(x[:, None, None])  # t groups of one row
        mean, variance = there.mean[..., 0], self.covariance_between(there)[..., 0, 0]
        return Marginals(mean.mT, variance.mT.clamp_min(0.0))

    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Raises NotAvailable: functions are drawn of one process at a time."""
        raise NotAvailable(
            f"{class_name(self)} has no functions of its own: draw them from the mixture"
        )
