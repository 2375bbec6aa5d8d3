"""Posterior of a committee: the experts' predictions, combined by a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.errors import ConfigError
from gpx.linalg import cholesky
from gpx.methods.base.posterior import Marginals
from gpx.methods.base.sampled_functions import values_of_functions
from gpx.methods.experts.combination import Combination, CombinationRule, require_rule
from gpx.methods.experts.evidence import CHOLESKY_HINT
from gpx.methods.experts.members import CommunicationExpert, Members
from gpx.methods.experts.parts import ExpertParts
from gpx.methods.experts.posterior import ExpertsPosterior
from gpx.methods.experts.rows import ExpertRows
from gpx.sampling import SHARED, Frequencies, prior_functions


class Reference(NamedTuple):
    """Prediction of the prior or communication expert at t test points, which the experts update.

    Attributes:
        marginals (t,): its mean minus the prior mean, and its variance.
        prior (t,): prior variance.
        white (b, t): L^{-1} k(x_b, x_*) for the rows of the communication expert, if there is one.
    """

    marginals: Marginals
    prior: Tensor
    white: Tensor | None


class Joint(NamedTuple):
    """Joint Gaussian prediction at t points.

    Attributes:
        mean (t,), covariance (t, t): of f.
        jitter: largest jitter added to a diagonal, of the prior covariance or of a matrix relative
            to it.
    """

    mean: Tensor
    covariance: Tensor
    jitter: float


class CommitteePosterior(ExpertsPosterior):
    """Combined predictions of K experts with shared hyperparameters.

    Args:
        parts, budget: as in ``ExpertsPosterior``; hyperparameters are shared.
        rule: see ``Combination``. Under "grbcm" the first expert is the communication expert, and
            every other expert also conditions on its rows; a single expert predicts alone.

    Cost: m^2 multiply-adds per expert of m rows and test point; once m^3 / 3 per expert, plus
    m^2 b + m b^2 with a communication expert of b rows.
    """

    def __init__(self, parts: ExpertParts, rule: CombinationRule, budget: int) -> None:
        super().__init__(parts, budget)
        require_rule(rule)
        self.rule: CombinationRule = rule

    @property
    def has_communication_expert(self) -> bool:
        """Whether the first expert is a communication expert."""
        return self.rule == "grbcm" and len(self.sizes) > 1

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {**super().facts(), "rule": self.rule}

    def expert_rows(self) -> ExpertRows:
        """As in ``ExpertsPosterior``, without the communication expert."""
        every = super().expert_rows()
        if not self.has_communication_expert:
            return every
        return ExpertRows(every.rows[int(self.sizes[0]) :], self.sizes[1:])

    @torch.no_grad()
    def communication_expert(self) -> CommunicationExpert | None:
        """The communication expert if there is one."""
        if not self.has_communication_expert:
            return None
        size = int(self.sizes[0])
        inputs = self.inputs[:size]
        system = self.kernel.evaluate(inputs).clone()
        system.diagonal().add_(self.likelihood.noise_variance)
        name = f"the kernel matrix of the communication expert of {size} rows plus noise"
        factor, report = cholesky(system, name=name, hint=CHOLESKY_HINT)
        self.jitter = max(self.jitter, report.jitter)
        right = self.residual[:size].unsqueeze(1)
        white = torch.linalg.solve_triangular(factor, right, upper=False).squeeze(1)
        return CommunicationExpert(inputs, factor, white)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at each of the points x (t, d)."""
        mean, variance = x.new_empty(len(x)), x.new_empty(len(x))
        for rows in self.blocks(x):
            mean[rows], variance[rows] = self.combine(x[rows]).result()
        return Marginals(self.mean(x) + mean, variance)

    def blocks(self, x: Tensor, more: int = 0) -> Iterator[slice]:
        """Blocks of rows of x (t, d) that are predicted together, with ``more`` values of each."""
        width = int(self.sizes[0]) if self.has_communication_expert else 0
        return self.row_blocks(x, width + more)

    def reference(self, communication: CommunicationExpert | None, x: Tensor) -> Reference:
        """Prediction of the communication expert at x (t, d), or of the prior without one."""
        prior = self.kernel.diagonal(x)
        # kernels such as Linear are zero at the origin, and precisions must stay finite
        prior = prior.clamp_min(torch.finfo(prior.dtype).tiny ** 0.5)
        if communication is None:
            return Reference(Marginals(torch.zeros_like(prior), prior), prior, None)
        white = communication.whiten(self.kernel.evaluate(communication.inputs, x))
        smallest = torch.finfo(prior.dtype).eps * prior
        variance = torch.maximum(prior - white.square().sum(0), smallest)
        return Reference(Marginals(communication.white @ white, variance), prior, white)

    def _cross(self, members: Members, x: Tensor) -> Tensor:
        """Prior covariances (c, m, t) between the rows of a batch of experts and x (t, d)."""
        flat = self.kernel.evaluate(members.inputs.flatten(0, 1), x)
        return flat.view(*members.inputs.shape[:2], len(x))

    def combine(
        self, x: Tensor, visit: Callable[[Members, Tensor, Tensor], None] | None = None
    ) -> Combination:
        """Combine all experts at a block of rows x (t, d); means are relative to the prior mean.

        Args:
            visit: called with every batch of experts, their covariances (c, m, t) with x from
                ``Members.conditional_covariance``, and sqrt(beta_k) / v_k (c, t).
        """
        communication, experts = self.experts()
        at = self.reference(communication, x)
        count = len(self.sizes) - int(self.has_communication_expert)
        combination = Combination(self.rule, at.marginals, count)
        for members in experts:
            cross = members.conditional_covariance(self._cross(members, x), at.white)
            predictions = members.predict(cross, at.marginals, at.prior)
            beta = combination.add(members.batch.experts, predictions)
            if visit is not None:
                visit(members, cross, _root(beta) / predictions.variance)
        return combination

    @torch.no_grad()
    def joint(self, x: Tensor) -> Joint:
        """Joint prediction of f at x (t, d) by the Bayesian committee machine.

        C^{-1} = sum_k Cov_k^{-1} - (K - 1) K_**^{-1} and mean C sum_k Cov_k^{-1} mu_k. The
        prediction at a point depends on the other points of x; for a single point it equals that of
        ``predict``. With L L^T = K_** every Cov_k is L (I - W_k W_k^T) L^T, so that jitter on K_**
        enters all of them.

        Raises:
            ConfigError: a rule other than "bcm".
            NotPositiveDefinite: points too close to each other for the floating-point precision.
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
            cross = members.conditional_covariance(self._cross(members, x))
            mean = torch.einsum("cm,cmt->ct", members.alpha, cross).unsqueeze(2)
            white = torch.linalg.solve_triangular(members.factor, cross, upper=False)
            inner = torch.linalg.solve_triangular(lower, white.mT, upper=False)
            left = eye - inner @ inner.mT
            factor, report = cholesky(left, name="an expert's whitened posterior covariance")
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

        A committee does not define covariances between points. Here they are those of a sum of
        independent functions f_k of the experts and f_0 of the reference with the rule's weights:

            f = mu + s sum_k sqrt(beta_k) (f_k - mu_k) / v_k,   with s(x) such that Var f = v.

        Mean and variance are exact up to the Fourier features of the prior functions
        (``frequencies``).

        Raises:
            ConfigError: the kernel has no random Fourier features.
        Cost: num (K + 1) prior functions, at all training inputs once and at every row of x.
        """
        return CommitteePaths(self, num, generator, frequencies)


