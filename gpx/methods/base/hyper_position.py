"""Hyperparameters as one unconstrained vector, for Markov chains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from gpx.constraints import MARGIN, Positive, positive_parameters


class HyperPosition:
    """The parameters of some modules as a vector u (k,), with logarithms of the positive ones.

    Args:
        modules: kernel, mean function and others, such as a likelihood. A parameter that several
            of them share is one entry, under its first name.
        fixed: whether parameters without gradients, which stay fixed in training, are part of u.

    Attributes:
        entries: the parameters, with their constraints if they are positive.
        names: of the parameters, dotted, in their module.
        logarithms (k,): bool, whether an entry is the logarithm of a positive value.
        learned (k,): bool, whether an entry is of a parameter with gradients.
    """

    def __init__(self, modules: Sequence[nn.Module], *, fixed: bool = False) -> None:
        self.entries: list[tuple[nn.Parameter, Positive | None]] = []
        self.names: list[str] = []
        seen: set[int] = set()
        for module in modules:
            known = {id(each.raw): each for each in positive_parameters(module)}
            for name, raw in module.named_parameters():
                if id(raw) not in seen and (fixed or raw.requires_grad):
                    seen.add(id(raw))
                    positive = known.get(id(raw))
                    self.entries.append((raw, None if positive is None else positive.constraint))
                    self.names.append(name if positive is None else positive.name)
        logarithms = [c is not None for p, c in self.entries for _ in range(p.numel())]
        self.logarithms = torch.tensor(logarithms, dtype=torch.bool)
        flags = [p.requires_grad for p, _ in self.entries for _ in range(p.numel())]
        self.learned = torch.tensor(flags, dtype=torch.bool)
        self._bounds: tuple[Tensor, Tensor] | None = None

    @property
    def size(self) -> int:
        """k."""
        return sum(parameter.numel() for parameter, _ in self.entries)

    def read(self) -> Tensor:
        """The vector u (k,) of the modules' present values, float64."""
        parts = [
            (raw if constraint is None else constraint(raw).log()).detach().double().reshape(-1)
            for raw, constraint in self.entries
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def move(self, position: Tensor) -> None:
        """Set the modules' parameters from u (k,), which ``allows`` must accept."""
        for _ in self.visit(position[None]):
            pass

    @torch.no_grad()
    def visit(self, positions: Tensor) -> Iterator[None]:
        """Set the modules' parameters from each u of (c, k), which ``allows`` must accept."""
        sizes = [parameter.numel() for parameter, _ in self.entries]
        columns = positions.split(sizes, dim=1)
        made = [
            part if constraint is None else constraint.unconstrained(part.exp())
            for part, (_, constraint) in zip(columns, self.entries, strict=True)
        ]
        for row in range(len(positions)):
            for (raw, _), part in zip(self.entries, made, strict=True):
                raw.copy_(part[row].view(raw.shape))
            yield

    def stacks(self, positions: Tensor, module: nn.Module) -> dict[int, Tensor]:
        """All unconstrained parameters of a module at each u of (c, k): stacks (c, ...), by ``id``.

        Those that are no part of u keep their values. Differentiable in u, which ``allows`` must
        accept.
        """
        count = len(positions)
        found = {id(p): p.detach().expand(count, *p.shape) for p in module.parameters()}
        columns = positions.split([raw.numel() for raw, _ in self.entries], dim=1)
        for part, (raw, constraint) in zip(columns, self.entries, strict=True):
            own = part if constraint is None else constraint.unconstrained(part.exp())
            found[id(raw)] = own.view(count, *raw.shape)
        return found

    def gradient(self, value: Tensor) -> Tensor:
        """Gradient (k,) by u of ``value`` (), which was computed from the modules; float64."""
        raws = [raw for raw, _ in self.entries]
        found = torch.autograd.grad(value, raws, allow_unused=True)
        parts = []
        for (raw, constraint), by_raw in zip(self.entries, found, strict=True):
            by_u = torch.zeros_like(raw) if by_raw is None else by_raw
            if constraint is not None:
                free = raw.detach().double().requires_grad_()
                with torch.enable_grad():
                    logarithm = constraint(free).log().sum()
                by_u = by_u / torch.autograd.grad(logarithm, free)[0]
            parts.append(by_u.double().reshape(-1))
        return torch.cat(parts)

    def lowest(self) -> Tensor:
        """Infimum (k,) of u, at the floors of positive parameters; float64."""
        found = []
        for raw, constraint in self.entries:
            floor = 0.0 if constraint is None else constraint.floor
            found += [math.log((1.0 + MARGIN) * floor) if floor > 0.0 else -math.inf] * raw.numel()
        return torch.tensor(found, dtype=torch.float64)

    def above_floors(self, free: Tensor) -> Tensor:
        """u (..., k) of coordinates v (..., k) that any real number may be.

        Of positive parameters with a floor v is the logarithm of the distance from the infimum of
        their values, so that a density of v has no wall there; of all others it is u.
        """
        return torch.logaddexp(free, self._bounds_on(free.device)[0])

    def free(self, position: Tensor) -> Tensor:
        """v (..., k) of u (..., k), which must be above ``lowest``: see ``above_floors``."""
        lowest = self._bounds_on(position.device)[0]
        return position + torch.log1p(-(lowest - position).exp())

    def allows(self, positions: Tensor) -> Tensor:
        """Whether u (..., k) is finite and every positive parameter above its floor: bool (...)."""
        lowest, largest = self._bounds_on(positions.device)
        return ((positions > lowest) & (positions.abs() < largest)).all(-1)

    def _bounds_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """``lowest()`` and the bound (k,) of absolute values; copied once, as chains ask often."""
        if self._bounds is None or self._bounds[0].device != device:
            # exp(50) is beyond any scale of standardised data
            largest = torch.where(self.logarithms, 50.0, math.inf).double()
            self._bounds = self.lowest().to(device), largest.to(device)
        return self._bounds
