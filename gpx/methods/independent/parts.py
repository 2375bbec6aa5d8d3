"""Kernel and mean of every target of a model whose targets share nothing, and all as one matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpx.backends.entries import call_with
from gpx.bounds import limits_within
from gpx.constraints import positive_parameters
from gpx.errors import ConfigError, class_name
from gpx.inference.stacked_kernels import Stacks
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.means.base import Mean


class TargetParts(nn.Module):
    """Kernel and mean function of one target."""

    kernel: Kernel
    mean: Mean

    def __init__(self, kernel: Kernel, mean: Mean) -> None:
        super().__init__()
        self.kernel, self.mean = kernel, mean


class OwnParts(NamedTuple):
    """Kernel, mean and noise variance () of one target, as functions of a vector."""

    kernel: Kernel
    mean: Mean
    noise: Tensor


class StackedParts:
    """The unconstrained hyperparameters of p targets as a matrix (p, K): a row for each.

    A row has the parameters of the kernel, those of the mean, and last the noise variance. If
    targets have kernels of several forms, K is that of the longest row, and rows end with zeros
    before their noise.

    Args:
        targets: kernel and mean of each.
        likelihood: has their noise variances.

    Attributes:
        alike: whether all kernels and means are of one form, to be evaluated together.
        template: parts of the first target.
    """

    def __init__(self, targets: Sequence[TargetParts], likelihood: GaussianOutputs) -> None:
        self.targets, self.likelihood = list(targets), likelihood
        self.template = self.targets[0]
        # a parameter that two parts share, as in k ** 2, comes once
        self.parameters = [list(each.parameters()) for each in self.targets]
        (self.noise,) = positive_parameters(likelihood, below=False)
        sizes = [sum(parameter.numel() for parameter in each) for each in self.parameters]
        self.width = 1 + max(sizes)
        self._gaps = [self.width - 1 - size for size in sizes]
        self.alike = all(_of_one_form(self.template, other) for other in self.targets[1:])
        self._places = [
            (module._parameters, name, parameter)
            for each in (*self.targets, likelihood)
            for module in each.modules()
            for name, parameter in module._parameters.items()
        ]

    def holds(self) -> bool:
        """Whether no parameter of the targets was replaced by another one."""
        return all(held.get(name) is parameter for held, name, parameter in self._places)

    def read(self) -> Tensor:
        """The matrix (p, K), differentiable in the parameters."""
        noise = self.noise.raw
        pieces = []
        for own, gap in zip(self.parameters, self._gaps, strict=True):
            pieces += [parameter.reshape(-1) for parameter in own]
            if gap:
                pieces.append(noise.new_zeros(gap))
        rows = torch.cat(pieces) if pieces else noise.new_zeros(0)
        return torch.cat([rows.view(len(noise), self.width - 1), noise.unsqueeze(1)], 1)

    @torch.no_grad()
    def write(self, values: Tensor, targets: Sequence[int] | None = None) -> None:
        """Set the parameters to the rows of a matrix (p, K); fixed ones stay.

        Args:
            targets: whose parameters to set; None: those of all.
        """
        values = values.to(self.noise.raw)  # one transfer to their device
        places: list[Tensor] = []
        parts: list[Tensor] = []
        for target in range(len(self.targets)) if targets is None else targets:
            own = self.parameters[target]
            sizes = [parameter.numel() for parameter in own]
            pieces = values[target, : sum(sizes)].split(sizes) if sizes else ()
            for parameter, piece in zip(own, pieces, strict=True):
                if parameter.requires_grad:
                    places.append(parameter)
                    parts.append(piece.view(parameter.shape))
        if self.noise.raw.requires_grad:
            places.append(self.noise.raw)
            parts.append(values[:, -1])
        if places:
            torch._foreach_copy_(places, parts)

    def trained(self) -> Tensor:
        """Which entries of the matrix are trained: bool (p, K)."""
        return self._of_each(lambda parameter: float(parameter.requires_grad), 0.0) > 0.0

    def limits(
        self, bounds: Mapping[str, tuple[float, float]] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Lowest and largest values (p, K) of the matrix, where a search keeps them.

        Args:
            bounds: by dotted name of a positive parameter, in natural units: ``kernel.lengthscale``
                of every target, ``targets.1.kernel.lengthscale`` of the second. None: those that
                the parameters remember (``gpx.bounds.remember_bounds``).

        Raises:
            ConfigError: no positive parameter has this name.
        """
        owner = nn.Module()
        owner.targets, owner.likelihood = nn.ModuleList(self.targets), self.likelihood
        named = None if bounds is None else bounds_of_each(bounds, owner)
        every = list(owner.parameters())
        lower, upper = limits_within(owner, every, named)
        low = {id(parameter): limit for parameter, limit in zip(every, lower, strict=True)}
        high = {id(parameter): limit for parameter, limit in zip(every, upper, strict=True)}
        return (
            self._of_each(lambda parameter: low[id(parameter)], -math.inf),
            self._of_each(lambda parameter: high[id(parameter)], math.inf),
        )

    def stacks(self, values: Tensor) -> tuple[Stacks, Tensor]:
        """Stacks of the template's parameters, and noise variances (b,), of rows (b, K)."""
        own = self.parameters[0]
        sizes = [parameter.numel() for parameter in own]
        pieces = values[:, : sum(sizes)].split(sizes, dim=1)
        stacks = {
            id(parameter): piece.view(len(values), *parameter.shape)
            for parameter, piece in zip(own, pieces, strict=True)
        }
        return stacks, self.noise.constraint(values[:, -1])

    def own(self, target: int, row: Tensor) -> OwnParts:
        """Parts of one target with the values of a row (K,), differentiable in it."""
        parts, values, start = self.targets[target], {}, 0
        for name, parameter in parts.named_parameters():
            piece = row[start : start + parameter.numel()]
            values[name], start = piece.view_as(parameter), start + parameter.numel()
        found = call_with(parts, values, lambda made: made) if values else parts
        return OwnParts(found.kernel, found.mean, self.noise.constraint(row[-1]))

    def _of_each(self, of: Callable[[Tensor], float], otherwise: float) -> Tensor:
        """A number for every entry of the matrix, from one for each parameter."""
        rows = []
        for own in self.parameters:
            entries = [number for q in own for number in [of(q)] * q.numel()]
            entries += [otherwise] * (self.width - 1 - len(entries))
            rows.append([*entries, of(self.noise.raw)])
        return torch.tensor(rows, dtype=torch.float64, device=self.noise.raw.device)


