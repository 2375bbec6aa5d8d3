"""AdaGrad and Adam for sparse gradients that do not synchronise with a GPU."""

from __future__ import annotations

import math
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


class IndexedSparseAdam(torch.optim.SparseAdam):
    """``torch.optim.SparseAdam`` that makes sparse gradients dense on a GPU.

    As for ``IndexedAdagrad``: torch would wait for the number of distinct rows. Moments and values
    of rows without gradient stay as they are, by a mask. Steps on a CPU, and steps with a closure,
    are torch's own.

    Args:
        params, options: as for ``torch.optim.SparseAdam``.

    Cost: on a GPU O(m) time and four further arrays of the parameter's size.
    Source: Kingma and Ba 2015, algorithm 1, on rows with a gradient.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """As in torch; parameters on a GPU are moved without waiting."""
        if closure is not None:
            return super().step(closure)
        moved: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and gradient.is_sparse and not parameter.is_cpu:
                    self._move(parameter, gradient, group)
                    moved.append((parameter, gradient))
                    parameter.grad = None  # torch passes it over
        found = super().step()
        for parameter, gradient in moved:
            parameter.grad = gradient
        return found

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        dense = summed_rows_dense(gradient, parameter)
        if group.get("maximize", False):
            dense.neg_()
        shape = (len(parameter), *[1] * (parameter.ndim - 1))
        touched = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
        touched.index_fill_(0, gradient._indices()[0].to(parameter.device), 1.0)
        mean.add_((dense - mean).mul_(touched), alpha=1.0 - first)
        square.add_((dense.square() - square).mul_(touched), alpha=1.0 - second)
        rate = float(group["lr"]) * math.sqrt(1.0 - second**step) / (1.0 - first**step)
        parameter.addcdiv_(mean * touched, square.sqrt().add_(group["eps"]), value=-rate)


def summed_rows_dense(gradient: Tensor, like: Tensor) -> Tensor:
    """A sparse gradient with one sparse dimension as a dense array; repeated rows are summed."""
    rows = gradient._indices()[0].to(like.device)
    return torch.zeros_like(like).index_add_(0, rows, gradient._values().to(like.device))
