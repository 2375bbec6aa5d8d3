"""AdaGrad for sparse gradients that does not synchronise with a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class IndexedAdagrad(torch.optim.Adagrad):
    """``torch.optim.Adagrad`` that makes sparse gradients dense on a GPU.

    torch sums repeated rows of a sparse gradient by sorting them, and the host then waits for the
    number of distinct rows in every step. Here they are summed into an array of zeros of the
    parameter's size, which is faster on a GPU. The result is the same: a row without gradient keeps
    its sum of squares and moves by 0 / (sqrt(sum) + eps) = 0. The sparse step is kept on a CPU,
    where its cost does not grow with m, and for eps=0, where 0 / 0 is undefined.

    Args:
        params, options: as for ``torch.optim.Adagrad``.

    Cost: on a GPU O(m) time and m further numbers, in place of a sort and a synchronisation.
    Source: Duchi, Hazan and Singer 2011.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """As in torch; sparse gradients of parameters on a GPU are made dense first."""
        for group in self.param_groups:
            for parameter in group["params"] if group["eps"] > 0 else ():
                gradient = parameter.grad
                if gradient is not None and gradient.is_sparse and not parameter.is_cpu:
                    parameter.grad = summed_rows_dense(gradient, parameter)
        return super().step(closure)


def summed_rows_dense(gradient: Tensor, like: Tensor) -> Tensor:
    """A sparse gradient with one sparse dimension as a dense array; repeated rows are summed."""
    rows = gradient._indices()[0].to(like.device)
    return torch.zeros_like(like).index_add_(0, rows, gradient._values().to(like.device))
