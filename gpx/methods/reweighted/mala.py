"""Type-I inference: a Markov chain over hyperparameters, and over latent targets of classes."""

from __future__ import annotations

import math
import warnings
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
from gpx.tensor_checks import check_at_least
from gpx.warned_line import users_line

ACCEPTANCE_RANGE = (0.4, 0.75)
"""Acceptance rates outside of which a warning is given."""

FEATURE_ROWS = 4096
"""Rows whose features are computed at a time."""


class MALA(Chain[Reweighted]):
    """Metropolis-adjusted Langevin algorithm over the hyperparameters of a re-weighted basis.

    A step is one proposal. During burn-in the step size is adapted to a target acceptance rate, and
    the preconditioner is set, at the start and half way, to the inverse of the prior's precision
    plus the expected information of the data; afterwards both are fixed. Every ``thin``-th state
    after burn-in is appended to the model's ``samples``. A chain whose thinning was reduced, and
    that then goes on, doubles it again whenever there are twice the samples asked for.

    Classes (the probit likelihood) are signs of latent targets. Each step then first draws
    ``latents`` of these again (``redraw_latents``), and every sample stores the sums of its own.

    Args:
        burn_in: steps before the first sample. If the run is too short for these and a sample,
            burn-in takes half of its steps, and ``thin`` is reduced.
        iterations: steps after burn-in.
        thin: steps between samples.
        latents: latent targets redrawn per step, at most n; with few the chain mixes slowly.

    Raises:
        ConfigError: an option out of range.

    Cost per step: one evidence and gradient from sufficient statistics, independent of n; for
    classes three, and the features of ``latents`` rows.
    Source: Evans thesis, sections 5.4.2 and 5.3.5 (classes); adaptation and preconditioner are
    additions.
    """

    inference = "type1"
    """Inference that the model must have; see ``Reweighted.check_optimizer``."""
    unit = "steps of the chain"
    purpose = "samples the hyperparameters of Reweighted models"
    model_type = Reweighted

    def __init__(
        self, burn_in: int = 1000, iterations: int = 10_000, thin: int = 50, latents: int = 1000
    ) -> None:
        check_at_least(0, burn_in=burn_in)
        check_at_least(1, thin=thin, latents=latents)
        if iterations < thin:
            raise ConfigError(f"iterations={iterations} must be at least thin={thin}")
        self.latents = latents
        self.burn_in = burn_in
        self.iterations = iterations
        self.thin = thin
        self.chain: Langevin | None = None
        self.saved = {}
        self.accepted = 0
        self.trace: list[float] = []
        self.latest: JointDensity | None = None
        self.here: JointDensity | None = None
        self.replay = False
        self.record: Record | None = record_cuda_graph
        self._recorded_form: object = None
        self.last = self.asked = burn_in + iterations
        self.most_samples = 2 * (iterations // thin)

    def run(self, session: Session) -> str:
        """As in ``OwnSteps``; on a GPU the density is recorded and replayed as a CUDA graph."""
        self.replay = session.cuda_graphs
        return super().run(session)

    def check_fit(self, model: Reweighted, num_data: int) -> None:
        """As in ``OwnSteps``; the model must have type-I inference."""
        if model.inference != "type1":
            raise ConfigError(
                "optimizer=MALA() is type-I inference and the model has inference="
                f"{model.inference}: choose inference={model.inference} with its own optimizer, or "
                "inference=type1"
            )

    def bind(self, model: Reweighted, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``; continues the chain of a checkpoint."""
        self.model = model
        position = self._sampled_part(model.position)
        priors = model.hyper_priors
        assert priors is not None  # type-I models have them
        self.form, self.priors = model.form, priors
        self._recorded_form = None  # the density of an earlier chain may have other priors
        floor = model.noise_floor
        self.least = math.log(floor) if floor > 0.0 else -math.inf
        restored, self.restored = self.restored, False
        self.accepted, self.trace = 0, []
        if restored and self.saved:
            self.require_coordinates(len(self.saved["chain"]["position"]), len(position))
            self.chain = Langevin.restored(self._density, self.saved["chain"])
            self.accepted, self.trace = self.saved["accepted"], self.saved["trace"].tolist()
            self.here = JointDensity(**self.saved["here"])
            return
        model.samples = model.samples[:0]  # drop those of an earlier chain
        model.latent_sums = model.latent_sums[:0]
        self.chain = Langevin(self._density, position, self._variances(position))
        self.here = self.latest

    def _sampled_part(self, whole: Tensor) -> Tensor:
        """The sampled part of (log g, log noise) (k + 1,); without a noise that is fixed."""
        return whole if self.model.learns_noise else whole[:-1]

    def _full_position(self, free: Tensor) -> Tensor:
        """The inverse of ``_sampled_part``."""
        if self.model.learns_noise:
            return free
        noise = self.model.noise_variance.detach().double().log()
        return torch.cat([free, noise[None]])

    def _density(self, free: Tensor) -> tuple[Tensor, Tensor]:
        position = self._full_position(free)
        try:
            found = self._joint(position)
        except NotPositiveDefinite:  # the covariance is not finite: never accepted
            self.latest = None
            return position.new_tensor(-math.inf), torch.zeros_like(free)
        self.latest = found
        value = found.likelihood + found.prior
        # noise variances below the floor have prior density zero
        return torch.where(position[-1] > self.least, value, -math.inf), self._sampled_part(
            found.gradient
        )

    def _joint(self, position: Tensor) -> JointDensity:
        """The density at a position; with ``replay`` from a CUDA graph."""
        if self.form is not self._recorded_form:  # for classes statistics change at each step
            self._recorded_form = self.form
            evaluate = partial(joint_density, self.form, self.priors)
            fixed = self.replay and not self.model.is_probit
            self._density_at = Replayed(evaluate, self.record if fixed else None)
        found = self._density_at(position)
        # the next replay overwrites these tensors, which the chain keeps
        return JointDensity(*(part.clone() for part in found)) if self.replay else found

    def _variances(self, free: Tensor) -> Tensor:
        """Inverse of prior precision plus expected information, diagonal, shape of ``free``."""
        position = self._full_position(free)
        information = self._sampled_part(self.form.weights(position[:-1], position[-1]).fisher())
        return 1.0 / (1.0 / self._sampled_part(self.priors.variances(position)) + information)

    def serves(self, step: int) -> bool:
        """As in ``OwnSteps``: from the first sample on."""
        return step >= self.burn_in + self.thin

    def max_steps(self, limit: int) -> int:
        """Burn-in and iterations, at most ``limit``.

        Warns if burn-in and thinning are shortened to have samples at all.
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
                stacklevel=users_line(),
            )
        self.last = min(limit, self.asked)
        return self.last

    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """One proposal; returns the log joint density at the state of the chain.

        Args:
            step: number of the step, from 0.
            x, y: used for classes only.
            generator: for proposal and acceptance.
        """
        assert self.chain is not None
        if step > 0 and step == self.burn_in // 2:
            self.chain.variances = self._variances(self.chain.position)
        if self.model.is_probit:
            here, size = self._full_position(self.chain.position), self.latents
            redraw_latents(self.model, here, x, y, size=size, generator=generator)
            self.form = self.model.form
            self.chain.reevaluate()
            self.here = self.latest
        probability, moved = self.chain.step(generator=generator)
        if moved:
            self.here = self.latest
        count = step + 1
        if count % self.thin == 0 or count == self.last:  # for progress reports
            self.model.set_position(self._full_position(self.chain.position))
        if count <= self.burn_in:
            self.chain.adapt(count, probability)
        else:
            self.accepted += moved
            self.trace.append(float(self.chain.value))
            if (count - self.burn_in) % self.thin == 0:
                self._keep(self._full_position(self.chain.position))
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
        while len(model.samples) >= self.most_samples:
            # those of the chain with twice the thinning
            model.samples = model.samples[1::2].clone()
            model.latent_sums = model.latent_sums[1::2].clone()
            self.thin, self.cut = 2 * self.thin, True

    @property
    def acceptance(self) -> float:
        """Fraction of proposals accepted after burn-in; NaN before."""
        return self.accepted / len(self.trace) if self.trace else math.nan

    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Mean log marginal likelihood over the samples, with diagnostics of the chain.

        For classes it is the evidence of the latent targets of each sample, not of the labels (fact
        ``evidence_of``). Warns if the acceptance rate is outside ``ACCEPTANCE_RANGE``.
        """
        samples = self.model.samples
        values = [
            joint_density(self.model.form_of(number), self.priors, u).likelihood
            for number, u in enumerate(samples)
        ]
        sizes = effective_sample_size(self._sampled_part(samples.mT).mT)
        trace = torch.tensor(self.trace, dtype=torch.float64)[:, None]
        low, high = ACCEPTANCE_RANGE
        if not low <= self.acceptance <= high:
            warnings.warn(
                f"the chain accepted {100 * self.acceptance:.0f} % of its proposals after burn-in, "
                f"out of [{100 * low:.0f} %, {100 * high:.0f} %]: its step was adapted too little; "
                f"raise burn_in={self.burn_in}",
                stacklevel=users_line(),
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
        if not self.model.learns_noise:
            del facts["effective_samples_noise"]
        return Evidence(torch.stack(values).mean(), "estimate", {}, None, facts)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Step size and, after burn-in, acceptance rate."""
        rates = {"step_size": math.nan if self.chain is None else self.chain.step_size}
        return {**rates, "acceptance": self.acceptance} if self.trace else rates

    def state_dict(self) -> dict[str, Any]:
        """State, step size and preconditioner of the chain, and the log density of every step."""
        if self.chain is None or self.here is None:
            return {}
        return {
            "chain": self.chain.state_dict(),
            "here": self.here._asdict(),
            "accepted": self.accepted,
            "trace": torch.tensor(self.trace, dtype=torch.float64),
            **self.schedule_state(),
        }


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
    """A Gibbs step for the latent targets u of a probit model, given theta.

    y = sign(u) with u = m(x) + Phi w + noise of variance one. Given u this is regression, with sums
    Phi^T (u - m) and |u - m|^2. The weights are drawn given all u, then u of some rows given these
    weights and the labels, and the sums are updated. The weights are dropped, so that the next step
    of theta is conditional on u alone.

    Args:
        model: its ``latents`` and sums are changed.
        position (k + 1,): theta.
        x (n, d), y (n,): all training data, labels -1 and 1.
        size: number of rows to redraw, at most n; consecutive, from a random row.
        generator: on the device of x.

    Cost: that of drawing weights (``ReweightedWeights.draw``) and O(size m), independent of n.
    Source: Evans thesis, section 5.3.5; Albert and Chib 1993 (probit).
    """
    statistics, n = model.statistics, x.shape[0]
    weights = model.form.weights(position[:-1], position[-1]).draw(1, generator=generator)[0]
    start = torch.randint(n, (1,), generator=generator, device=x.device)
    chosen = (start + torch.arange(min(size, n), device=x.device)) % n
    projected, squared = statistics.projected.clone(), statistics.squared.clone()
    for rows in chosen.split(FEATURE_ROWS):
        features, offset = model.features(x[rows]).double(), model.mean(x[rows]).double()
        drawn = signed_normals(offset + features @ weights, y[rows], generator=generator)
        new, old = drawn - offset, model.latents[rows]
        projected += (new - old) @ features
        squared += (new.square() - old.square()).sum()
        model.latents[rows] = new
    model.set_targets(projected, squared)
