"""Many products of one entry per factor, each formed from a shorter one by one multiplication."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.backends.triton import triton_tree
from gpx.linalg.khatri_rao import khatri_rao_columns
from gpx.linalg.known_gradient import first_derivative_only

MIN_GROUND_PRODUCT = {torch.float64: 1e-174, torch.float32: 1e-17}
"""If a product of ground entries is below this, about half of the dtype's range of exponents,
logarithms are summed instead."""


class ProductPlan:
    """Order in which the products of p multi-indices are formed.

    Entry 0 of a factor is its largest, the ground entry. The p largest products of factors in
    descending order form a lower set: with a multi-index it contains every smaller one. The parent
    of a multi-index has its last nonzero entry set to zero, so that a product is its parent's times
    one ratio (entry over ground entry of that factor), whatever d. Parents missing because of ties
    or rounding are added.

    Args:
        index (p, d): entry of each factor, int64.

    Attributes:
        index (p, d): the multi-indices in the order of the products: by number of nonzero entries.
        order (p,): positions of the given multi-indices in that order.
        width: number of entries of each factor in use, the ground entry included.
        num_nodes: number of products formed, with those of added parents.
        parent (num_nodes,), ratio (num_nodes,): for each product its parent, and the number
            i (width - 1) + a - 1 of the ratio for entry a of factor i; int32 on the CPU, zero for
            the product of ground entries.

    Cost: O(p d log p), once per choice of index.
    """

    def __init__(self, index: Tensor) -> None:
        self.width = int(index.max()) + 1
        nodes = torch.unique(index, dim=0)
        while True:
            grown = torch.unique(torch.cat([nodes, _parents(nodes)]), dim=0)
            if len(grown) == len(nodes):
                break
            nodes = grown
        depth = (nodes > 0).sum(1)
        by_depth = depth.argsort(stable=True)
        nodes, depth = nodes[by_depth], depth[by_depth]
        self.num_nodes = len(nodes)
        # one numbering for nodes, parents and the multi-indices given
        _, label = torch.unique(
            torch.cat([nodes, _parents(nodes), index]), dim=0, return_inverse=True
        )
        row = torch.empty_like(label[: self.num_nodes])
        row[label[: self.num_nodes]] = torch.arange(self.num_nodes, device=index.device)
        parent, given = row[label[self.num_nodes : 2 * self.num_nodes]], row[label[-len(index) :]]
        wanted = torch.zeros_like(depth, dtype=torch.bool)
        wanted[given] = True
        self.kept = None if bool(wanted.all()) else wanted.nonzero().squeeze(1)
        self.order = (wanted.cumsum(0) - 1)[given]
        self.index = nodes[wanted]
        last = _last_nonzero(nodes)
        entry = nodes.gather(1, last[:, None]).squeeze(1)
        ratio = last * (self.width - 1) + entry - 1
        self.levels: list[tuple[slice, Tensor, Tensor]] = []
        start = 1
        for count in torch.bincount(depth)[1:].tolist():
            rows = slice(start, start + count)
            self.levels.append((rows, parent[rows], ratio[rows]))
            start += count
        compiled = torch.stack([parent, ratio]).to(torch.int32).cpu()
        compiled[:, 0] = 0
        self.parent, self.ratio = compiled.unbind()
        self._elsewhere: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """parent and ratio on a device, copied there once."""
        if device not in self._elsewhere:
            self._elsewhere[device] = self.parent.to(device), self.ratio.to(device)
        return self._elsewhere[device]


def _last_nonzero(index: Tensor) -> Tensor:
    """Column (p,) of the last nonzero entry of each row; 0 for a row of zeros."""
    columns = torch.arange(index.shape[1], device=index.device)
    return torch.where(index > 0, columns, 0).amax(1)


def _parents(index: Tensor) -> Tensor:
    """Every row with its last nonzero entry set to zero."""
    return index.scatter(1, _last_nonzero(index)[:, None], 0)


def tree_products(factors: Tensor, plan: ProductPlan) -> Tensor:
    """prod_i factors[i, index[j, i]] for every multi-index j of a plan, in its order: (p, n).

    Where the product of the ground entries is close to underflow, logarithms and signs are summed
    instead (``khatri_rao_columns``), at d times the cost: the product of 100 ground entries may
    underflow although other products do not.

    Args:
        factors (d, c, n): entries of each factor, at least those in use; ground entries first.
        plan: of the multi-indices.

    Returns:
        (p, n), differentiable once in ``factors``, also where entries are zero.

    Cost: (p + d c) n multiplications and two gathers of p rows, twice that and O(p n) memory for
    the gradient; on a CUDA device with Triton one launch each.
    Source: Evans thesis, theorem 4.2 and section 4.3.2; the order of the products is ours.
    """
    ground = factors[:, 0]
    root = ground.prod(0)
    low = MIN_GROUND_PRODUCT.get(factors.dtype, 1e-17)
    # exported programs use the form that is valid for all inputs
    if torch.compiler.is_exporting() or (
        root.numel() and not bool(root.detach().abs().amin() > low)
    ):
        entries = [f.mT for f in factors[:, : plan.width].unbind(0)]
        return khatri_rao_columns(entries, plan.index).mT
    ratio = factors[:, 1 : plan.width] / ground.unsqueeze(1)
    out = _Tree.apply(root, ratio.flatten(0, 1), plan)
    assert isinstance(out, Tensor)
    return out if plan.kept is None else out.index_select(0, plan.kept)


class _Tree(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, root: Tensor, ratio: Tensor, plan: ProductPlan) -> Tensor:
        ctx.plan, ctx.compiled = plan, triton_tree(root)
        if ctx.compiled:
            from gpx.backends.triton.tree import tree

            products = tree(root, ratio, *plan.on(root.device))
            ctx.save_for_backward(products, ratio)
            return products
        products = root.new_empty(plan.num_nodes, root.shape[0])
        products[0] = root
        largest = max((len(which) for _, _, which in plan.levels), default=0)
        scratch = torch.empty_like(products[:largest])
        for rows, parent, which in plan.levels:
            # gathers into existing memory: allocating it would cost more than the products
            here, gathered = products[rows], scratch[: len(which)]
            torch.index_select(ratio, 0, which, out=here)
            torch.index_select(products, 0, parent, out=gathered)
            here.mul_(gathered)
        ctx.save_for_backward(products, ratio)
        return products

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        products, ratio = ctx.saved_tensors
        if ctx.compiled:
            from gpx.backends.triton.tree import tree_gradients

            parent, which = ctx.plan.on(grad.device)
            return *tree_gradients(ratio, parent, which, products, grad), None
        grad = grad.clone()
        ratio_grad = torch.zeros_like(ratio)
        for rows, parent, which in reversed(ctx.plan.levels):
            here = grad[rows]
            ratio_grad.index_add_(0, which, here * products[parent])
            grad.index_add_(0, parent, here * ratio[which])
        return grad[0], ratio_grad, None
