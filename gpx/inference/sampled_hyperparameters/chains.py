"""Hamiltonian Monte Carlo over the hyperparameters of models of regression."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gpx.errors import ConfigError, DidNotConverge, class_name
from gpx.inference.dense_factor import passing_positions
from gpx.inference.sampled_hyperparameters.hyper_priors import HyperPriors
from gpx.inference.sampled_hyperparameters.model import SampledHyperparameters
from gpx.linalg import cholesky
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.base.several_chains import SeveralChains
from gpx.sampling.hamiltonian import Hamiltonian
from gpx.sampling.normal_approximation import normal_approximation
from gpx.sampling.seeds import stream

START_SPREAD = 2.0
"""Standard deviations of the starts of the chains around the mode, in those of its normal
approximation."""

START_DEVIATION = 0.5
"""Standard deviation of the starts where there is no such approximation; of logarithms, if
positive."""

MAX_APPROXIMATED = 200
"""Most hyperparameters of which the curvature is computed."""

APPROXIMATION_DRAWS = 3
"""Draws per hyperparameter for which the approximation counts beside the states of burn-in."""

MAX_START_LOSS = 100.0
"""Nats by which the density at a chain's start may be below that at the mode."""

MAX_START_HALVINGS = 6
"""Most times that the distance of a chain's start from the mode is halved; the last time it starts
there."""

LEARNED_AT = (0.25, 0.5, 0.75)
"""Shares of burn-in after which the preconditioner is learned anew."""

LEAST_ADAPTATIONS = 5
"""Adaptations of the step size to a preconditioner before burn-in may be cut short; these can
reduce it to a ninth."""


