"""AdaGrad on sampled rows that never waits for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class IndexedAdagrad(torch.optim.Adagrad):
    """``torch.optim.Adagrad`` whose sparse gradients are added up in a dense array on a GPU.

    torch sorts the sampled rows of a sparse gradient and adds up repeated ones, and has to ask the
    device how many are left: a wait in every step. Here repeated rows meet in an array of zeros of
    the parameter's size. A row that was not sampled has gradient zero: its sum of squares stays,
    and it moves by 0 / (sqrt(sum) + eps) = 0, which is what the sparse step leaves it at. A few
    passes over m numbers take a GPU less time than the wait. On a CPU, where nothing waits, the
    sparse step is kept, at a cost free of m; and for eps=0, where 0 / 0 would be no number.

    Args:
        params, options: as for ``torch.optim.Adagrad``.

    Cost: on a GPU O(m) time and m further numbers, in place of a sort and a wait.
    Source: Duchi, Hazan and Singer 2011.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """As in torch; sparse gradients of parameters on a GPU are spread out first."""
        for group in self.param_groups:
            for parameter in group["params"] if group["eps"] > 0 else ():
                gradient = parameter.grad
                if gradient is not None and gradient.is_sparse and not parameter.is_cpu:
                    parameter.grad = spread_out(gradient, parameter)
        return super().step(closure)


def spread_out(gradient: Tensor, like: Tensor) -> Tensor:
    """A sparse gradient with one sparse dimension, repeated rows added up, as a dense array."""
    rows = gradient._indices()[0].to(like.device)
    return torch.zeros_like(like).index_add_(0, rows, gradient._values().to(like.device))
