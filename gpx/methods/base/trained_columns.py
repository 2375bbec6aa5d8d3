"""The number of input columns of models whose basis takes inputs of any width."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gpx.data_sized import DataSized


class TrainedColumns(DataSized):
    """A model on a basis, or its posterior, that remembers the columns of its training inputs.

    Random Fourier features of an isotropic kernel draw other functions for inputs of another width,
    so that these would be taken without an error, for wrong numbers.

    The number is the width of the buffer ``trained_columns_of`` (0, d), which holds no numbers: its
    shape is known to the host without waiting for a device, and it is a part of the state. Without
    that buffer (before training, in states of earlier versions) the number is not known.
    """

    @property
    def trained_columns(self) -> int | None:
        """d of the training data; None if it is not known."""
        held = self._buffers.get("trained_columns_of")
        return None if held is None else held.shape[1]

    def remember_columns(self, like: Tensor, columns: int | None) -> None:
        """Keep d = ``columns``, in a buffer like the tensor ``like``; None: it is not known."""
        held = None if columns is None else like.detach().new_zeros(0, columns)
        self._set_columns(held)

    def _set_columns(self, held: Tensor | None) -> None:
        self._buffers.pop("trained_columns_of", None)
        if held is not None:
            self.register_buffer("trained_columns_of", held)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        held = state_dict.get(prefix + "trained_columns_of")
        device = next((part.device for part in self.parameters()), None)
        self._set_columns(None if held is None else held.to(device, copy=True))
        super()._load_from_state_dict(state_dict, prefix, *rest)
