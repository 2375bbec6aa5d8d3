"""Triton: products of one function per input, each from a shorter product by one multiplication.

Node j is node ``parent[j]`` times ratio ``which[j]``, node 0 the root (see
``gpx.bases.grid_eigenfunctions.products``). Points are independent, so each program has some points
and computes all nodes in order: one launch instead of three for every level. A thread has exactly
one point, so it only reads values that it wrote itself; there is no other assignment of points to
threads that the compiler could choose for some of the loads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 4
POINTS = 32 * WARPS
"""Points of one program, one for each of its threads."""


def plain_tree(root: Tensor, ratio: Tensor, parent: Tensor, which: Tensor) -> Tensor:
    """``tree`` in torch, differentiable; a Python loop over nodes, for tests."""
    nodes = [root]
    for above, here in zip(parent[1:].tolist(), which[1:].tolist(), strict=True):
        nodes.append(nodes[above] * ratio[here])
    return torch.stack(nodes)


@triton.jit
def tree_kernel(root, ratio, parent, which, nodes, total, points, POINTS: tl.constexpr):
    """nodes (total, points), of root (points,) and ratio (..., points). Grid: blocks of points."""
    at = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    inside = at < points
    tl.store(nodes + at, tl.load(root + at, mask=inside), mask=inside)
    for node in range(1, total):
        above = tl.load(parent + node).to(tl.int64) * points
        factor = tl.load(which + node).to(tl.int64) * points
        value = tl.load(nodes + above + at, mask=inside) * tl.load(ratio + factor + at, mask=inside)
        tl.store(nodes + tl.cast(node, tl.int64) * points + at, value, mask=inside)


@triton.jit
def tree_gradient_kernel(
    ratio, parent, which, nodes, grad, ratio_grad, total, points, POINTS: tl.constexpr
):
    """Adds to grad (total, points), whose row 0 ends as that of the root, and to ratio_grad."""
    at = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    inside = at < points
    for back in range(1, total):
        node = total - back
        above = tl.load(parent + node).to(tl.int64) * points + at
        factor = tl.load(which + node).to(tl.int64) * points + at
        here = tl.load(grad + tl.cast(node, tl.int64) * points + at, mask=inside)
        share = here * tl.load(nodes + above, mask=inside)
        share += tl.load(ratio_grad + factor, mask=inside)
        tl.store(ratio_grad + factor, share, mask=inside)
        carried = here * tl.load(ratio + factor, mask=inside)
        carried += tl.load(grad + above, mask=inside)
        tl.store(grad + above, carried, mask=inside)


def tree(root: Tensor, ratio: Tensor, parent: Tensor, which: Tensor, block: int = POINTS) -> Tensor:
    """Nodes (p, n) from root (n,), ratio (r, n), and int32 parent (p,) and which (p,).

    Not differentiable. Cost: p n multiplications, each with one write and two reads of memory.
    """
    (n,), total = root.shape, parent.shape[0]
    nodes = root.new_empty(total, n)
    if n:
        with torch.cuda.device_of(root):
            tree_kernel[(-(-n // block),)](
                *(root.contiguous(), ratio.contiguous(), parent, which, nodes, total, n),
                POINTS=block,
                num_warps=WARPS,
                enable_fp_fusion=True,
                num_stages=1,  # a load ahead of time would miss the last store
            )
    return nodes


def tree_gradients(
    ratio: Tensor,
    parent: Tensor,
    which: Tensor,
    nodes: Tensor,
    grad: Tensor,
    block: int = POINTS,
) -> tuple[Tensor, Tensor]:
    """Gradients of root (n,) and ratio (r, n) from that of the nodes (p, n) of ``tree``."""
    grad, n = grad.clone(memory_format=torch.contiguous_format), grad.shape[1]
    ratio = ratio.contiguous()
    ratio_grad = torch.zeros_like(ratio)
    if n:
        with torch.cuda.device_of(grad):
            tree_gradient_kernel[(-(-n // block),)](
                *(ratio, parent, which, nodes, grad, ratio_grad, parent.shape[0], n),
                POINTS=block,
                num_warps=WARPS,
                enable_fp_fusion=True,
                num_stages=1,
            )
    return grad[0], ratio_grad
