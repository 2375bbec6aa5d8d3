"""The joint laws of several posterior processes, such as one for each sample of hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from gpx.errors import NotAvailable, class_name
from gpx.inference.joint_law import JointLaw, Projected
from gpx.methods.base.posterior import Marginals


class SeveralLaws(JointLaw):
    """S posterior processes of one form, as one law whose last group axis is that of the processes.

    Inputs are (..., S, q, d), or (..., 1, q, d), which all processes share; means are (..., S, q).
    ``Conditioned`` on x (..., S or 1, m, d) and y (..., S, m), each has observations of its own.

    Args:
        laws: S of them, with as many data or inducing points each.

    Cost: that of each, one after the other.
    """

    def __init__(self, laws: Sequence[JointLaw]) -> None:
        super().__init__()
        self.laws = nn.ModuleList(laws)

    def __iter__(self) -> Iterator[JointLaw]:
        return cast(Iterator[JointLaw], iter(self.laws))

    def __len__(self) -> int:
        return len(self.laws)

    @property
    def num_inputs(self) -> int | None:
        """As the processes."""
        return next(iter(self)).num_inputs

    def project_rows(self, x: Tensor) -> Projected:
        """As ``project``."""
        return self.project(x)

    def project(self, x: Tensor) -> Projected:
        """``Projected`` of groups x (..., S or 1, q, d), differentiable in x."""
        each = [law.project(own) for law, own in zip(self, self._apart(x), strict=True)]
        added = [part.added for part in each if part.added is not None]
        return Projected(
            x,
            torch.stack([part.mean for part in each], -2),
            torch.stack([part.explained for part in each], -3),
            torch.stack(added, -3) if added else None,
        )

    def _prior(self, left: Tensor, right: Tensor | None) -> Tensor:
        rights = [None] * len(self) if right is None else self._apart(right)
        parts = zip(self, self._apart(left), rights, strict=True)
        return torch.stack([law._prior(own, other) for law, own, other in parts], -3)

    def _apart(self, x: Tensor) -> list[Tensor]:
        """The inputs (..., q, d) of each process."""
        return [x.squeeze(-3)] * len(self) if x.shape[-3] == 1 else list(x.unbind(-3))

    def predict(self, x: Tensor) -> Marginals:
        """Means and variances (S, t) of the processes at x (t, d)."""
        means, variances = zip(*(law.predict(x) for law in self), strict=True)
        return Marginals(torch.stack(means), torch.stack(variances))

    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Raises NotAvailable: functions are drawn of one process at a time."""
        raise NotAvailable(
            f"{class_name(self)} has no functions of its own: draw them of one of its laws"
        )
