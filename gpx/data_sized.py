"""Modules that keep things whose sizes only the data or a solve decide."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class DataSized(nn.Module):
    """A module with buffers that are empty until data have been seen, and load at any size.

    torch refuses a stored tensor of another shape than the buffer that waits for it. Here the
    buffers named in ``data_sized`` take shape and dtype of what is stored first, on the device
    where they are.

    Attributes:
        data_sized: names of buffers (or parameters) of this very module.
        derived: names of plain attributes that are worked out from the state when they are first
            asked for, and None until then: they are None again once the state is another, or in
            another precision, or elsewhere, and in copies and pickles.
    """

    data_sized: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()

    def register_data_sized(self) -> None:
        """The buffers of ``data_sized``, empty until ``keep`` or a stored state fills them.

        They wait where the module's parameters are, so that a state that is loaded goes there.
        """
        device = next((parameter.device for parameter in self.parameters()), None)
        for name in self.data_sized:
            self.register_buffer(name, torch.zeros(0, device=device))

    def keep(self, like: Tensor, **values: Tensor) -> None:
        """Fill buffers with copies of ``values``, in the dtype and on the device of ``like``."""
        for name, value in values.items():
            # rows in order: a factor as LAPACK leaves it makes later triangular solves slower
            made = value.detach().to(like)
            setattr(self, name, made.clone(memory_format=torch.contiguous_format))

    def _forget_derived(self) -> None:
        for name in self.derived:
            setattr(self, name, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **dict.fromkeys(self.derived)}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._forget_derived()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._forget_derived()
        for name in self.data_sized:
            stored = state_dict.get(prefix + name)
            if not isinstance(stored, Tensor) or not hasattr(self, name):
                continue
            here = getattr(self, name)  # None: a buffer that does not exist yet
            device = stored.device if here is None else here.device
            fitting = torch.empty_like(stored, device=device)
            if isinstance(here, nn.Parameter):
                here.data = fitting
            else:
                setattr(self, name, fitting)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class InDoublePrecision(DataSized):
    """Moves between devices, but what is ``data_sized`` or ``in_double`` stays in float64.

    Attributes:
        in_double: names of further buffers (or parameters) of this very module.
    """

    in_double: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        kept = {name: getattr(self, name).data for name in (*self.data_sized, *self.in_double)}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            here = getattr(self, name)
            if isinstance(here, nn.Parameter):
                here.data = value.to(here.device)
            else:
                setattr(self, name, value.to(here.device))
        return self
