"""Modules whose print shows the values of their parameters."""

from __future__ import annotations

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from gpx.errors import class_name

MAX_ENTRIES = 6
"""Parameters with more entries are shown by their range, those of matrices by their shape."""
FIXED = " (fixed)"
"""What follows a value that is not trained."""
PARAMETRIZATIONS = "parametrizations"
"""The submodule in which torch keeps the unconstrained tensors of constrained parameters."""


class ShowsValues(nn.Module):
    """A module that is printed with its parameters, in natural units, and as it was written.

    ``print(kernel)`` gives ``RBF(lengthscale=0.3, outputscale=1 (fixed))``. Reading a value on a
    GPU waits for it.
    """

    def extra_repr(self) -> str:
        """The parameters of the module itself as ``name=value``; fixed ones are marked."""
        found: dict[str, tuple[Tensor, bool]] = {}
        constrained = self._modules.get(PARAMETRIZATIONS)
        for name, own in () if constrained is None else constrained.named_children():
            trained = any(raw.requires_grad for raw in own.parameters())
            found[name] = getattr(self, name).detach(), trained
        for name, parameter in self._parameters.items():
            if parameter is not None:
                found[name] = parameter.detach(), parameter.requires_grad
        columns = self._buffers.get("active_dims")
        shown = []
        if columns is not None and not columns.is_meta:
            shown.append(f"active_dims={columns.tolist()}")
        for name, (value, trained) in found.items():
            shown.append(f"{name}={_text(value)}" + ("" if trained else FIXED))
        return ", ".join(shown)

    def __repr__(self) -> str:
        lines = [
            f"({name}): " + repr(child).replace("\n", "\n  ")
            for name, child in self._modules.items()
            if child is not None and name != PARAMETRIZATIONS
        ]
        own = self.extra_repr()
        if not lines:
            return f"{class_name(self)}({own})"
        return "\n  ".join([f"{class_name(self)}(", *([own] if own else []), *lines]) + "\n)"


def _text(value: Tensor) -> str:
    if value.is_meta or isinstance(value, FakeTensor):  # without values
        return f"{tuple(value.shape)} on meta"
    if value.numel() == 1:
        return f"{value.item():.4g}"
    if value.ndim != 1:
        return " x ".join(map(str, value.shape))
    if value.numel() > MAX_ENTRIES:
        return f"[{value.numel()} from {value.min().item():.4g} to {value.max().item():.4g}]"
    return "[" + ", ".join(f"{entry:.4g}" for entry in value.tolist()) + "]"
