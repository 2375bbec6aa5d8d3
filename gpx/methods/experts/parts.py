"""Kernel, mean function and noise of many experts: one for all, or one each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gpx.backends.entries import call_with
from gpx.data_sized import DataSized
from gpx.inference.batched_covariance import (
    batched_covariances,
    coordinates,
    covariances_from_coordinates,
    fused_profile,
)
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean


class OwnHyperparameters(DataSized):
    """K values of every hyperparameter, as the optimiser sees it, in one tensor each.

    Args:
        parts: what has the hyperparameters, by name; gives names, shapes and first values.
        num_experts: K.
    """

    def __init__(self, parts: dict[str, nn.Module], num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.places: dict[str, dict[str, str]] = {}
        for part, module in parts.items():
            own = {name: f"{part}_{name.replace('.', '_')}" for name, _ in _learned(module)}
            self.places[part] = own
            for name, value in _learned(module):
                self.register_parameter(own[name], nn.Parameter(_repeated(value, num_experts)))

    @torch.no_grad()
    def spread(self, parts: dict[str, nn.Module]) -> None:
        """Give every expert the values that ``parts`` have."""
        for part, module in parts.items():
            for name, value in _learned(module):
                stacked = getattr(self, self.places[part][name])
                stacked.copy_(_repeated(value, self.num_experts))

    def values(self, part: str, experts: Tensor) -> dict[str, Tensor]:
        """Hyperparameters of ``experts`` (c,) by dotted name, (c, ...) each; differentiable."""
        return {name: getattr(self, place)[experts] for name, place in self.places[part].items()}


def _learned(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def _repeated(value: Tensor, count: int) -> Tensor:
    return value.detach().expand(count, *value.shape).clone()


class ExpertParts(NamedTuple):
    """What the experts are made of.

    Attributes:
        kernel, mean, likelihood: of every expert, or what ``own`` holds values for.
        own: hyperparameters of every expert; None: all share those of the parts.
    """

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    own: OwnHyperparameters | None = None

    def named(self) -> dict[str, nn.Module]:
        """The parts by name."""
        return {"kernel": self.kernel, "mean": self.mean, "likelihood": self.likelihood}

    @torch.no_grad()
    def of_expert(self, number: int) -> ExpertParts:
        """Copies of the parts with the hyperparameters of one expert, shared by no other."""
        made = {name: copy.deepcopy(part) for name, part in self.named().items()}
        if self.own is not None:
            for part, module in made.items():
                values = self.own.values(part, torch.tensor(number))
                for name, parameter in module.named_parameters():
                    if name in values:
                        parameter.copy_(values[name])
        return ExpertParts(**made)  # type: ignore[arg-type]

    def kernel_parameters(self) -> list[nn.Parameter]:
        """Those that covariances are differentiable in."""
        if self.own is None:
            return [p for _, p in _learned(self.kernel)]
        return [getattr(self.own, place) for place in self.own.places["kernel"].values()]

    def covariances(self, experts: Tensor, left: Tensor, right: Tensor | None = None) -> Tensor:
        """k of ``experts`` (c,) between left (c, p, d) and right (c, q, d): (c, p, q).

        Differentiable in the hyperparameters; ``right`` None: the square matrices of ``left``.
        Kernels that are no function of distances are evaluated one by one where every expert has
        hyperparameters of its own.
        """
        if self.own is None:
            return batched_covariances(self.kernel, left, right)
        values = self.own.values("kernel", experts)
        if fused_profile(self.kernel) is not None:

            def scaled(held: dict[str, Tensor], z: Tensor) -> Tensor:
                return call_with(self.kernel, held, lambda k: coordinates(k, z[None])[0])

            def outputscale(held: dict[str, Tensor]) -> Tensor:
                return call_with(self.kernel, held, lambda k: k.outputscale)

            spread = torch.vmap(scaled)
            z1 = spread(values, left)
            z2 = None if right is None else spread(values, right)
            scale = torch.vmap(outputscale)(values).view(-1, 1, 1)
            return covariances_from_coordinates(self.kernel, z1, z2, scale)

        def one(held: dict[str, Tensor], a: Tensor, b: Tensor | None) -> Tensor:
            def matrix(kernel: Kernel) -> Tensor:
                if not kernel.has_formula:
                    return kernel.evaluate(a, b)
                return batched_covariances(kernel, a[None], None if b is None else b[None])[0]

            return call_with(self.kernel, held, matrix)

        if self.kernel.has_formula:
            return torch.vmap(one, in_dims=(0, 0, None if right is None else 0))(
                values, left, right
            )
        found = []
        for k in range(len(experts)):
            held = {name: value[k] for name, value in values.items()}
            found.append(one(held, left[k], None if right is None else right[k]))
        return torch.stack(found)

    def variances(self, experts: Tensor, x: Tensor) -> Tensor:
        """Prior variances (c, t) of ``experts`` at x (c, t, d)."""
        if self.own is None:
            return self.kernel.diagonal(x.flatten(0, 1)).view(x.shape[:2])
        return self._each("kernel", self.kernel, experts, lambda k, z: k.diagonal(z), x)

    def means(self, experts: Tensor, x: Tensor) -> Tensor:
        """Prior means (c, t) of ``experts`` at x (c, t, d); differentiable."""
        if self.own is None:
            found: Tensor = self.mean(x.flatten(0, 1))
            return found.view(x.shape[:2])
        return self._each("mean", self.mean, experts, lambda m, z: m(z), x)

    def noise(self, experts: Tensor) -> Tensor:
        """Noise variances (c,) of ``experts``; differentiable."""
        if self.own is None or not len(experts):
            return self.likelihood.noise_variance.expand(len(experts))
        return self._each("likelihood", self.likelihood, experts, lambda m: m.noise_variance)

    def _each(
        self,
        part: str,
        module: nn.Module,
        experts: Tensor,
        function: Callable[..., Tensor],
        *arguments: Tensor,
    ) -> Tensor:
        assert self.own is not None
        values = self.own.values(part, experts)
        if not values:  # nothing learned: the same function for all
            found = [function(module, *(a[k] for a in arguments)) for k in range(len(experts))]
            return torch.stack(found)

        def one(held: dict[str, Tensor], *rest: Tensor) -> Tensor:
            return call_with(module, held, function, *rest)

        return torch.vmap(one)(values, *arguments)
