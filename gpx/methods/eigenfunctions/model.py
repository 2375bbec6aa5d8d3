"""Regression on the leading eigenfunctions of a kernel on a grid of any size (GRIEF)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions
from gpx.bases.grid_eigenfunctions.grid import GridOptions
from gpx.bases.grid_eigenfunctions.search import MIN_ROWS, ROWS_PER_FUNCTION
from gpx.bases.grid_eigenfunctions.start import choose_eigenfunctions, require_sums
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.required_likelihood import require_gaussian
from gpx.methods.base.start import Deadline, StartWatch, Unwatched
from gpx.methods.eigenfunctions.evidence import fitted_weights
from gpx.methods.eigenfunctions.posterior import GRIEFPosterior
from gpx.methods.eigenfunctions.trial import best_start, set_scales

CLEAR_GAIN = 50.0
"""Gain of the search, in nats, from which no trial is run: training from where the search began is
not expected to make up for so much."""

CHEAP_FUNCTIONS = 1000
"""Eigenfunctions below which evaluations are cheap, so that a trial takes more of them."""

NEGLIGIBLE_GAIN = 1e-4
"""Rounds end when the choice stays as it is and the evidence rose by less than this per point."""


class GRIEF(Model):
    """Gaussian process regression with grid-structured eigenfunctions (Evans and Nair 2018).

    f(x) = sum_j v_j phi_j(x) over the p leading Nystrom eigenfunctions of the kernel on a product
    grid of inducing points (10^33 of them are nothing special), v ~ N(0, I).

    Args:
        kernel, mean, likelihood: the kernel must factor over the columns (``ProductFactors``), the
            likelihood must be Gaussian.
        num_inputs: d.
        num_eigenfunctions: p, at most.
        grid: how the inducing grid is built from the training inputs.
        factor_jitter: on every one-dimensional covariance.
        noise_first: whether ``initialise`` raises lengthscales that the grid cannot resolve to its
            spacing, and then moves noise variance and outputscale to where the evidence of the p
            eigenfunctions is largest. Hyperparameters of an exact process give too little noise
            for what p eigenfunctions cannot explain: a first line search from there may step far
            away.
        search_sweeps: how often ``noise_first`` also goes over the inputs and doubles and halves
            their lengthscales, with the eigenfunctions chosen anew each time, see
            ``search_lengthscales``; 0 keeps the lengthscales.
        trial_evaluations: where the search gained less than 50 nats, both its result and its start
            are trained for so many evaluations of the evidence on at most 8 p rows, and the model
            goes on from the better one: the search compares evidences before training, which
            sometimes leads away from the better optimum. Up to five times as many where p < 1000
            makes them cheap. 0 takes what the search found.
        correction: whether the variance that the eigenfunctions miss at a point is added back, as
            independent noise of f: k~(x, x) + (k(x, x) - k~(x, x)) at equal inputs.
        reselect: how often the p eigenfunctions are chosen anew at the kernel found so far, with
            training after each. In between the choice is fixed, because the evidence jumps where
            it changes, which ends a line search. A round that does not raise the evidence is undone
            and is the last. Often none does: the kernel has adapted to the first choice.

    Raises:
        ConfigError: a kernel that does not factor, another likelihood, options out of range.

    Attributes:
        basis: the eigenfunctions.

    Source: Evans thesis, chapter 4, algorithm 4.2.
    """

    mean: Mean
    likelihood: Gaussian

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        num_eigenfunctions: int = 1000,
        grid: GridOptions | None = None,
        factor_jitter: float = 1e-12,
        noise_first: bool = True,
        search_sweeps: int = 5,
        trial_evaluations: int = 40,
        correction: bool = False,
        reselect: int = 0,
    ) -> None:
        super().__init__()
        counts = {"reselect": reselect, "search_sweeps": search_sweeps}
        for name, count in (counts | {"trial_evaluations": trial_evaluations}).items():
            if count < 0:
                raise ConfigError(f"{name} counts rounds and cannot be {count}")
        self.basis = GridEigenfunctions(kernel, num_inputs, num_eigenfunctions, grid, factor_jitter)
        self.mean = mean
        reason = "GRIEF is exact regression on its eigenfunctions"
        self.likelihood = require_gaussian(likelihood, reason)
        self.noise_first = noise_first
        self.search_sweeps = search_sweeps
        self.trial_evaluations = trial_evaluations
        self.correction = correction
        self.reselect = reselect
        self._round = 0
        self._best: tuple[float, dict[str, Tensor]] | None = None

    @property
    def kernel(self) -> Kernel:
        """Covariance function; the basis owns it."""
        return self.basis.kernel

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: nothing to settle, but p functions must fit into memory.

        Raises:
            ConfigError: they do not.
        """
        self.basis.place(x)
        require_sums("num_eigenfunctions", self.basis.num_basis, x.device)
        return {}

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Build the grid; then ``noise_first``.

        Cost: O(n log n d), and n p^2 / 2 + p^3 multiply-adds for ``noise_first``.
        """
        self.initialise_watched(x, y, generator=generator, watch=Unwatched())

    @torch.no_grad()
    def initialise_watched(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator, watch: StartWatch
    ) -> None:
        """As ``initialise``; search and trial end early where the run has no more time for them."""
        deadline = Deadline(watch)
        residual = y - self.mean(x)
        ratio = float(self.likelihood.noise_variance / self.basis.factors.outputscale)
        begin = {name: value.clone() for name, value in self.kernel.state_dict().items()}
        self.note, gain = choose_eigenfunctions(
            self.basis,
            x,
            residual,
            ratio,
            fit=self.noise_first,
            sweeps=self.search_sweeps,
            generator=generator,
            spent=deadline,
        )
        if deadline.passed:
            watch.cut_short("the search for lengthscales")
        elif self.noise_first and self.trial_evaluations and gain < CLEAR_GAIN:
            self._try(begin, x, y, generator, watch)
        if self.noise_first:
            self.note += set_scales(self.basis, self.likelihood, x, y - self.mean(x))

    def _try(
        self,
        begin: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
        watch: StartWatch,
    ) -> None:
        """Train what the search found and what it began with for a while; keep the better."""

        def without_search() -> None:
            self.kernel.load_state_dict(begin)
            self.basis.raise_lengthscales(x)

        deadline = Deadline(watch)
        found = {name: value.clone() for name, value in self.kernel.state_dict().items()}
        without_search()
        if all(torch.equal(found[k], v) for k, v in self.kernel.state_dict().items()):
            return  # no search, or it moved nothing
        most = max(MIN_ROWS, ROWS_PER_FUNCTION * self.basis.num_basis)
        rows = torch.randperm(len(x), generator=generator, device=x.device)[:most]
        cheap = CHEAP_FUNCTIONS / self.basis.num_basis
        evaluations = round(self.trial_evaluations * min(5.0, max(1.0, cheap)))
        best, values = best_start(
            self.basis,
            self.mean,
            self.likelihood,
            x[rows],
            y[rows],
            [lambda: self.kernel.load_state_dict(found), without_search],
            evaluations,
            correction=self.correction,
            spent=deadline,
        )
        if deadline.passed:
            watch.cut_short("the trial of both starts")
            self.note += f", {('kept', 'undone')[best]} after as much of a trial as there was time"
            return
        self.note += (
            f"; evidence/point of {len(rows)} rows after {evaluations} evaluations "
            f"{values[0]:+.4f} from there, {values[1]:+.4f} without the search, which is "
            f"{'undone' if best else 'kept'}"
        )

    rounds_argument = "reselect"

    @property
    def num_rounds(self) -> int:
        """The first optimisation and those of ``reselect``."""
        return 1 + self.reselect

    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """Choose the eigenfunctions anew at the current kernel; see ``reselect``."""
        self._round += 1
        if self.reselect == 0 or self._round > self.num_rounds:
            return False
        if self._best is not None and not loss < self._best[0]:
            self.load_state_dict(self._best[1])
            self._round = self.num_rounds  # what is left of the evaluations goes to this choice
            self.note = "choosing the eigenfunctions anew did not raise the evidence and was undone"
            return False
        gained = math.inf if self._best is None else self._best[0] - loss
        state = {name: value.detach().clone() for name, value in self.state_dict().items()}
        if math.isfinite(loss):
            self._best = loss, state
        if self._round >= self.num_rounds:
            return False
        new = self.basis.select()
        if new:
            self.note = f"round {self._round + 1}: {new} eigenfunctions are new"
        return bool(new) or gained > NEGLIGIBLE_GAIN

    def rounds_state(self) -> dict[str, Any]:
        """As in ``Model``: rounds done, and the best state so far with its loss."""
        best = {} if self._best is None else {"loss": self._best[0], "model": self._best[1]}
        return {"done": self._round, **best}

    def load_rounds_state(self, state: dict[str, Any]) -> None:
        """As in ``Model``."""
        self._round = state.get("done", 0)
        self._best = (state["loss"], state["model"]) if "loss" in state else None

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for records: the size of the grid and of the basis."""
        return {
            "log10_inducing": self.basis.log10_grid_size,
            "num_eigenfunctions": self.basis.num_basis,
        }

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> GRIEFPosterior:
        """Posterior of the weights given x (n, d), y (n,).

        Cost: n p^2 / 2 + p^3 / 3 multiply-adds, memory O(p^2 + block).
        """
        modes, noise = self.basis.modes(), self.likelihood.noise_variance
        weights = fitted_weights(
            self.basis, modes, x, y - self.mean(x), noise, correction=self.correction
        )
        posterior = self.new_posterior()
        posterior.fill(modes, weights)
        return posterior

    def new_posterior(self) -> GRIEFPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        return GRIEFPosterior(self.basis, self.mean, self.correction)
