"""Posterior of a committee: the experts' own predictions, combined by a rule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpx.inference.exact_solver import require_finite
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import cholesky
from gpx.means.base import Mean
from gpx.methods.base.model import Marginals, Posterior
from gpx.methods.experts.evidence import HINT
from gpx.methods.experts.members import BaseExpert, Members
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.rows import BATCH_BYTES, ExpertRows
from gpx.methods.experts.rules import Combination, Rule, require_rule
from gpx.sampling import SHARED, Frequencies, prior_functions

MOST_ROWS = 2048
"""Test points that are predicted at a time, at most."""


class Reference(NamedTuple):
    """What experts are compared with at t test points: the prior, or a communication expert.

    Attributes:
        marginals (t,): its mean and variance, less the prior mean.
        prior (t,): prior variance.
        white (b, t): L^{-1} k(x_b, x_*) of the communication expert's rows.
    """

    marginals: Marginals
    prior: Tensor
    white: Tensor | None


class CommitteePosterior(Posterior):
    """Predictions of K experts with shared hyperparameters, combined.

    Its state is the training inputs and residuals, one expert after the other. Factors of the
    experts are made at the first prediction, and kept where half of the budget holds them.

    Args:
        kernel, mean, likelihood: at the hyperparameters of the experts.
        rule: see ``Combination``. Under "grbcm" the first expert is the communication expert, whose
            rows every other expert has, too; with no other expert it predicts alone.
        budget: bytes that factors and covariances may take.

    Attributes:
        inputs (n, d), residual (n,): training inputs and y - m(x).
        sizes (K,): rows of every expert.

    Cost: m^2 multiply-adds per expert of m rows and test point; once m^3 / 3 per expert, and m^2 b
    + m b^2 with a communication expert of b rows.
    """

    data_sized = ("inputs", "residual", "sizes")
    inputs: Tensor
    residual: Tensor
    sizes: Tensor

    def __init__(
        self, kernel: Kernel, mean: Mean, likelihood: Gaussian, rule: Rule, budget: int
    ) -> None:
        super().__init__()
        require_rule(rule)
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)
        self.mean = copy.deepcopy(mean).requires_grad_(False)
        self.likelihood = copy.deepcopy(likelihood).requires_grad_(False)
        self.rule: Rule = rule
        self.budget = budget
        self.register_data_sized()
        self._kept: tuple[BaseExpert | None, list[Members]] | None = None

    @torch.no_grad()
    def condition_(self, x: Tensor, y: Tensor, rows: ExpertRows) -> None:
        """Take in the rows of every expert; raises DataError for targets that are not finite."""
        inputs = x[rows.rows]
        self.keep(x, inputs=inputs, residual=y[rows.rows] - self.mean(inputs))
        self.sizes = rows.sizes.clone()
        require_finite(self.residual)
        self._kept = None

    @property
    def parts(self) -> ExpertParts:
        """What the experts are made of."""
        return ExpertParts(self.kernel, self.mean, self.likelihood)

    @property
    def communicates(self) -> bool:
        """Whether the first expert is what all others start from."""
        return self.rule == "grbcm" and len(self.sizes) > 1

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {
            "experts": len(self.sizes),
            "largest_expert": int(self.sizes.max()),
            "rule": self.rule,
        }

    def _base(self) -> BaseExpert | None:
        if not self.communicates:
            return None
        size = int(self.sizes[0])
        inputs = self.inputs[:size]
        system = self.kernel.evaluate(inputs)
        system = system + self.likelihood.noise_variance * torch.eye(size).to(system)
        name = f"the kernel matrix of the communication expert of {size} rows plus noise"
        factor, _ = cholesky(system, name=name, hint=HINT)
        right = self.residual[:size].unsqueeze(1)
        white = torch.linalg.solve_triangular(factor, right, upper=False).squeeze(1)
        return BaseExpert(inputs, factor, white)

    def _conditioned(self, base: BaseExpert | None) -> Iterator[Members]:
        """All experts but the communication expert, in batches."""
        total, skipped = len(self.residual), int(self.communicates)
        first = int(self.sizes[:skipped].sum())
        rows = ExpertRows(
            torch.arange(first, total, device=self.inputs.device), self.sizes[skipped:]
        )
        parts = self.parts
        for batch in rows.batches(self.inputs.element_size(), self.budget // 4):
            inputs = self.inputs[batch.rows]
            given = None
            if base is not None:
                flat = self.kernel.evaluate(base.inputs, inputs.flatten(0, 1))
                cross = flat.view(len(base.inputs), *inputs.shape[:2]).transpose(0, 1)
                given = base, cross
            yield Members.of(
                batch,
                inputs,
                parts.covariances(batch.experts, inputs),
                parts.noise(batch.experts),
                self.residual[batch.rows],
                given,
            )

    def experts(self) -> tuple[BaseExpert | None, Iterator[Members]]:
        """The base and the others: from before, or made anew (and kept where they fit)."""
        if self._kept is not None:
            return self._kept[0], iter(self._kept[1])
        base = self._base()

        def made() -> Iterator[Members]:
            kept: list[Members] | None = []
            held = 0
            for members in self._conditioned(base):
                yield members
                held += members.bytes
                if kept is not None and held <= self.budget // 2:
                    kept.append(members)
                else:
                    kept = None
            if kept is not None:
                self._kept = base, kept

        return base, made()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d), each point by itself."""
        found = [self.combined(rows).result() for rows in self.row_blocks(x)]
        if not found:
            return Marginals(x.new_empty(0), x.new_empty(0))
        mean, variance = (torch.cat(part) for part in zip(*found, strict=True))
        return Marginals(self.mean(x) + mean, variance)

    def row_blocks(self, x: Tensor) -> list[Tensor]:
        """x (t, d) in blocks of rows for which the largest arrays of a prediction fit."""
        width = int(self.sizes[0]) if self.communicates else 0
        batch = max(BATCH_BYTES.get(x.device.type, 0), BATCH_BYTES["cpu"]) // x.element_size()
        width += min(len(self.residual), max(batch // int(self.sizes.max()), int(self.sizes.max())))
        step = max(1, self.budget // (4 * 4 * width * x.element_size()))
        return list(x.split(min(step, MOST_ROWS))) if len(x) else []

    def reference(self, base: BaseExpert | None, x: Tensor) -> Reference:
        """What stands in the place of the prior at x (t, d)."""
        prior = self.kernel.diagonal(x)
        if base is None:
            return Reference(Marginals(torch.zeros_like(prior), prior), prior, None)
        white = base.whiten(self.kernel.evaluate(base.inputs, x))
        least = torch.finfo(prior.dtype).eps * prior
        variance = torch.maximum(prior - white.square().sum(0), least)
        return Reference(Marginals(base.white @ white, variance), prior, white)

    def combined(
        self, x: Tensor, tell: Callable[[Members, Tensor, Tensor], None] | None = None
    ) -> Combination:
        """Sums over all experts at a block x (t, d) of rows, less the prior mean.

        Args:
            tell: called with every batch of experts, their covariances (c, m, t) with x as
                ``Members.given`` gives them, and sqrt(beta_k) / v_k (c, t).
        """
        base, experts = self.experts()
        at = self.reference(base, x)
        count = len(self.sizes) - int(self.communicates)
        combination = Combination(self.rule, at.marginals, count)
        for members in experts:
            flat = self.kernel.evaluate(members.inputs.flatten(0, 1), x)
            cross = members.given(flat.view(*members.inputs.shape[:2], len(x)), at.white)
            found = members.predict(cross, at.marginals, at.prior)
            beta = combination.add(members.batch.experts, found)
            if tell is not None:
                tell(members, cross, beta.sqrt() / found.variance)
        return combination

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t) with the committee's mean and variance everywhere.

        A committee says nothing of the covariance between points. Here that is the one of
        independent functions f_k of the experts and f_0 of the reference, weighed as the rule
        weighs them:

            f = mu + s sum_k sqrt(beta_k) (f_k - mu_k) / v_k,   with s(x) such that Var f = v.

        Exact in mean and variance but for the prior functions' (``frequencies``).

        Raises:
            ConfigError: the kernel has no random Fourier features.
        Cost: num (K + 1) prior functions at all inputs once, and at every row.
        """
        return CommitteePaths(self, num, generator, frequencies)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._kept = None
        return super()._apply(fn, recurse)


class CommitteePaths:
    """Functions of a committee, called with x (t, d); see ``CommitteePosterior.sample_paths``."""

    @torch.no_grad()
    def __init__(
        self,
        posterior: CommitteePosterior,
        num: int,
        generator: torch.Generator,
        frequencies: Frequencies,
    ) -> None:
        self.posterior, self.num = posterior, num
        residual, d = posterior.residual, posterior.inputs.shape[1]
        self.prior = prior_functions(
            posterior.kernel,
            num * (len(posterior.sizes) + 1),
            d,
            generator=generator,
            frequencies=frequencies,
        )
        noise = self.noise(num, len(residual), generator=generator)
        base, experts = posterior.experts()
        self.base = base
        self.first = int(posterior.communicates)
        self.at_base: Tensor | None = None
        if base is not None:
            # every function sees noise of its own at the rows of the communication expert
            own = self.noise(len(posterior.sizes) + 1, num, len(base.inputs), generator=generator)
            self.at_base = base.whiten((self.drawn(base.inputs) + own).flatten(0, 1).mT)
        self.weights: list[Tensor] = []
        for members in experts:
            batch = members.batch
            c, m = batch.rows.shape
            values = self.functions(members.inputs.flatten(0, 1)).view(-1, num, c, m)
            own_values = values[batch.experts + self.first, :, torch.arange(c)]  # (c, num, m)
            gap = own_values + noise[:, batch.rows].transpose(0, 1)
            if batch.mask is not None:
                gap = gap * batch.mask.unsqueeze(1)
            self.weights.append(torch.cholesky_solve(gap.mT, members.factor).mT)

    def noise(self, *shape: int, generator: torch.Generator) -> Tensor:
        """Draws of the observation noise."""
        like = self.posterior.residual
        drawn = torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
        return drawn * self.posterior.likelihood.noise_variance.sqrt()

    def drawn(self, x: Tensor) -> Tensor:
        """All prior functions at x (t, d): (K + 1, num, t), the reference's the last."""
        return self.prior(x).view(-1, self.num, len(x))

    def functions(self, x: Tensor) -> Tensor:
        """The same, given the rows of the communication expert where there is one."""
        values = self.drawn(x)
        if self.base is None:
            return values
        assert self.at_base is not None
        white = self.base.whiten(self.posterior.kernel.evaluate(self.base.inputs, x))
        return values - (self.at_base.mT @ white).view_as(values)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Values (num, t)."""
        found = [self._block(rows) for rows in self.posterior.row_blocks(x)]
        return torch.cat(found, 1) if found else x.new_empty(self.num, 0)

    def _block(self, x: Tensor) -> Tensor:
        functions = self.functions(x)
        total = x.new_zeros(self.num, len(x))
        weights = iter(self.weights)

        def tell(members: Members, cross: Tensor, scale: Tensor) -> None:
            nonlocal total
            moved = functions[members.batch.experts + self.first] - next(weights) @ cross
            total = total + (scale.unsqueeze(1) * moved).sum(0)

        combination = self.posterior.combined(x, tell)
        result = combination.result()
        reference = combination.rest.clamp(min=0.0) / combination.reference.variance
        total = total + (reference / combination.reference.variance).sqrt() * functions[-1]
        spread = (result.variance / (combination.precision + reference)).sqrt()
        return self.posterior.mean(x) + result.mean + spread * total
