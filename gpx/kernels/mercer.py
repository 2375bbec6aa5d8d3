"""Mercer decomposition of the squared exponential kernel under a Gaussian density of the inputs."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.rbf import RBF
from gpx.linalg import running_sum

SMALLEST_RATIO = 1e-150
"""Smallest spread of an input, in lengthscales, whose square is still a positive number;
eigenvalues beyond the first of such an input are 1e-300 times the largest."""


class MercerSpectrum(NamedTuple):
    """The largest eigenvalues of g -> int k(., x) g(x) d rho(x), float64.

    Attributes:
        orders (M, d): Hermite order of each eigenfunction per input.
        eigenvalues (M,): descending, in the squared unit of the function values.
        tails (M + 1,): sum of all eigenvalues after the first 0, 1, ..., M, without cancellation.
    """

    orders: Tensor
    eigenvalues: Tensor
    tails: Tensor


def require_mercer(kernel: Kernel) -> RBF:
    """The kernel, which must be an RBF of all inputs.

    Raises: ConfigError.
    """
    if not isinstance(kernel, RBF) or not kernel.is_radial or kernel.in_place is not RBF.in_place:
        raise ConfigError(
            f"kernel {kernel.name} has no Mercer decomposition in closed form; choose kernel=RBF()"
        )
    if kernel.active_dims is not None:
        raise ConfigError(
            "the Mercer decomposition needs an RBF kernel of all inputs, without active_dims; "
            "select the columns in the data instead"
        )
    return kernel


def leading_orders(log_decay: list[float], num: int) -> Tensor:
    """Multi-indices j (num, d) of smallest sum_d j_d log_decay_d, ascending; ties by index.

    Cost: num d log(num d).
    """
    d = len(log_decay)
    heap: list[tuple[float, tuple[int, ...], int]] = [(0.0, (0,) * d, 0)]
    found: list[tuple[int, ...]] = []
    while len(found) < num:
        total, order, last = heapq.heappop(heap)
        found.append(order)
        for i in range(last, d):  # every index has one parent, with its last non-zero entry lowered
            child = (*order[:i], order[i] + 1, *order[i + 1 :])
            heapq.heappush(heap, (total + log_decay[i], child, i))
    return torch.tensor(found, dtype=torch.long).reshape(num, d)


@torch.no_grad()
def mercer_spectrum(kernel: Kernel, spread: Tensor, num: int) -> MercerSpectrum:
    """The ``num`` largest eigenvalues under rho = N(any mean, diag(spread^2)).

    In one dimension lambda_j = outputscale (1 - 1/B) B^{-j}, j = 0, 1, ..., with s = spread /
    lengthscale, c = sqrt(1/4 + s^2) and B = 1 + (c + 1/2) / s^2; products over the inputs beyond.

    Args:
        kernel: an ``RBF`` of all inputs.
        spread (d,): standard deviation of each input; one of zero, of a constant input, gives that
            input order zero.
        num: M.

    Raises: ConfigError: another kernel.
    Cost: M d log(M d).
    Source: Burt thesis, section 1.2.2, with the scaling corrected; the tails are derived.
    """
    kernel = require_mercer(kernel)
    spread = spread.double()
    ratio = (spread / kernel.lengthscale.double().expand_as(spread)).clamp(min=SMALLEST_RATIO)
    weight, decay = _geometric(ratio)
    orders = leading_orders(decay.tolist(), num).to(spread.device)
    logs = weight.log().sum() - orders.double() @ decay
    scale = kernel.outputscale.double()
    eigenvalues = scale * logs.exp()
    beyond = scale * _mass_outside(orders, weight, decay)
    tails = running_sum(torch.cat([eigenvalues, beyond.reshape(1)]).flip(0)).flip(0)
    return MercerSpectrum(orders, eigenvalues, tails)


def _geometric(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """1 - 1/B and log B of spread / lengthscale."""
    square = ratio.square()
    half = (0.25 + square).sqrt() + 0.5
    return half / (square + half), (half / square).log1p()


def _mass_outside(orders: Tensor, weight: Tensor, decay: Tensor) -> Tensor:
    """Probability of the geometric variables with parameters 1/B outside a set of orders.

    The set must be closed under lowering entries. An order outside it has a first entry k that
    exceeds the largest one in the set after the same k entries; the probability is the sum over k
    and prefixes, of positive terms.
    """
    total = weight.new_zeros(())
    rooted = torch.cat([torch.zeros_like(orders[:, :1]), orders], dim=1)
    for k in range(orders.shape[1]):
        prefixes, member = torch.unique(rooted[:, : k + 1], dim=0, return_inverse=True)
        largest = torch.zeros(len(prefixes), dtype=torch.long, device=orders.device)
        largest = largest.scatter_reduce(0, member, orders[:, k], "amax")
        logs = weight[:k].log().sum() - prefixes[:, 1:].double() @ decay[:k]
        total = total + (logs - (largest + 1).double() * decay[k]).exp().sum()
    return total


def weighted_eigenfunctions(
    kernel: Kernel, x: Tensor, location: Tensor, spread: Tensor, orders: Tensor
) -> Tensor:
    """sqrt(lambda_j) phi_j(x) under N(location, diag(spread^2)); differentiable.

    Over all orders the products sum to the kernel: k(x, x') = sum_j of row times row.

    Args:
        kernel: an ``RBF`` of all inputs.
        x (n, d): inputs.
        location, spread (d,): of the density.
        orders (M, d): Hermite order per input.

    Returns:
        (n, M), in the unit of the function values.

    Raises: ConfigError: another kernel.
    Cost: n (M d + sum of the largest orders).
    Source: Burt thesis, section 1.2.2, with the scaling corrected.
    """
    kernel = require_mercer(kernel)
    lengthscale = kernel.lengthscale.expand_as(spread)
    out = kernel.outputscale.sqrt().expand(x.shape[0], orders.shape[0])
    for i in range(orders.shape[1]):
        column = orders[:, i]
        table = _hermite_table(
            (x[:, i] - location[i]) / lengthscale[i], spread[i] / lengthscale[i], int(column.max())
        )
        out = out * table[:, column]
    return out


def _hermite_table(inputs: Tensor, ratio: Tensor, largest: int) -> Tensor:
    """The one-dimensional functions of order 0 to ``largest`` at inputs / lengthscale (n,)."""
    square = ratio.square()
    c = (0.25 + square).sqrt()
    half = c + 0.5
    # (c - 1/2) / s^2 = 1 / (c + 1/2); exp is not clamped: far out the features would exceed the
    # kernel
    start = (-0.5 / half * inputs.square()).exp()
    found = [(half / (square + half)).sqrt() * (2.0 * c) ** 0.25 * start]
    shrink = (square / (square + half)).sqrt()
    argument = (c / (square + half)).sqrt() * inputs
    for j in range(largest):
        following = math.sqrt(2.0 / (j + 1)) * argument * found[j]
        if j:
            following = following - math.sqrt(j / (j + 1)) * shrink.square() * found[j - 1]
        found.append(following)
    return torch.stack(found, dim=1)