def _of_one_form(left: TargetParts, right: TargetParts) -> bool:
    """Whether two kernels and means differ in the values of their parameters only."""
    for one, other in ((left.kernel, right.kernel), (left.mean, right.mean)):
        if [class_name(m) for m in one.modules()] != [class_name(m) for m in other.modules()]:
            return False
        if [p.shape for p in one.parameters()] != [p.shape for p in other.parameters()]:
            return False
        for a, b in zip(one.modules(), other.modules(), strict=True):
            if _options(a) != _options(b):
                return False
        buffers = zip(one.buffers(), other.buffers(), strict=True)
        if not all(a.shape == b.shape and torch.equal(a, b) for a, b in buffers):
            return False
    return True


def _options(module: nn.Module) -> dict[str, object]:
    """Plain attributes of a module, such as the degree of a polynomial, and sequences of these."""
    plain = (bool, int, float, str, type(None))
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, plain)
        or (
            not name.startswith("_")
            and isinstance(value, (tuple, list))
            and all(isinstance(each, plain) for each in value)
        )
    }


def bounds_of_each(
    bounds: Mapping[str, tuple[float, float]], owner: nn.Module
) -> dict[str, tuple[float, float]]:
    """Bounds by the full names of a model's parameters, from those by names that every target has.

    Raises:
        ConfigError: no positive parameter has this name.
    """
    known = [each.name for each in positive_parameters(owner)]
    found: dict[str, tuple[float, float]] = {}
    for name, pair in bounds.items():
        full = [each for each in known if each == name or each.endswith(f".{name}")]
        if not full:
            short = dict.fromkeys(each.split(".", 2)[-1] for each in known[:-1])
            raise ConfigError(
                f"bounds of {name}: there is no such positive parameter; there are "
                f"{', '.join([*short, known[-1]])}"
            )
        found |= dict.fromkeys(full, pair)
    return found
