"""Type-I inference: a Markov chain over hyperparameters, and the latent targets of classes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.linalg.replayed import Record, Replayed, record_cuda_graph
from gpx.methods.base.chain import Chain
from gpx.methods.base.objective import Evidence
from gpx.methods.base.optimizer import Session
from gpx.methods.reweighted.evidence import JointDensity, joint_density
from gpx.methods.reweighted.model import Reweighted
from gpx.sampling.convergence import effective_sample_size
from gpx.sampling.langevin import Langevin
from gpx.sampling.truncated_normal import signed_normals

ACCEPTABLE = (0.4, 0.75)
"""Acceptance rates outside of which the step does not suit the posterior."""

ROWS = 4096
"""Rows whose features are held at once."""


class MALA(Chain[Reweighted]):
    """Metropolis-adjusted Langevin over the hyperparameters of a re-weighted basis.

    A step is one proposal. In burn-in the step size is adapted to the acceptance rate that suits
    many dimensions, and the preconditioner is set, at the start and half way, to the inverse of the
    prior's precision plus the expected information of the data; both are frozen then. Every
    ``thin``-th state after burn-in goes into the model's ``samples``.

    Classes (the probit likelihood) are signs of latent targets: a step then draws ``latents`` of
    these anew before its proposal (``redraw_latents``), and every sample keeps the sums of its own.

    Args:
        burn_in: steps before the first sample. Where the run is too short for them and a sample,
            half of its steps, and ``thin`` is cut to what the rest allows.
        iterations: steps after burn-in.
        thin: steps between samples.
        latents: latent targets that a step draws, at most n; with few of them the chain mixes
            slowly.

    Raises:
        ConfigError: an option out of range; ``check`` says what does not fit the model.

    Cost per step: one evidence and gradient from sufficient statistics, whatever n; for classes
    three, and the features of ``latents`` rows.
    Source: Evans thesis, sections 5.4.2 and 5.3.5 (classes); the adaptation and the preconditioner
    are ours.
    """

    inference = "type1"
    """Of the models that it is for; ``Reweighted.check_optimizer`` asks."""
    unit = "steps of the chain"
    purpose = "samples the hyperparameters of Reweighted models"
    model_type = Reweighted

    def __init__(
        self, burn_in: int = 1000, iterations: int = 10_000, thin: int = 50, latents: int = 1000
    ) -> None:
        if burn_in < 0 or thin < 1 or iterations < thin or latents < 1:
            raise ConfigError(
                f"burn_in={burn_in} cannot be negative, thin={thin} and latents="
                f"{latents} must be at least 1 and iterations={iterations} at least thin, for one "
                "sample"
            )
        self.latents = latents
        self.burn_in = burn_in
        self.iterations = iterations
        self.thin = thin
        self.chain: Langevin | None = None
        self.saved: dict[str, Any] = {}
        self.accepted = 0
        self.trace: list[float] = []
        self.latest: JointDensity | None = None
        self.here: JointDensity | None = None
        self.replay = False
        self.record: Record | None = record_cuda_graph
        self._recorded_form: object = None
        self.last = self.asked = burn_in + iterations

    def run(self, session: Session) -> str:
        """As in ``OwnSteps``; the density of targets is recorded and replayed on a GPU."""
        self.replay = session.cuda_graphs
        return super().run(session)

    def check_fit(self, model: Reweighted, num_data: int) -> None:
        """As in ``OwnSteps``: type-I inference was asked for."""
        if model.inference != "type1":
            raise ConfigError(
                "optimizer=MALA() is type-I inference and the model has inference="
                f"{model.inference}: choose inference={model.inference} with its own optimizer, or "
                "inference=type1"
            )

    def bind(self, model: Reweighted, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``; goes on with the chain of a checkpoint."""
        self.model = model
        position = self._free(model.position)
        priors = model.hyper_priors
        assert priors is not None  # type-I models have them
        self.form, self.priors = model.form, priors
        floor = model.noise_floor
        self.least = math.log(floor) if floor > 0.0 else -math.inf
        if self.saved:
            self.chain = Langevin.restored(self._density, self.saved["chain"])
            self.accepted, self.trace = self.saved["accepted"], self.saved["trace"].tolist()
            self.here = JointDensity(**self.saved["here"])
            return
        model.samples = model.samples[:0]  # of an earlier chain, perhaps for other data
        model.latent_sums = model.latent_sums[:0]
        self.chain = Langevin(self._density, position, self._variances(position))
        self.here = self.latest

    def _free(self, whole: Tensor) -> Tensor:
        """The sampled part of (log g, log noise) (k + 1,): without the noise for classes."""
        return whole[:-1] if self.model.is_probit else whole

    def _whole(self, free: Tensor) -> Tensor:
        """The inverse of ``_free``."""
        return torch.cat([free, free.new_zeros(1)]) if self.model.is_probit else free

    def _density(self, free: Tensor) -> tuple[Tensor, Tensor]:
        position = self._whole(free)
        try:
            found = self._joint(position)
        except NotPositiveDefinite:  # so far out that the covariance is not finite: never accepted
            self.latest = None
            return position.new_tensor(-math.inf), torch.zeros_like(free)
        self.latest = found
        value = found.likelihood + found.prior
        # the prior of the noise ends at its floor: states below are never accepted
        return torch.where(position[-1] > self.least, value, -math.inf), self._free(found.gradient)

    def _joint(self, position: Tensor) -> JointDensity:
        """The density at a position, replayed from a recording where steps may be."""
        if self.form is not self._recorded_form:  # other statistics: classes have them at each step
            self._recorded_form = self.form
            evaluate = partial(joint_density, self.form, self.priors)
            fixed = self.replay and not self.model.is_probit
            self._density_at = Replayed(evaluate, self.record if fixed else None)
        found = self._density_at(position)
        # the chain keeps what the next replay fills anew
        return JointDensity(*(part.clone() for part in found)) if self.replay else found

    def _variances(self, free: Tensor) -> Tensor:
        """Inverse of prior precision plus expected information, diagonal, shape of ``free``."""
        position = self._whole(free)
        information = self._free(self.form.weights(position[:-1], position[-1]).fisher())
        return 1.0 / (1.0 / self._free(self.priors.variances(position)) + information)

    def serves(self, step: int) -> bool:
        """From the first sample on."""
        return step >= self.burn_in + self.thin

    def max_steps(self, limit: int) -> int:
        """Burn-in and iterations, at most ``limit``; ``check_limit`` has passed.

        Warns where burn-in and thinning are cut to have samples at all.
        """
        if limit < self.burn_in + self.thin:
            wanted, samples = self.burn_in, self.iterations // self.thin
            self.burn_in = min(wanted, limit // 2)
            left = min(limit - self.burn_in, self.iterations)
            self.thin = -(-left // samples)
            self.cut = True
            warnings.warn(
                f"max_steps={limit} ends before the first sample after a burn-in of "
                f"{wanted} steps: burn-in takes {self.burn_in} steps, then every "
                f"{self.thin}. state is kept; raise max_steps= for a settled chain",
                stacklevel=2,
            )
        self.last = min(limit, self.asked)
        return self.last

    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """One proposal; returns the log joint density where the chain is.

        Args:
            step: number of the step, from 0.
            x, y: read for classes only.
            generator: of the proposal and its acceptance.
        """
        assert self.chain is not None
        if step > 0 and step == self.burn_in // 2:
            self.chain.variances = self._variances(self.chain.position)
        if self.model.is_probit:
            here, size = self._whole(self.chain.position), self.latents
            redraw_latents(self.model, here, x, y, size=size, generator=generator)
            self.form = self.model.form
            self.chain.reevaluate()
            self.here = self.latest
        probability, moved = self.chain.step(generator=generator)
        if moved:
            self.here = self.latest
        count = step + 1
        if count % self.thin == 0 or count == self.last:  # so that progress reports see it
            self.model.move(self._whole(self.chain.position))
        if count <= self.burn_in:
            self.chain.adapt(count, probability)
        else:
            self.accepted += moved
            self.trace.append(float(self.chain.value))
            if (count - self.burn_in) % self.thin == 0:
                self._keep(self._whole(self.chain.position))
        assert self.here is not None
        parts = {name: getattr(self.here, name) for name in ("fit", "complexity", "constant")}
        return Evidence(self.chain.value, "estimate", {**parts, "prior": self.here.prior})

    def _keep(self, position: Tensor) -> None:
        model, sums = self.model, self.model.statistics
        model.samples = torch.cat([model.samples, position[None].clone()])
        if model.is_probit:
            row = torch.cat([sums.projected, sums.squared[None]])[None]
            known = model.latent_sums if len(model.latent_sums) else row[:0]
            model.latent_sums = torch.cat([known, row])

    @property
    def acceptance(self) -> float:
        """Share of proposals accepted after burn-in; NaN before."""
        return self.accepted / len(self.trace) if self.trace else math.nan

    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Mean log marginal likelihood over the samples, with diagnostics of the chain.

        For classes it is the evidence of the latent targets of each sample, not of the labels: the
        fact ``evidence_of`` says so.

        Warns of an acceptance rate outside [0.4, 0.75]: the samples may not be the posterior's.
        """
        samples = self.model.samples
        values = [
            joint_density(self.model.form_of(number), self.priors, u).likelihood
            for number, u in enumerate(samples)
        ]
        sizes = effective_sample_size(self._free(samples.mT).mT)
        trace = torch.tensor(self.trace, dtype=torch.float64)[:, None]
        low, high = ACCEPTABLE
        if not low <= self.acceptance <= high:
            warnings.warn(
                f"the chain accepted {100 * self.acceptance:.0f} % of its proposals after burn-in, "
                f"out of [{100 * low:.0f} %, {100 * high:.0f} %]: its step was adapted too little; "
                f"raise burn_in={self.burn_in}",
                stacklevel=2,
            )
        facts = self.model.facts() | {
            "num_samples": len(samples),
            "acceptance": self.acceptance,
            "step_size": 0.0 if self.chain is None else self.chain.step_size,
            "effective_samples_noise": float(sizes[-1]),
            "effective_samples_median": float(sizes.median()),
            "effective_samples_least": float(sizes.min()),
            "effective_steps_of_density": float(effective_sample_size(trace)),
        }
        if self.model.is_probit:
            facts["evidence_of"] = "latent targets"
            del facts["effective_samples_noise"]
        return Evidence(torch.stack(values).mean(), "estimate", {}, None, facts)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Step size and, after burn-in, acceptance rate."""
        rates = {"step_size": math.nan if self.chain is None else self.chain.step_size}
        return {**rates, "acceptance": self.acceptance} if self.trace else rates

    def state_dict(self) -> dict[str, Any]:
        """Where the chain is, its step and preconditioner, and the log density of every step."""
        if self.chain is None or self.here is None:
            return {}
        return {
            "chain": self.chain.state_dict(),
            "here": self.here._asdict(),
            "accepted": self.accepted,
            "trace": torch.tensor(self.trace, dtype=torch.float64),
            **self.schedule_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.saved = dict(state)
        self.load_schedule(state)


@torch.no_grad()
def redraw_latents(
    model: Reweighted,
    position: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    size: int,
    generator: torch.Generator,
) -> None:
    """One step of Gibbs sampling of the latent targets u of a probit model, given theta.

    y = sign(u) with u = m(x) + Phi w + noise of variance one: given u this is regression, of which
    the model keeps the sums Phi^T (u - m) and |u - m|^2. The weights are drawn given all u, then
    the u of some rows given these weights and the labels, and the sums are updated for these rows.
    The weights are then dropped, so that the next step of theta is conditional on u alone.

    Args:
        model: its ``latents`` and statistics move.
        position (k + 1,): theta.
        x (n, d), y (n,): all training data, labels -1 and 1.
        size: rows to redraw, min(size, n) consecutive ones from a random one on.
        generator: on the device of x.

    Cost: that of drawing weights (``ReweightedWeights.draw``) and O(size m), nothing of n.
    Source: Evans thesis, section 5.3.5; Albert and Chib 1993 (probit).
    """
    statistics, n = model.statistics, x.shape[0]
    weights = model.form.weights(position[:-1], position[-1]).draw(1, generator=generator)[0]
    start = torch.randint(n, (1,), generator=generator, device=x.device)
    chosen = (start + torch.arange(min(size, n), device=x.device)) % n
    projected, squared = statistics.projected.clone(), statistics.squared.clone()
    for rows in chosen.split(ROWS):
        features, offset = model.basis(x[rows]).double(), model.mean(x[rows]).double()
        drawn = signed_normals(offset + features @ weights, y[rows], generator=generator)
        new, old = drawn - offset, model.latents[rows]
        projected += (new - old) @ features
        squared += (new.square() - old.square()).sum()
        model.latents[rows] = new
    model.retarget(projected, squared)