class HamiltonianChains(SeveralChains[SampledHyperparameters]):
    """Several chains over hyperparameters u with the density p(y | u) p(u).

    p(y | u) is what the objective computes: the marginal likelihood of an exact process, and for
    SGPR the exponential of the collapsed bound, of which the joint posterior of inducing values and
    hyperparameters that is nearest to the exact one has this marginal (Hensman et al. 2015). p(u):
    ``HyperPriors``. Chains move in coordinates v without floors (``HyperPosition.above_floors``).
    They start around the mode above the initial hyperparameters (``init``), spread wider than the
    normal law there, whose covariance is the first preconditioner. In burn-in the step size is
    adapted, and the preconditioner learned from the states of all chains.

    Args:
        chains: number C of chains.
        burn_in: steps before the first sample; half of the steps of a run that is too short.
        iterations: steps after burn-in.
        thin: steps between samples.

    Attributes:
        history: states v (C, k) of all steps of burn-in, then of all steps after it.
        approximation (k, k): covariance of the normal law at the mode.
        trace: log p(y | u) (C,) of the states of all steps after burn-in.

    Raises:
        ConfigError: an option out of range.

    Cost per step: C evidences with their gradients a leap, two to four leaps with ten
    hyperparameters.
    Source: Neal 2011; Murray and Adams 2010 and Hensman et al. 2015 (of processes). The schedule of
    burn-in is an addition.
    """

    unit = "steps of the chains"
    purpose = "samples the hyperparameters of FullyBayesianGP and FullyBayesianSGPR models"
    model_type = SampledHyperparameters
    takes_priors = True

    def __init__(
        self, chains: int = 4, burn_in: int = 100, iterations: int = 300, thin: int = 12
    ) -> None:
        super().__init__(chains, burn_in, iterations, thin)
        self.sampler: Hamiltonian | None = None
        self.history: list[Tensor] = []
        self.trace: list[Tensor] = []
        self.approximation = torch.zeros(0)
        self.saved = {}
        self.accepted = 0.0

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """As in ``Optimizer``; the objective must be a log marginal likelihood or a bound on it."""
        super().require_fit(model, objective, num_data, max_steps)
        assert isinstance(model, SampledHyperparameters)
        if not model.hyper_position().size:
            raise ConfigError(
                f"{class_name(model)} averages over hyperparameters, and all of them are fixed: "
                "take model=ExactGP() or SGPR()"
            )
        if objective.batching != "full" or objective.kind not in ("exact", "lower_bound"):
            raise ConfigError(
                f"optimizer={class_name(self)}() needs the log marginal likelihood of all rows, or "
                f"a bound on it, and {class_name(objective)} is an estimate: leave out objective="
            )

    def bind(self, model: SampledHyperparameters, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``; continues the chains of a checkpoint."""
        self.model, self.place = model, model.hyper_position()
        self.data, self.priors = (x, self.session.y), HyperPriors(model, self.place, x.shape[1])
        restored, self.restored = self.restored, False
        if restored and self.saved:
            saved = self.saved
            self.require_coordinates(saved["sampler"]["positions"].shape[-1], self.place.size)
            self.sampler = Hamiltonian.restored(self._densities, saved["sampler"])
            self.trace, self.history = list(saved["trace"]), list(saved["history"])
            self.accepted, self.approximation = saved["accepted"], saved["approximation"]
            return
        self.trace, self.history, self.accepted = [], [], 0.0
        model.samples = model.samples[:0]
        mode, root = self._normal_approximation()
        self.approximation = root @ root.mT
        self.sampler = Hamiltonian(self._densities, self._starts(mode, root, seed), root)

    def _normal_approximation(self) -> tuple[Tensor, Tensor]:
        """v (k,) of the mode above the initial hyperparameters, and a root (k, k) of a covariance.

        Of more than ``MAX_APPROXIMATED`` hyperparameters it is where a start is, and a multiple of
        the identity.
        """
        # a fit without these priors may have gone where they allow nothing, or to a floor
        priors, lowest = self.priors, self.place.lowest().to(self.priors.centre.device)
        far = torch.where(priors.normal > 0.0, 2.0 * priors.deviation, math.inf)
        start = self.place.read().clamp(priors.centre - far, priors.centre + far)
        start = self.place.free(start.maximum(lowest + math.log(2.0)))
        if not bool(self._densities(start[None])[0].isfinite()):
            raise DidNotConverge(
                "the evidence is not finite at the initial hyperparameters, so that chains cannot "
                "start there: start from others, or with a larger noise variance"
            )
        if len(start) > MAX_APPROXIMATED:
            return start, START_DEVIATION / START_SPREAD * torch.eye(len(start)).to(start)
        return normal_approximation(self._densities, start)

    def _starts(self, mode: Tensor, root: Tensor, seed: int) -> Tensor:
        """Positions v (C, k) around the mode, not far below its density.

        One that is moves towards it until it is not: chains do not come down from a cliff.
        """
        least = self._densities(mode[None])[0][0] - MAX_START_LOSS
        draws = torch.randn(
            self.chains,
            len(mode),
            generator=stream(seed, "chains", mode.device),
            dtype=torch.float64,
            device=mode.device,
        )
        positions = mode + START_SPREAD * draws @ root.mT
        for attempt in range(MAX_START_HALVINGS):
            low = ~(self._densities(positions)[0] >= least)  # NaN is low
            if not bool(low.any()):
                break
            share = 0.5 if attempt < MAX_START_HALVINGS - 1 else 0.0
            positions[low] = mode + share * (positions[low] - mode)
        return positions

    def _densities(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y | v) p(v) (C,) at positions v (C, k), and its gradients (C, k)."""
        values = free.new_full((len(free),), -math.inf)
        gradients = torch.zeros_like(free)
        positions = self.place.above_floors(free)
        allowed = self.place.allows(positions).nonzero().flatten()  # the one wait of a GPU here
        if not len(allowed):
            return values, gradients
        inside = positions[allowed]
        with passing_positions():
            fits, by_fit = self.model.log_likelihoods(
                self.session.objective, self.place, inside, *self.data
            )
        with torch.enable_grad():
            u = inside.detach().requires_grad_()
            priors = self.priors.log_density(u)
            (by_prior,) = torch.autograd.grad(priors.sum(), u)
        logs = free[allowed] - inside  # of du / dv
        slopes = logs.exp()
        total = slopes * (by_fit + by_prior) + (1.0 - slopes)
        finite = total.isfinite().all(1)
        values[allowed] = torch.where(finite, fits + priors.detach() + logs.sum(1), -math.inf)
        gradients[allowed] = torch.where(finite.unsqueeze(1), total, 0.0)
        return values, gradients

    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Advance every chain by one trajectory; returns their mean log p(y | u).

        Args:
            step: number of the step, from 0.
            x (n, d), y (n,): all training data.
            generator: for all draws.
        """
        sampler = self.sampler
        assert sampler is not None
        if step in {round(share * self.burn_in) for share in LEARNED_AT}:
            self._learn_preconditioner()
        probabilities = sampler.step(generator=generator)
        positions = self.place.above_floors(sampler.positions)
        self.place.move(positions[-1])  # leaps have left values that were not accepted
        prior = self.priors.log_density(positions)
        fit = sampler.values - prior - (sampler.positions - positions).sum(1)
        done = step + 1 - self.burn_in
        if done == 1:
            self.history = []
        self.history.append(sampler.positions.clone())
        if done <= 0:
            sampler.adapt(probabilities)
        else:
            self.trace.append(fit)
            self.accepted += (float(probabilities.mean()) - self.accepted) / done
            if done % self.thin == 0:
                self._store_samples(positions)
        return Evidence(fit.mean(), "estimate", {"prior": prior.mean()})

    def hurry(self, step: int, limit: int) -> str:
        """As in ``Chain``, but not before the step size suits the preconditioner.

        It starts anew with each preconditioner, and stays as it is after burn-in.
        """
        if self.sampler is not None and self.sampler.adaptations < LEAST_ADAPTATIONS:
            return ""
        return super().hurry(step, limit)

    def _learn_preconditioner(self) -> None:
        """Take the root of the covariance of the later half of the states so far.

        The covariance of the normal approximation counts as ``APPROXIMATION_DRAWS`` draws per
        hyperparameter beside them: the states of burn-in are few, and depend on each other.
        """
        later = self.history[len(self.history) // 2 :]
        if len(later) < 2:
            return
        assert self.sampler is not None
        draws = torch.stack(later).flatten(0, 1)
        share = len(draws) / (len(draws) + APPROXIMATION_DRAWS * self.place.size)
        covariance = self.approximation.lerp(torch.atleast_2d(draws.mT.cov()), share)
        root, _ = cholesky(covariance, name="the covariance of hyperparameters")
        self.sampler.precondition(root)

    def _store_samples(self, positions: Tensor) -> None:
        """Add u (C, k) of every chain to the samples of the model."""
        model = self.model
        model.samples = torch.cat(
            [model.samples if len(model.samples) else positions[:0], positions]
        )
        while len(model.samples) >= self.most_samples * self.chains:
            # those of chains with twice the thinning
            model.samples = self.every_second(model.samples)
            self.thin, self.cut = 2 * self.thin, True

    def release(self) -> None:
        """As in ``OwnSteps``; the model takes the mean of the samples as its values."""
        super().release()
        if self.sampler is not None:
            samples = self.model.samples
            if not len(samples):
                samples = self.place.above_floors(self.sampler.positions)
            self.place.move(samples.mean(0))

    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Mean log p(y | u) over the steps after burn-in, with the diagnostics of the chains.

        It is not an evidence: hyperparameters are given (``evidence_of``). Warns of chains that
        have not converged.
        """
        assert self.sampler is not None
        facts: Facts = {
            "evidence_of": "targets given hyperparameters: on average above the log marginal "
            "likelihood that is averaged over them",
            "chains": self.chains,
            "num_samples": len(self.model.samples),
            "evaluations": self.sampler.evaluations,
            "acceptance": self.accepted,
            "step_size": self.sampler.step_size,
        }
        if not self.trace:
            return Evidence(x.new_tensor(math.nan), "estimate", {}, None, facts)
        fit = torch.cat(self.trace)
        states = self.place.above_floors(torch.cat(self.history))
        diagnostics = self.agreement_of({"hyperparameters": states, "fit": fit})
        self.warn_unless_converged(diagnostics, len(self.trace))
        return Evidence(fit.mean(), "estimate", {}, None, facts | diagnostics)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Step size of the leap-frog."""
        return {} if self.sampler is None else {"step_size": self.sampler.step_size}

    def state_dict(self) -> dict[str, Any]:
        """States of the chains and of their adaptation, and log p(y | u) of every step."""
        if self.sampler is None:
            return {}
        return {
            "sampler": self.sampler.state_dict(),
            "history": torch.stack(self.history) if self.history else torch.zeros(0),
            "trace": torch.stack(self.trace) if self.trace else torch.zeros(0, self.chains),
            "accepted": self.accepted,
            "approximation": self.approximation,
            **self.schedule_state(),
        }
