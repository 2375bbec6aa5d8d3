"""Kernel, mean function and noise of many experts, with shared or own hyperparameters."""

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
    """Unconstrained hyperparameters of K experts, stacked in one tensor per hyperparameter.

    Args:
        parts: modules by name, which give the names, shapes and initial values.
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
    def reset(self, parts: dict[str, nn.Module]) -> None:
        """Give every expert the values of ``parts``."""
        for part, module in parts.items():
            for name, value in _learned(module):
                stacked = getattr(self, self.places[part][name])
                stacked.copy_(_repeated(value, self.num_experts))

    def values(self, part: str, experts: Tensor) -> dict[str, Tensor]:
        """Hyperparameters (c, ...) of ``experts`` (c,) by dotted name; differentiable."""
        return {name: getattr(self, place)[experts] for name, place in self.places[part].items()}


def _learned(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def _repeated(value: Tensor, count: int) -> Tensor:
    return value.detach().expand(count, *value.shape).clone()


class ExpertParts(NamedTuple):
    """Kernel, mean function and noise of all experts.

    Attributes:
        kernel, mean, likelihood: of every expert; ``own`` replaces their hyperparameters.
        own: hyperparameters of every expert; None: all share those of kernel, mean, likelihood.
    """

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    own: OwnHyperparameters | None = None

    def named(self) -> dict[str, nn.Module]:
        """The three modules by name."""
        return {"kernel": self.kernel, "mean": self.mean, "likelihood": self.likelihood}

    @torch.no_grad()
    def of_expert(self, number: int) -> ExpertParts:
        """Copies of the three modules with the hyperparameters of one expert."""
        made = {name: copy.deepcopy(part) for name, part in self.named().items()}
        if self.own is not None:
            for part, module in made.items():
                values = self.own.values(part, torch.tensor(number))
                for name, parameter in module.named_parameters():
                    if name in values:
                        parameter.copy_(values[name])
        return ExpertParts(**made)  # type: ignore[arg-type]

    def kernel_parameters(self) -> list[nn.Parameter]:
        """Parameters that the covariances depend on."""
        if self.own is None:
            return [p for _, p in _learned(self.kernel)]
        return [getattr(self.own, place) for place in self.own.places["kernel"].values()]

    def covariances(self, experts: Tensor, left: Tensor, right: Tensor | None = None) -> Tensor:
        """Covariances (c, p, q) of ``experts`` (c,) between left (c, p, d) and right (c, q, d).

        Differentiable in the hyperparameters; ``right=None`` gives the matrices of ``left`` with
        itself. With own hyperparameters, kernels without a formula are evaluated expert by expert.
        """
        values = {} if self.own is None else self.own.values("kernel", experts)
        if not values:  # shared, or nothing of the kernel is trained
            return batched_covariances(self.kernel, left, right)
        if fused_profile(self.kernel) is not None:

            def scaled(held: dict[str, Tensor], z: Tensor) -> Tensor:
                return call_with(self.kernel, held, lambda k: coordinates(k, z[None])[0])

            def outputscale(held: dict[str, Tensor]) -> Tensor:
                return call_with(self.kernel, held, lambda k: k.outputscale)

            scale_inputs = torch.vmap(scaled)
            z1 = scale_inputs(values, left)
            z2 = None if right is None else scale_inputs(values, right)
            scale = torch.vmap(outputscale)(values).view(-1, 1, 1)
            return covariances_from_coordinates(self.kernel, z1, z2, scale)

        def one(held: dict[str, Tensor], a: Tensor, b: Tensor | None) -> Tensor:
            def matrix(kernel: Kernel) -> Tensor:
                if not kernel.has_formula:
                    return kernel.evaluate(a, b)
                second = None if b is None else b[None]
                return batched_covariances(kernel, a[None], second, mapped=True)[0]

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
        return self._map_experts("kernel", self.kernel, experts, lambda k, z: k.diagonal(z), x)

    def means(self, experts: Tensor, x: Tensor) -> Tensor:
        """Prior means (c, t) of ``experts`` at x (c, t, d); differentiable."""
        if self.own is None:
            found: Tensor = self.mean(x.flatten(0, 1))
            return found.view(x.shape[:2])
        return self._map_experts("mean", self.mean, experts, lambda m, z: m(z), x)

    def noise(self, experts: Tensor) -> Tensor:
        """Noise variances (c,) of ``experts``; differentiable."""
        if self.own is None or not len(experts):
            return self.likelihood.noise_variance.expand(len(experts))
        return self._map_experts("likelihood", self.likelihood, experts, lambda m: m.noise_variance)

    def _map_experts(
        self,
        part: str,
        module: nn.Module,
        experts: Tensor,
        function: Callable[..., Tensor],
        *arguments: Tensor,
    ) -> Tensor:
        """``function`` of a module with each expert's hyperparameters, stacked (c, ...)."""
        assert self.own is not None
        values = self.own.values(part, experts)
        if not values:  # no trainable hyperparameters: the same function for all
            found = [function(module, *(a[k] for a in arguments)) for k in range(len(experts))]
            return torch.stack(found)

        def one(held: dict[str, Tensor], *rest: Tensor) -> Tensor:
            return call_with(module, held, function, *rest)

        return torch.vmap(one)(values, *arguments)
