"""A network with squared activations, expanded as a polynomial in its inputs and its weights.

Layers are linear and between layers every neuron is squared. The output is then a sum of h terms
c_t(x) prod_k w_k^{e_tk}, whose expectations under independent weights are products of moments of
single weights.

Source: Evans thesis, appendix E, where the products over weights are missing from the squares.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GATHERED_BYTES = 2**30
"""Most bytes for the moments of all weights in all pairs of terms; a gradient takes ten times as
much."""


class Polynomial(NamedTuple):
    """u(x) = sum_t count_t prod_i x_i^{powers_ti} prod_k w_k^{exponents_tk}.

    Attributes:
        exponents (h, b): of the weights, int64.
        powers (h, d): exponents of the inputs, int64.
        counts (h,): coefficients of the terms, float64.
        fan_in (b,): number of inputs of the neuron that a weight belongs to, int64.
    """

    exponents: Tensor
    powers: Tensor
    counts: Tensor
    fan_in: Tensor

    def coefficients(self, x: Tensor) -> Tensor:
        """c (n, h) at inputs x (n, d). Cost: O(n h d)."""
        made = self.counts.to(x).repeat(len(x), 1)
        for column, power in zip(x.mT, self.powers.mT, strict=True):
            degree = int(power.max())
            table = torch.stack([column**p for p in range(degree + 1)], 1)
            made = made * table[:, power]
        return made

    def at(self, weights: Tensor) -> Tensor:
        """prod_k w_k^{e_tk} (S, h) at weights (S, b). Cost: O(S h b)."""
        degrees = torch.arange(int(self.exponents.max()) + 1, device=weights.device)
        return expectations(weights.unsqueeze(-1) ** degrees, self.exponents)


def num_terms(num_inputs: int, widths: Sequence[int]) -> int:
    """The number h of terms of ``network_polynomial``, without building it."""
    terms = num_inputs
    for before in widths[:-1]:
        terms = terms * (terms + 1) // 2 * before
    return terms


def network_polynomial(num_inputs: int, widths: Sequence[int]) -> Polynomial:
    """Expand a network with ``widths`` neurons in its layers; the last width is one.

    Weights are numbered layer by layer, neuron by neuron, in the order of the neuron's inputs.

    Args:
        num_inputs: d; an input that is always one makes its weights biases of the first layer.
        widths: of every layer.

    Cost: O(h b) memory, with h from ``num_terms``.
    """
    sizes = [num_inputs, *widths]
    fan_in = torch.cat([torch.full((i * o,), i) for i, o in itertools.pairwise(sizes)])
    num_weights, used = len(fan_in), 0
    # exponents (h, b) of each neuron of the previous layer; its neurons share powers and counts
    neurons: list[Tensor] = []
    powers, counts = torch.eye(num_inputs, dtype=torch.int64), torch.ones(num_inputs).double()
    for layer, width in enumerate(widths):
        made = []
        for _ in range(width):
            if not neurons:  # first layer: one term per input, each with a weight of its own
                terms = torch.zeros(num_inputs, num_weights, dtype=torch.int64)
                terms[torch.arange(num_inputs), used + torch.arange(num_inputs)] = 1
                used += num_inputs
            else:
                parts = [each.clone() for each in neurons]
                for place, part in enumerate(parts):
                    part[:, used + place] += 1
                used += len(parts)
                terms = torch.cat(parts)
            made.append(terms)
        if neurons:
            powers, counts = powers.repeat(len(neurons), 1), counts.repeat(len(neurons))
        if layer + 1 < len(widths):
            first, second = torch.triu_indices(len(powers), len(powers))
            made = [terms[first] + terms[second] for terms in made]
            powers = powers[first] + powers[second]
            counts = counts[first] * counts[second] * (1.0 + (first != second).double())
        neurons = made
    return Polynomial(neurons[0], powers, counts, fan_in)


def moments(probabilities: Tensor, values: Tensor, highest: int) -> Tensor:
    """Moments E w^e, e = 0 ... highest: (b, highest + 1), from probabilities and values (b, k)."""
    degrees = torch.arange(highest + 1, device=values.device)
    return (probabilities.unsqueeze(-1) * values.unsqueeze(-1) ** degrees).sum(-2)


def expectations(of_weights: Tensor, exponents: Tensor) -> Tensor:
    """prod_k M_{k, e_tk} (..., h) from powers or moments M (..., b, degrees) of the weights.

    Args:
        exponents (h, b): of the terms; with more dimensions in the place of h the result has them.

    Cost: O(h b).
    """
    weights = torch.arange(exponents.shape[-1], device=exponents.device)
    return of_weights[..., weights, exponents].prod(-1)


def pair_expectations(of_weights: Tensor, exponents: Tensor) -> Tensor:
    """Expected products of two terms (h, h), from moments (b, degrees).

    Cost: O(h^2 b). On a GPU the moments of all weights are gathered by one kernel, while they take
    no more than ``GATHERED_BYTES``; a CPU is faster with those of one weight at a time.
    """
    terms, weights = exponents.shape
    if not of_weights.is_cpu and 8 * weights * terms**2 <= GATHERED_BYTES:
        pairs = exponents.unsqueeze(0) + exponents.unsqueeze(1)
        return expectations(of_weights, pairs)
    total = of_weights.new_ones(len(exponents), len(exponents))
    for table, degree in zip(of_weights, exponents.mT, strict=True):
        total = total * table[degree.unsqueeze(0) + degree.unsqueeze(1)]
    return total
