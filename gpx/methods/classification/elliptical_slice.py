"""Markov chains: elliptical slice sampling of latents, slice sampling of hyperparameters."""

from __future__ import annotations

import math
from typing import Any, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError, GPXError, class_name
from gpx.linalg import cholesky, require_memory
from gpx.methods.base.objective import Evidence, Facts
from gpx.methods.base.several_chains import SeveralChains
from gpx.methods.classification.frame import Around, Frame, frames_of
from gpx.methods.classification.model import num_arrays
from gpx.methods.classification.prior_matrix import prior_matrix
from gpx.methods.classification.sampled_model import SampledGP
from gpx.methods.classification.sampled_posterior import prior_factors
from gpx.sampling.seeds import stream
from gpx.sampling.slices import LineSlices, elliptical_slice
from gpx.tensor_checks import check_at_least, check_one_of

BRACKET_WIDTH = 2.0
"""Initial bracket of a slice along a line, in standard deviations."""

LOCKSTEP_ENTRIES = 2**22
"""Entries of the kernel matrices of the chains that move together. Larger ones fill a machine by
themselves, and take memory."""

MAX_START_HALVINGS = 6
"""Most times that the distance of a chain's start from the centre is halved, before the chain
starts at the centre."""


class EllipticalSlice(SeveralChains[SampledGP]):
    """Several chains over latents and hyperparameters u, in nearly standard normal coordinates.

    f = m + L v with L L^T = K, and v = c + J^-T z in the ``Frame`` of an approximate posterior at
    u, so that z is nearly standard normal a posteriori. A step updates z by ``updates`` elliptical
    slices given u, then u by slice sampling along a random line given z, where f follows u. Both
    leave the exact posterior invariant, since the approximation only defines coordinates. The
    directions of the lines have the covariance of u over all chains, learned in burn-in and fixed
    afterwards. Chains start at draws of the hyper-prior, so that R-hat is meaningful. They move in
    lockstep: their matrices are factorised as one batch.

    Args:
        chains: number C of chains.
        burn_in: steps before the first sample; half of the steps of a run that is too short.
        iterations: steps after burn-in.
        thin: steps between samples.
        updates: elliptical slices per step.
        around: ``posterior``, as above, or ``prior``: c = 0 and J = I, as in the first source. The
            steps are then cheap, but chains mix slowly with many points.

    Raises:
        ConfigError: an option out of range.

    Cost per step: about six frames per chain (``frame_of``; prior: n^3 / 3 each), and about a
    hundred times n^2 C; memory for (p + 1) C arrays of n x n, twice as many at the first step.
    Source: Murray, Adams and MacKay 2010 (elliptical slices); Nishihara, Murray and Adams 2014
    (around an approximation of the posterior); Murray and Adams 2010 (hyperparameters given white
    latents); Neal 2003 (slice sampling).
    """

    unit = "steps of the chains"
    purpose = "samples functions and hyperparameters of SampledGP models"
    model_type = SampledGP

    def __init__(
        self,
        chains: int = 4,
        burn_in: int = 100,
        iterations: int = 400,
        thin: int = 4,
        updates: int = 5,
        around: Around = "posterior",
    ) -> None:
        super().__init__(chains, burn_in, iterations, thin)
        check_at_least(1, updates=updates)
        check_one_of(get_args(Around), around=around)
        self.updates = updates
        self.around: Around = around
        self.saved = {}
        self.trace: list[Tensor] = []
        self.history: list[Tensor] = []
        self.evaluations = {"latents": 0, "hyperparameters": 0}
        self.bound = False

    def check_fit(self, model: SampledGP, num_data: int) -> None:
        """As in ``OwnSteps``: checks memory, and log-concavity for ``around=posterior``."""
        likelihood = model.likelihood
        p, device = likelihood.num_latents, next(model.kernel.parameters()).device
        require_memory(
            (num_arrays(p) + 2 * (p + 1) * self.chains) * 8 * num_data**2,
            device,
            f"{self.chains} chains on {num_data} training points, for their arrays of "
            f"{num_data} x {num_data} numbers,",
            "take fewer chains= or points, or model=LaplaceGP()",
        )
        if self.around == "posterior":
            likelihood.curvature(torch.zeros(0), torch.zeros(0) if p == 1 else torch.zeros(0, p))
            if not likelihood.log_concave:
                raise ConfigError(
                    f"around=posterior needs a log-concave likelihood, which "
                    f"{class_name(likelihood)} is not; use around=prior"
                )

    @torch.no_grad()
    def bind(self, model: SampledGP, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``; continues the chains of a checkpoint."""
        self.model, self.place, self.inputs = model, model.place, x
        self.frames: Frame | None = None
        self.bound = True
        restored, self.restored = self.restored, False
        if restored and self.saved:
            self.require_coordinates(self.saved["positions"].shape[-1], self.place.size)
            self.z, self.positions = self.saved["z"], self.saved["positions"]
            self.trace, self.history = list(self.saved["trace"]), list(self.saved["history"])
            self.spread = self.saved["spread"]
            self.evaluations = dict(self.saved["evaluations"])
            return
        model.samples, model.latents = model.samples[:0], model.latents[:0]
        self.trace, self.history = [], []
        self.evaluations = dict.fromkeys(self.evaluations, 0)
        generator = stream(seed, "chains", x.device)
        like: dict[str, Any] = {"dtype": torch.float64, "device": x.device}
        p = model.likelihood.num_latents
        self.z = torch.randn(self.chains, p, len(x), generator=generator, **like)
        self.spread = model.prior_deviation * torch.eye(self.place.size, **like)
        draws = torch.randn(self.chains, self.place.size, generator=generator, **like)
        self.positions = model.centre + model.prior_deviation * draws
        allowed = self.place.allows(self.positions).unsqueeze(1)
        self.positions = torch.where(allowed, self.positions, model.centre)

    @property
    def groups(self) -> list[slice]:
        """Chains that move in lockstep, by their numbers; alone where their matrices are large."""
        size = max(1, LOCKSTEP_ENTRIES // len(self.inputs) ** 2)
        return [slice(first, first + size) for first in range(0, self.chains, size)]

    def _initial_frames(self, y: Tensor) -> Frame:
        """Frames of all chains at their current hyperparameters."""
        self.start: Tensor | None = None
        if self.around == "posterior":
            centre = self._existing_frames(self.model.centre[None], y).of_chains(0)
            white = centre.by_class(centre.centre)
            right = white.reshape(len(y), -1)
            weights = torch.linalg.solve_triangular(centre.factor.mT, right, upper=True)
            self.start = weights.view_as(white)
        return Frame.joined([self._starting_frames(self.positions[g], y) for g in self.groups])

    def _starting_frames(self, positions: Tensor, y: Tensor) -> Frame:
        """The frames at u (c, k); a position that has none moves towards the centre until it has.

        Moves treat such a position as impossible, but chains are drawn to start anywhere.
        """
        frames, missing = self._frames(positions, y)
        for attempt in range(MAX_START_HALVINGS + 1):
            if not missing:
                break
            share = 0.5 if attempt < MAX_START_HALVINGS else 0.0
            rows, centre = list(missing), self.model.centre
            positions[rows] = centre + share * (positions[rows] - centre)
            frames, missing = self._frames(positions, y)
        if missing:
            raise next(iter(missing.values()))
        return frames

    def _existing_frames(self, positions: Tensor, y: Tensor) -> Frame:
        """The frames at u (c, k), which must exist."""
        frames, missing = self._frames(positions, y)
        if missing:
            raise next(iter(missing.values()))
        return frames

    def _frames(self, positions: Tensor, y: Tensor) -> tuple[Frame, dict[int, GPXError]]:
        """The frames at u (c, k), and by their rows why some of them do not exist."""
        model, offsets, kernels = self.model, [], []
        for _ in self.place.visit(positions):
            # a constant mean is a view of its parameter, which is overwritten later
            offsets.append(model.mean(self.inputs).double().clone())
            kernels.append(prior_matrix(model.kernel, self.inputs))
        offset, kernel = torch.stack(offsets), torch.stack(kernels)
        kernels.clear()
        factor, indefinite = prior_factors(kernel, model.jitter)
        frames, missing = frames_of(
            model.likelihood, y, offset, kernel, factor, self.around, self.start
        )
        return frames, missing | indefinite

    @torch.no_grad()
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Advance every chain by one step; returns their mean log p(y | f).

        Args:
            step: number of the step, from 0.
            x (n, d), y (n,): all training data.
            generator: for all draws.
        """
        y = y.double()
        if self.frames is None:
            self.frames = self._initial_frames(y)
        frame = self.frames
        self._move_latents(frame, y, generator)
        if self.place.size and self.model.prior_deviation > 0.0:
            self._learn_directions(step)
            for group in self.groups:
                self._move_hyperparameters(frame.of_chains(group), group, y, generator)
        white = frame.white(self.z)
        latents = frame.latent(frame.colour(white))
        fit = self.model.likelihood.log_prob_of_rows(y, latents, None).sum(-1)
        self.place.move(self.positions[-1])
        self.model.whitened = frame.by_class(frame.centre + white)[-1].contiguous()
        done = step + 1 - self.burn_in
        if done > 0 and done % self.thin == 0:
            self._store_samples(latents, fit)
        return Evidence(fit.mean(), "estimate", {"fit": fit.mean()})

    def _move_latents(self, frame: Frame, y: Tensor, generator: torch.Generator) -> None:
        """Elliptical slices of all chains at once, given u."""

        def state_of(z: Tensor) -> tuple[Tensor, ...]:
            white = frame.white(z)
            return z, white, frame.colour(white)

        state = state_of(self.z)
        for _ in range(self.updates):
            state, _, count = elliptical_slice(
                state,
                state_of(torch.empty_like(self.z).normal_(generator=generator)),
                lambda at: frame.log_ratio(self.model.likelihood, y, at),
                generator=generator,
            )
            self.evaluations["latents"] += count
        self.z = state[0]

    def _learn_directions(self, step: int) -> None:
        """Update the covariance of the directions, half-way through burn-in and at its end.

        It is the covariance of the later half of the steps so far, shrunk as in Stan's warm-up. A
        single draw has none, and leaves it as it is.
        """
        later = self.history[len(self.history) // 2 :]
        enough = len(self.history) >= 2 and len(later) * self.chains >= 2
        if step in (self.burn_in // 2, self.burn_in) and enough:
            draws = torch.stack(later).flatten(0, 1)
            share = len(draws) / (len(draws) + 5.0)
            shrinkage = 1e-3 * (1.0 - share) * self.model.prior_deviation**2
            covariance = share * torch.atleast_2d(draws.mT.cov())
            covariance.diagonal().add_(shrinkage)
            self.spread, _ = cholesky(covariance, name="the covariance of hyperparameters")
        if step < self.burn_in:
            self.history.append(self.positions.clone())
        else:
            self.history = []

    def _move_hyperparameters(
        self, frame: Frame, group: slice, y: Tensor, generator: torch.Generator
    ) -> None:
        """Slice sampling of u given z, of a group of chains in lockstep; updates their ``frame``.

        Each chain moves along a random line of its own.
        """
        positions, z = self.positions[group], self.z[group]
        start = positions.clone()
        direction = torch.empty_like(start).normal_(generator=generator)
        direction = BRACKET_WIDTH / direction.norm(dim=1, keepdim=True) * direction
        direction = direction @ self.spread.mT
        slices = LineSlices(self._log_density(frame, start, z, y), generator=generator)
        while slices.moving:
            # on a device all go along: it takes no longer, and a batch of one size has the same
            # bits when a run is resumed
            asked = slices.moving if start.is_cpu else list(range(len(start)))
            points = start + start.new_tensor(slices.offsets).unsqueeze(1) * direction
            allowed = self.place.allows(points)
            at = torch.where(allowed.unsqueeze(1), points, start)[asked]
            found, missing = self._frames(at, y)
            values = torch.full_like(start[:, 0], -math.inf)
            values[asked] = self._log_density(found, at, z[asked], y)
            impossible = ~allowed | values.isnan()
            impossible[[asked[row] for row in missing]] = True
            for chain in slices.tell(values.masked_fill(impossible, -math.inf)):
                positions[chain] = points[chain]
                frame.set_chain(chain, found.of_chains(asked.index(chain)))
        self.evaluations["hyperparameters"] += slices.count

    def _log_density(self, frame: Frame, positions: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """log density of u (c, k) given z (c, p, n), up to a constant, (c,)."""
        white = frame.white(z)
        ratio = frame.log_ratio(self.model.likelihood, y, (z, white, frame.colour(white)))
        standardised = (positions - self.model.centre) / self.model.prior_deviation
        return ratio - 0.5 * standardised.square().sum(1)

    def _store_samples(self, latents: Tensor, fit: Tensor) -> None:
        """Add the state of every chain to the samples of the model."""
        model = self.model
        if not len(model.samples):
            model.samples, model.latents = self.positions[:0].clone(), latents[:0].clone()
        model.samples = torch.cat([model.samples, self.positions])
        model.latents = torch.cat([model.latents, latents])
        self.trace.append(fit.clone())
        while len(self.trace) >= self.most_samples:
            # those of chains with twice the thinning
            model.samples = self.every_second(model.samples)
            model.latents = self.every_second(model.latents)
            self.trace = self.trace[1::2]
            self.thin, self.cut = 2 * self.thin, True

    def diagnostics(self) -> Facts:
        """Largest R-hat and smallest bulk effective sample size of the stored samples.

        Each over all hyperparameters, over the latents at all training points, and of log p(y | f).
        """
        if not self.trace:
            return {}
        model, fit = self.model, torch.cat(self.trace)
        return self.agreement_of(
            {"hyperparameters": model.samples, "latents": model.latents, "fit": fit}
        )

    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Mean log p(y | f) over the samples, with the diagnostics of the chains.

        This is not an evidence: its expectation is at least the log marginal likelihood
        (``evidence_of``). Warns of chains that have not converged.
        """
        diagnostics = self.diagnostics()
        self.warn_unless_converged(diagnostics, len(self.trace))
        facts: Facts = {
            "evidence_of": "labels given latents: on average above the log marginal likelihood",
            "chains": self.chains,
            "num_samples": len(self.model.samples),
            "evaluations_latents": self.evaluations["latents"],
            "evaluations_hyperparameters": self.evaluations["hyperparameters"],
            **diagnostics,
        }
        value = torch.stack(self.trace).mean() if self.trace else x.new_tensor(math.nan)
        return Evidence(value, "estimate", {}, None, facts)

    def state_dict(self) -> dict[str, Any]:
        """Positions of the chains, and log p(y | f) of every sample."""
        if not self.bound:
            return {}
        return {
            "z": self.z,
            "positions": self.positions,
            "spread": self.spread,
            "history": torch.stack(self.history) if self.history else torch.zeros(0),
            "trace": torch.stack(self.trace) if self.trace else torch.zeros(0, self.chains),
            "evaluations": self.evaluations,
            **self.schedule_state(),
        }