class CommitteePaths:
    """Sampled functions of a committee; see ``CommitteePosterior.sample_paths``."""

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
        self.communication, experts = posterior.experts()
        self.first = int(posterior.has_communication_expert)
        self.white_values: Tensor | None = None
        if self.communication is not None:
            # every function has its own noise at the rows of the communication expert
            rows = self.communication.inputs
            own = self.noise(len(posterior.sizes) + 1, num, len(rows), generator=generator)
            values = (self.draw_prior(rows) + own).flatten(0, 1)
            self.white_values = self.communication.whiten(values.mT)
        self.weights: list[Tensor] = []
        for members in experts:
            batch = members.batch
            c, m = batch.rows.shape
            own_values = members.inputs.new_empty(c, num, m)
            every = 16 * num * (len(posterior.sizes) + 1) * m * own_values.element_size()
            for part in row_chunks(c, every, posterior.budget):
                inputs, chosen = members.inputs[part], batch.experts[part] + self.first
                values = self.functions(inputs.flatten(0, 1)).view(-1, num, len(inputs), m)
                own_values[part] = values[chosen, :, torch.arange(len(inputs))]
            gap = batch.zero_padding(own_values.transpose(0, 1) + noise[:, batch.rows])
            right = gap.permute(1, 2, 0)
            self.weights.append(torch.cholesky_solve(right, members.factor).mT)

    def noise(self, *shape: int, generator: torch.Generator) -> Tensor:
        """Draw observation noise of the given shape."""
        like = self.posterior.residual
        drawn = torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
        return drawn * self.posterior.likelihood.noise_variance.sqrt()

    def draw_prior(self, x: Tensor) -> Tensor:
        """All prior functions at x (t, d): (K + 1, num, t); those of the reference come last."""
        return self.prior(x).view(-1, self.num, len(x))

    def functions(self, x: Tensor) -> Tensor:
        """``draw_prior``, conditioned on the rows of the communication expert if there is one."""
        values = self.draw_prior(x)
        if self.communication is None:
            return values
        assert self.white_values is not None
        cross = self.posterior.kernel.evaluate(self.communication.inputs, x)
        white = self.communication.whiten(cross)
        return values - (self.white_values.mT @ white).view_as(values)

    def __call__(self, x: Tensor) -> Tensor:
        """Values (num, t) at x (t, d)."""
        return values_of_functions(self.posterior, self._values, x)

    def _values(self, x: Tensor) -> Tensor:
        found = x.new_empty(self.num, len(x))
        for rows in self.posterior.blocks(x, self.num * (len(self.posterior.sizes) + 1)):
            found[:, rows] = self._block(x[rows])
        return found

    def _block(self, x: Tensor) -> Tensor:
        functions = self.functions(x)
        total = x.new_zeros(self.num, len(x))
        weights = iter(self.weights)

        def add_deviations(members: Members, cross: Tensor, scale: Tensor) -> None:
            nonlocal total
            deviation = functions[members.batch.experts + self.first] - next(weights) @ cross
            total = total + (scale.unsqueeze(1) * deviation).sum(0)

        combination = self.posterior.combine(x, add_deviations)
        result = combination.result()
        reference = combination.reference_weight.clamp(min=0.0) / combination.reference.variance
        total = total + _root(reference / combination.reference.variance) * functions[-1]
        spread = (result.variance / (combination.precision + reference)).sqrt()
        return self.posterior.mean(x) + result.mean + spread * total


def _root(weight: Tensor) -> Tensor:
    """Square roots of weights from 0 on; their gradient is 0 where a weight is, and not infinite.

    There a rule has clamped the weight, which stays 0 beside x.
    """
    return weight.clamp_min(torch.finfo(weight.dtype).tiny).sqrt()
