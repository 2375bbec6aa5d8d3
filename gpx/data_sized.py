"""Modules with buffers whose sizes depend on the data or on a solve."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gpx.shown_values import ShowsValues


class DataSized(ShowsValues):
    """A module with buffers that are empty before training and load with any size.

    torch refuses to load a tensor of another shape than the buffer. Here the buffers named in
    ``data_sized`` get shape and dtype of the stored tensor, on their own device.

    Attributes:
        data_sized: names of buffers (or parameters) of the module itself.
        derived: names of attributes that are computed from the state at first use and None before.
            They are reset to None when the state, its precision or its device changes, and in
            copies and pickles. A module among them is no submodule, so no part of the state.
    """

    data_sized: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()

    def register_data_sized(self) -> None:
        """Register the buffers of ``data_sized``, empty until filled by ``keep`` or a loaded state.

        They are on the device of the module's parameters, so that a state is loaded onto it.
        """
        device = next((parameter.device for parameter in self.parameters()), None)
        for name in self.data_sized:
            self.register_buffer(name, torch.zeros(0, device=device))

    def keep(self, like: Tensor, **values: Tensor) -> None:
        """Fill buffers with copies of ``values``, with dtype and device of ``like``."""
        for name, value in values.items():
            # row-major: triangular solves with a column-major factor of LAPACK would be slower
            copied = value.detach().to(like)
            setattr(self, name, copied.clone(memory_format=torch.contiguous_format))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.derived:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _forget_derived(self) -> None:
        for name in self.derived:
            setattr(self, name, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **dict.fromkeys(self.derived)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle; what a version before did not have is empty."""
        super().__setstate__(state)
        for name in self.derived:
            self.__dict__.setdefault(name, None)
            self._modules.pop(name, None)  # earlier versions registered it
        for name in self.data_sized:
            if name not in self._buffers and name not in self._parameters:
                self.register_buffer(name, torch.zeros(0))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._forget_derived()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._forget_derived()
        worked_out = tuple(f"{prefix}{name}." for name in self.derived)
        for key in [key for key in state_dict if key.startswith(worked_out)]:
            del state_dict[key]  # earlier versions stored modules that are derived
        for name in self.data_sized:
            stored = state_dict.get(prefix + name)
            if not isinstance(stored, Tensor) or not hasattr(self, name):
                continue
            current = getattr(self, name)  # None: a buffer without a value
            device = stored.device if current is None else current.device
            resized = torch.empty_like(stored, device=device)
            if isinstance(current, nn.Parameter):
                if current.shape != resized.shape:
                    current.grad = None  # of the size before; no other could be added to it
                current.data = resized
            else:
                setattr(self, name, resized)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class PartlyInDouble(DataSized):
    """A module whose ``in_double`` buffers keep their precision, float64, on any device.

    Attributes:
        in_double: names of buffers (or parameters) of the module itself.
    """

    in_double: ClassVar[tuple[str, ...]] = ()

    def _names_in_double(self) -> tuple[str, ...]:
        return self.in_double

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = {name: getattr(self, name).data for name in self._names_in_double()}
        super()._apply(fn, recurse)
        for name, value in before.items():
            current = getattr(self, name)
            if isinstance(current, nn.Parameter):
                current.data = value.to(current.device)
            else:
                setattr(self, name, value.to(current.device))
        return self


class InDoublePrecision(PartlyInDouble):
    """A module whose ``data_sized`` and ``in_double`` buffers stay in float64, on any device."""

    def _names_in_double(self) -> tuple[str, ...]:
        return (*self.data_sized, *self.in_double)
