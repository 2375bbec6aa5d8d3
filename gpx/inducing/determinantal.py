"""Inducing points from a determinantal point process of fixed size, by Markov chain Monte Carlo."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from gpx.inducing.base import Selection, Selector
from gpx.inducing.conditional_variance import GreedyConditionalVariance
from gpx.kernels.base import Kernel
from gpx.linalg import cholesky
from gpx.tensor_checks import check_at_least, check_share

JITTER = 1e-12
"""Added to the kernel's diagonal, relative to its mean, so that K_zz is invertible. Sets with
repeated points then have a tiny positive probability."""

REFRESH_INTERVAL = 500
"""Number of accepted swaps between recomputations of the inverse of K_zz, so that rounding of its
updates does not accumulate."""

MAX_PROPOSALS = 64
"""Largest number of proposals processed at once."""

STEPS_PER_DRAW = 2**16
"""Steps whose proposals are drawn at once; a guarantee may take 10^9 steps."""


def mixing_steps(num_data: int, num_inducing: int, accuracy: float) -> int:
    """Upper bound of the steps from a greedy start to within ``accuracy`` in total variation.

    2 M n (log(M log(M n)) + log(2 / accuracy^2)).

    Source: Burt thesis, section 3.1.2 (after Anari, Oveis Gharan and Rezaei 2016).
    """
    m, n = num_inducing, num_data
    start = math.log(m * math.log(m * n)) if m * n > 1 else 0.0
    return math.ceil(2 * m * n * (start + math.log(2.0 / accuracy**2)))


class DeterminantalChain:
    """State of the chain: a set z of M rows and P = K_zz^{-1}; float64.

    Args:
        x (n, d), kernel: inputs and covariance function.
        chosen (M,): distinct rows to start from.

    Attributes:
        inside (M,), outside (n - M,): rows in and not in z.
        accepted: swaps made.

    Raises: NotPositiveDefinite where K_zz cannot be factorised with ``JITTER``.
    """

    def __init__(self, x: Tensor, kernel: Kernel, chosen: Tensor) -> None:
        self.x = x.detach().double()
        self.kernel = copy.deepcopy(kernel).double().requires_grad_(False)
        diagonal = self.kernel.diagonal(self.x)
        self.shift = JITTER * diagonal.mean()
        self.diagonal = diagonal + self.shift
        self.inside = chosen.clone()
        free = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
        free[chosen] = False
        self.outside = free.nonzero().squeeze(1)
        self.accepted = 0
        self._invert()

    def _invert(self) -> None:
        z = self.x[self.inside]
        gram = self.kernel.evaluate(z, z)
        gram.diagonal().copy_(self.diagonal[self.inside])
        factor, _ = cholesky(
            gram, name=f"K_zz of {len(z)} points of the determinantal process", ladder=(0.0,)
        )
        self.inverse = torch.cholesky_inverse(factor)

    def ratios(self, leaves: Tensor, rows: Tensor, cross: Tensor) -> Tensor:
        """det K_z'z' / det K_zz (b,) where z' swaps inside[leaves] for x[rows].

        With w = P k_zj and s = k_jj - k_jz w it is P_ii s + w_i^2: the variance of j given z less
        i, divided by that of i.

        Args:
            leaves, rows (b,): places in ``inside``, and rows of x that are in ``outside``.
            cross (M, b): k(z, x[rows]).

        Cost: b M^2 multiply-adds.
        """
        weights = self.inverse @ cross
        given_all = (self.diagonal[rows] - (cross * weights).sum(0)).clamp_(min=0.0)
        own = weights.gather(0, leaves.unsqueeze(0)).squeeze(0)
        return self.inverse.diagonal()[leaves] * given_all + own.square()

    def swap(self, leave: int, enter: int, cross: Tensor) -> None:
        """Exchange inside[leave] and outside[enter]; ``cross`` is k(z, x_enter) (M,).

        Cost: 2 M^2 multiply-adds; M^3 every ``REFRESH_INTERVAL``.
        """
        row = self.outside[enter].clone()
        self.outside[enter] = self.inside[leave]
        self.inside[leave] = row
        self.accepted += 1
        column = self.inverse[:, leave]
        without = torch.addr(self.inverse, column, column / column[leave], alpha=-1.0)
        weights = without @ cross
        weights[leave] = 0.0
        variance = self.diagonal[row] - weights @ cross
        if self.accepted % REFRESH_INTERVAL == 0 or not bool(variance > self.shift):
            self._invert()  # for a repeated point the update would divide by rounding noise
            return
        weights[leave] = -1.0
        self.inverse = without.addr_(weights, weights / variance)

    def run(self, steps: int, generator: torch.Generator | None) -> None:
        """``steps`` steps of the lazy Metropolis chain (half of them stay without a proposal).

        Proposals are evaluated in blocks against the current state; those after the first accepted
        one are re-evaluated, so that the result is that of one proposal at a time.
        """
        m, rest, device = self.inside.shape[0], self.outside.shape[0], self.x.device
        if not rest:
            return
        for start in range(0, steps, STEPS_PER_DRAW):
            few = min(STEPS_PER_DRAW, steps - start)
            moves = int((torch.rand(few, generator=generator, device=device) < 0.5).sum())
            leaves = torch.randint(m, (moves,), generator=generator, device=device)
            enters = torch.randint(rest, (moves,), generator=generator, device=device)
            levels = torch.rand(moves, generator=generator, device=device, dtype=torch.float64)
            proposals = zip(
                *(t.split(MAX_PROPOSALS) for t in (leaves, enters, levels)), strict=True
            )
            for block in proposals:
                self._process_proposals(*block)

    def _process_proposals(self, leaves: Tensor, enters: Tensor, levels: Tensor) -> None:
        """Process one block of proposals in order, with one evaluation of the kernel."""
        rows = self.outside[enters]
        inputs = self.x[rows]
        cross = self.kernel.evaluate(self.x[self.inside], inputs)
        among = self.kernel.evaluate(inputs, inputs)
        places = list(zip(leaves.tolist(), enters.tolist(), strict=True))
        at, ahead = 0, 4
        while at < len(places):
            part = slice(at, at + ahead)
            accepted = levels[part] < self.ratios(leaves[part], rows[part], cross[:, part])
            first = accepted.nonzero()
            if not first.shape[0]:
                at += accepted.shape[0]
                ahead *= 2
                continue
            gap = int(first[0])
            at += gap
            leave, enter = places[at]
            gone = self.inside[leave].clone()
            self.swap(leave, enter, cross[:, at].clone())
            cross[leave] = among[at]
            ahead = max(2, gap + 2)
            at += 1
            again = [i for i in range(at, len(places)) if places[i][1] == enter]
            if again:  # this place of ``outside`` now holds another row
                left = self.x[gone].unsqueeze(0)
                rows[again], inputs[again] = gone, left
                cross[:, again] = self.kernel.evaluate(self.x[self.inside], left)
                changed = self.kernel.evaluate(left, inputs)
                among[again] = changed
                among[:, again] = changed.mT


class Determinantal(Selector):
    """A draw of M rows z with probability proportional to det K_zz (a k-DPP), approximately.

    A lazy Metropolis chain on sets swaps one row at a time, starting at the greedy set. If M is
    above the rank of the kernel matrix (repeated inputs), all determinants are zero and the greedy
    set is returned. For guarantees in expectation; in practice close to
    ``SampledConditionalVariance``, at a higher cost.

    Args:
        steps: of the chain; see ``mixing_steps`` for the number that a guarantee needs.
        accuracy: in place of ``steps``, the total variation distance to guarantee.

    Cost: the greedy selection, then about M^2 multiply-adds and M kernel entries per proposal, of
    which there are steps / 2; memory M^2. Guarantee at ``accuracy``:
    E tr(K_xx - Q_xx) <= (M + 1) sum_{m > M} lambda_m(K_xx) + accuracy tr K_xx.
    Source: Burt thesis, section 3.1.2.
    """

    def __init__(self, steps: int = 10_000, accuracy: float | None = None) -> None:
        check_at_least(0, steps=steps)
        check_share(accuracy=accuracy)
        self.steps = steps
        self.accuracy = accuracy

    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        start = GreedyConditionalVariance().select(x, kernel, num_inducing, generator=generator)
        assert start.indices is not None
        if start.informative != num_inducing or num_inducing == x.shape[0]:
            return start
        chain = DeterminantalChain(x, kernel, start.indices)
        steps = self.steps
        if self.accuracy is not None:
            steps = mixing_steps(x.shape[0], num_inducing, self.accuracy)
        chain.run(steps, generator)
        return Selection(x[chain.inside].clone(), chain.inside, informative=num_inducing)
