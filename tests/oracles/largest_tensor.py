"""Watches how large the tensors are that operations return."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns, sparse ones left out.

    Attributes:
        entries: most entries of one.
        bytes: most memory of one; a view has that of the whole.
    """

    entries = bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for found in tree_leaves(out):
            if isinstance(found, torch.Tensor) and found.layout == torch.strided:
                self.entries = max(self.entries, found.numel())
                self.bytes = max(self.bytes, found.untyped_storage().nbytes())
        return out
