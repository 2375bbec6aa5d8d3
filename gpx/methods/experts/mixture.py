"""Mixture of Gaussian process experts with hard assignments of rows to experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpx.constants import LOG_TWO_PI
from gpx.errors import ConfigError
from gpx.inducing import Partition
from gpx.inference.finite_mixture import gaussian_mixture, mixture_moments
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import running_sum
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.base.posterior import Marginals
from gpx.methods.experts.evidence import ExpertsMLL, HasExperts
from gpx.methods.experts.local_experts import LocalExperts, Sharing
from gpx.methods.experts.local_posterior import ExpertPaths
from gpx.methods.experts.posterior import ExpertsPosterior
from gpx.sampling import SHARED, Frequencies

MIN_RELATIVE_VARIANCE = 1e-4
"""Smallest variance of a cluster along an input, relative to the variance of all rows."""


class Gates(NamedTuple):
    """Expert k has a share pi_k of the rows, with inputs distributed as N(centre_k, variance_k).

    Its gate g_k(x) is proportional to pi_k N(x; centre_k, diag(variance_k)).

    Attributes:
        log_shares (K,), centres (K, d), variances (K, d): of the clusters.
    """

    log_shares: Tensor
    centres: Tensor
    variances: Tensor

    @classmethod
    def fit(cls, x: Tensor, labels: Tensor, count: int) -> Gates:
        """Maximum likelihood clusters of the rows x (n, d) with labels (n,), none of them empty.

        Variances are constrained to at least ``MIN_RELATIVE_VARIANCE`` times that of all rows.
        """
        sizes = torch.bincount(labels, minlength=count).to(x.dtype).unsqueeze(1)
        zeros = x.new_zeros(count, x.shape[1])
        centres = zeros.index_add(0, labels, x) / sizes
        squares = zeros.index_add(0, labels, (x - centres[labels]).square()) / sizes
        spread = x.var(0, correction=0)
        smallest = MIN_RELATIVE_VARIANCE * torch.where(spread > 0.0, spread, 1.0)
        log_shares = (sizes.squeeze(1) / len(x)).log()
        return cls(log_shares, centres, torch.maximum(squares, smallest))

    def log_joint(self, x: Tensor) -> Tensor:
        """log pi_k N(x; centre_k, variance_k) at x (t, d): (K, t)."""
        precision = self.variances.reciprocal()
        middle = self.centres.mean(0)
        at, ends = x - middle, self.centres - middle
        distance = (
            precision @ at.square().mT
            - 2.0 * (precision * ends) @ at.mT
            + (precision * ends.square()).sum(1, keepdim=True)
        )
        volume = self.variances.log().sum(1) + x.shape[1] * LOG_TWO_PI
        return (self.log_shares - 0.5 * volume).unsqueeze(1) - 0.5 * distance

    def probabilities(self, x: Tensor) -> Tensor:
        """g_k(x) at x (t, d): (K, t); columns sum to one."""
        return self.log_joint(x).softmax(0)


class MixtureOfExperts(LocalExperts):
    """p(y | x) = sum_k g_k(x) N(y; mu_k(x), v_k(x)), every training row assigned to one expert.

    Experts are exact Gaussian processes on their own rows, gates are Gaussian clusters
    (``Gates``). ``HardCut`` alternately assigns rows and fits hyperparameters; other optimizers
    keep the rows of the partition.

    Args:
        kernel, mean, likelihood, num_experts, hyperparameters, partition, memory_budget: as in
            ``LocalExperts``; the partition is the first assignment.

    Attributes:
        labels (n,): expert of every training row.

    Cost: an evaluation as in ``LocalExperts``; predictions by all experts, n m per test point.
    Source: Rasmussen and Ghahramani 2002; hard cuts as in Tran thesis, section 2.5 (Nguyen and
    Bonilla 2014).
    """

    data_sized = (*LocalExperts.data_sized, "labels")
    labels: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_experts: int | None = None,
        hyperparameters: Sharing = "own",
        partition: Partition | None = None,
        memory_budget: int | str | None = None,
    ) -> None:
        super().__init__(
            kernel=kernel,
            mean=mean,
            likelihood=likelihood,
            num_experts=num_experts,
            hyperparameters=hyperparameters,
            partition=partition,
            memory_budget=memory_budget,
        )

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """As in ``LocalExperts``; the blocks are the first assignment."""
        super().initialise(x, y, generator=generator)
        labels = torch.empty_like(self.rows)
        numbers = torch.arange(len(self.sizes), device=x.device)
        labels[self.rows] = numbers.repeat_interleave(self.sizes)
        self.assign(labels)

    def assign(self, labels: Tensor) -> None:
        """Assign every training row to an expert, by ``labels`` (n,).

        Raises:
            ConfigError: an expert would have no rows.
        """
        assert self.num_experts is not None
        sizes = torch.bincount(labels, minlength=self.num_experts)
        if len(sizes) > self.num_experts or bool((sizes == 0).any()):
            raise ConfigError(
                f"an assignment must give a row to each of the {self.num_experts} experts"
            )
        self.labels, self.sizes = labels, sizes
        self.rows = torch.argsort(labels, stable=True)

    def gates(self, x: Tensor) -> Gates:
        """Gates fitted to the assignment of the training inputs x (n, d)."""
        assert self.num_experts is not None
        self.expert_rows(x)  # checks that these rows are assigned
        return Gates.fit(x, self.labels, self.num_experts)

    def log_assignment(self, x: Tensor) -> Tensor:
        """sum_n log pi_z(n) N(x_n; centre_z(n), variance_z(n)), in nats, float64."""
        found = self.gates(x).log_joint(x)
        return found.gather(0, self.labels.unsqueeze(0)).double().sum()

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> MixturePosterior:
        """Posteriors of all experts, and the gates."""
        posterior = self.new_posterior()
        posterior.store_rows(x, y, self.expert_rows(x))
        posterior.keep(x, **self.gates(x)._asdict())
        return posterior

    def new_posterior(self) -> MixturePosterior:
        """As in ``Model``."""
        return MixturePosterior(self.parts, self.batch_bytes)


@runtime_checkable
class HasGates(HasExperts, Protocol):
    """What ``HardCutEvidence`` requires of a model: experts, and gates over them."""

    def log_assignment(self, x: Tensor) -> Tensor:
        """log p(x, z) of the training inputs x (n, d) and their assignment z, in nats."""


class HardCutEvidence(Objective[HasGates]):
    """log p(y, x, z): the evidence of the experts for their rows z, and of the gates.

    Kind: a lower bound on log p(y, x), which sums over all assignments z. It includes the density
    of the inputs, so that it cannot be compared with the evidence of a regression model.
    """

    gradient_of_inputs = False
    batching = "full"
    kind = "lower_bound"
    models = (HasGates,)
    made_for = "MixtureOfExperts"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def __init__(self) -> None:
        super().__init__()
        self.experts = ExpertsMLL()

    def evidence(
        self, model: HasGates, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """As in ``ExpertsMLL``, with the part ``assignment``."""
        found = self.experts.evidence(model, x, y)
        assignment = model.log_assignment(x)
        facts = {**found.facts, "evidence_of": "experts and their assignment"}
        return Evidence(
            found.value + assignment,
            self.kind,
            {**found.parts, "assignment": assignment},
            facts=facts,
        )


class MixturePosterior(ExpertsPosterior):
    """A mixture of the experts' predictions weighted by the gates; not a Gaussian process.

    Args:
        parts, budget: as in ``ExpertsPosterior``.

    Attributes:
        log_shares (K,), centres (K, d), variances (K, d): of the gates.

    Cost: m^2 multiply-adds per expert of m rows and test point.
    """

    data_sized = (*ExpertsPosterior.data_sized, "log_shares", "centres", "variances")
    log_shares: Tensor
    centres: Tensor
    variances: Tensor

    @property
    def gates(self) -> Gates:
        """Probabilities of the experts at an input."""
        return Gates(self.log_shares, self.centres, self.variances)

    def components(self, x: Tensor) -> Marginals:
        """Mean and variance of every expert's latent function at x (t, d): (K, t) each."""
        shape = len(self.sizes), len(x)
        mean, variance = x.new_empty(shape), x.new_empty(shape)
        for members in self.experts()[1]:  # factorised anew where the factors are not kept
            experts = members.batch.experts
            for block in self.row_blocks(x):
                at = x[block].expand(len(experts), -1, -1)
                mean[experts, block], variance[experts, block] = self.latent(members, at)
        return Marginals(mean, variance)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the mixture at x (t, d), which is not Gaussian."""
        return mixture_moments(self.components(x), self.gates.probabilities(x))

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """The mixture of the experts' normals at x (t, d), each with its own noise."""
        mean, variance = self.components(x)
        every = torch.arange(len(self.sizes), device=x.device)
        noisy = Marginals(mean, variance + self.parts.noise(every).unsqueeze(1))
        return gaussian_mixture(noisy, self.gates.probabilities(x))

    @property
    def has_own_noise(self) -> bool:
        """As in ``Posterior``: every expert has its own noise variance."""
        return True

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t), each that of an expert drawn by the gates.

        A function has one uniform number u; at x it follows the first expert for which the
        cumulative sum of the gates exceeds u, so that experts change only where the gates do.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        Cost: num prior functions for every expert.
        """
        like = self.residual
        level = torch.rand(num, generator=generator, dtype=like.dtype, device=like.device)

        def choose_expert(x: Tensor) -> Tensor:
            cumulative = running_sum(self.gates.probabilities(x))
            passed = cumulative.unsqueeze(1) <= level.view(1, -1, 1)
            return passed.sum(0).clamp(max=len(self.sizes) - 1)

        return ExpertPaths(self, num, generator, frequencies, choose_expert)
