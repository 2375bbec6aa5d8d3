"""Posterior of a committee: the experts' own predictions, combined by a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg import cholesky
from gpx.methods.base.posterior import Marginals
from gpx.methods.experts.combination import Combination, CombinationRule, require_rule
from gpx.methods.experts.evidence import HINT
from gpx.methods.experts.members import BaseExpert, Members
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.posterior import ExpertsPosterior
from gpx.methods.experts.rows import ExpertRows
from gpx.sampling import SHARED, Frequencies, prior_functions


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


class Joint(NamedTuple):
    """f at t points together.

    Attributes:
        mean (t,), covariance (t, t): of f.
        jitter: largest that was added to a diagonal; beyond the prior's, relative to a unit prior.
    """

    mean: Tensor
    covariance: Tensor
    jitter: float


class CommitteePosterior(ExpertsPosterior):
    """Predictions of K experts with shared hyperparameters, combined.

    Args:
        parts, budget: as in ``ExpertsPosterior``; hyperparameters are shared.
        rule: see ``Combination``. Under "grbcm" the first expert is the communication expert, whose
            rows every other expert has, too; with no other expert it predicts alone.

    Cost: m^2 multiply-adds per expert of m rows and test point; once m^3 / 3 per expert, and m^2 b
    + m b^2 with a communication expert of b rows.
    """

    def __init__(self, parts: ExpertParts, rule: CombinationRule, budget: int) -> None:
        super().__init__(parts, budget)
        require_rule(rule)
        self.rule: CombinationRule = rule

    @property
    def communicates(self) -> bool:
        """Whether the first expert is what all others start from."""
        return self.rule == "grbcm" and len(self.sizes) > 1

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {**super().facts(), "rule": self.rule}

    def expert_rows(self) -> ExpertRows:
        """As in ``ExpertsPosterior``: all but the communication expert."""
        every = super().expert_rows()
        if not self.communicates:
            return every
        return ExpertRows(every.rows[int(self.sizes[0]) :], self.sizes[1:])

    def base(self) -> BaseExpert | None:
        """The communication expert, where there is one."""
        if not self.communicates:
            return None
        size = int(self.sizes[0])
        inputs = self.inputs[:size]
        system = self.kernel.evaluate(inputs).clone()
        system.diagonal().add_(self.likelihood.noise_variance)
        name = f"the kernel matrix of the communication expert of {size} rows plus noise"
        factor, report = cholesky(system, name=name, hint=HINT)
        self.jitter = max(self.jitter, report.jitter)
        right = self.residual[:size].unsqueeze(1)
        white = torch.linalg.solve_triangular(factor, right, upper=False).squeeze(1)
        return BaseExpert(inputs, factor, white)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d), each point by itself."""
        mean, variance = x.new_empty(2, len(x))
        for rows in self.blocks(x):
            mean[rows], variance[rows] = self.combined(x[rows]).result()
        return Marginals(self.mean(x) + mean, variance)

    def blocks(self, x: Tensor) -> Iterator[slice]:
        """Rows of x (t, d) that are predicted together."""
        return self.row_blocks(x, int(self.sizes[0]) if self.communicates else 0)

    def reference(self, base: BaseExpert | None, x: Tensor) -> Reference:
        """What stands in the place of the prior at x (t, d)."""
        prior = self.kernel.diagonal(x)
        if base is None:
            return Reference(Marginals(torch.zeros_like(prior), prior), prior, None)
        white = base.whiten(self.kernel.evaluate(base.inputs, x))
        least = torch.finfo(prior.dtype).eps * prior
        variance = torch.maximum(prior - white.square().sum(0), least)
        return Reference(Marginals(base.white @ white, variance), prior, white)

    def _cross(self, members: Members, x: Tensor) -> Tensor:
        """Prior covariances (c, m, t) of the rows of experts with x (t, d)."""
        flat = self.kernel.evaluate(members.inputs.flatten(0, 1), x)
        return flat.view(*members.inputs.shape[:2], len(x))

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
            cross = members.given(self._cross(members, x), at.white)
            found = members.predict(cross, at.marginals, at.prior)
            beta = combination.add(members.batch.experts, found)
            if tell is not None:
                tell(members, cross, beta.sqrt() / found.variance)
        return combination

    @torch.no_grad()
    def joint(self, x: Tensor) -> Joint:
        """Mean and covariance of f at x (t, d) by the Bayesian committee machine of all points.

        C^{-1} = sum_k Cov_k^{-1} - (K - 1) K_**^{-1} and mean C sum_k Cov_k^{-1} mu_k: it depends
        on which points are asked for together, and at one point alone is what ``predict`` gives.
        With L L^T = K_** every Cov_k is L (I - W_k W_k^T) L^T: jitter on K_** is in all of them.

        Raises:
            ConfigError: another rule than "bcm".
            NotPositiveDefinite: points too near to each other for the precision.
        Cost: n m t for experts of m rows, and t^3 for each of them.
        Source: Tresp 2000; Hultin 2017, section 2.3.3.
        """
        if self.rule != "bcm":
            raise ConfigError(f"only rule=bcm has a joint prediction, and this is {self.rule}")
        name = f"the prior covariance of {len(x)} test points"
        lower, report = cholesky(self.kernel.evaluate(x), name=name)
        jitter, eye = report.jitter, torch.eye(len(x)).to(lower)
        precision, weighted = eye.clone(), torch.zeros_like(x[:, :1])
        for members in self.experts()[1]:
            cross = members.given(self._cross(members, x))
            mean = torch.einsum("cm,cmt->ct", members.alpha, cross).unsqueeze(2)
            white = torch.linalg.solve_triangular(members.factor, cross, upper=False)
            inner = torch.linalg.solve_triangular(lower, white.mT, upper=False)
            left = eye - inner @ inner.mT
            factor, report = cholesky(left, name="what an expert leaves of the prior covariance")
            jitter = max(jitter, report.jitter)
            precision += (torch.cholesky_inverse(factor) - eye).sum(0)
            at = torch.linalg.solve_triangular(lower, mean, upper=False)
            weighted += torch.cholesky_solve(at, factor).sum(0)
        factor, report = cholesky(precision, name="the committee's precision")
        half = torch.linalg.solve_triangular(factor, lower.mT, upper=False)
        mean = lower @ torch.cholesky_solve(weighted, factor)
        return Joint(self.mean(x) + mean.squeeze(1), half.mT @ half, max(jitter, report.jitter))

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
            gap = batch.zero_padding(own_values.transpose(0, 1) + noise[:, batch.rows])
            right = gap.permute(1, 2, 0)
            self.weights.append(torch.cholesky_solve(right, members.factor).mT)

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
        found = x.new_empty(self.num, len(x))
        for rows in self.posterior.blocks(x):
            found[:, rows] = self._block(x[rows])
        return found

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
