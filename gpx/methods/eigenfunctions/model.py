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

MAX_TRIAL_GAIN = 50.0
"""Gain of the search, in nats, above which its result is taken without a trial."""

CHEAP_FUNCTIONS = 1000
"""Number of eigenfunctions below which evaluations are cheap and trials take more of them."""

NEGLIGIBLE_GAIN = 1e-4
"""Rounds end if the selection is unchanged and the evidence per point rose by less than this."""


class GRIEF(Model):
    """Gaussian process regression with grid-structured eigenfunctions (Evans and Nair 2018).

    f(x) = sum_j v_j phi_j(x) over the p leading Nystrom eigenfunctions of the kernel on a product
    grid of inducing points (of any size, such as 10^33), v ~ N(0, I).

    Args:
        kernel, mean, likelihood: the kernel must be a product over the inputs
            (``ProductFactors``), the likelihood Gaussian.
        num_inputs: d.
        num_eigenfunctions: p, at most.
        grid: how the inducing grid is built from the training inputs.
        factor_jitter: on every one-dimensional covariance.
        noise_first: whether ``initialise`` raises lengthscales that the grid cannot resolve to its
            spacing, and then sets noise variance and outputscale to the maximum of the evidence of
            the p eigenfunctions. (The noise of an exact process is too small for p eigenfunctions,
            and the first line search from there may step far away.)
        search_sweeps: most rounds over the inputs in which ``noise_first`` also doubles and halves
            lengthscales and selects the eigenfunctions again, see ``search_lengthscales``; 0: none.
        trial_evaluations: if the search gained less than 50 nats, its result and its start are both
            trained for so many evaluations of the evidence on at most 8 p rows, and the better one
            is kept, as the evidence before training does not always indicate the better optimum. Up
            to five times as many for p < 1000. 0: the result of the search is kept.
        correction: whether to add the prior variance that the eigenfunctions miss at every point,
            k(x, x) - k~(x, x), as independent noise of f.
        reselect: how often the p eigenfunctions are selected again at the trained kernel, with
            training after each. (In between the selection is fixed, since the evidence jumps when
            it changes.) A round that does not raise the evidence is undone and ends training, which
            is often the first.

    Raises:
        ConfigError: an unsuitable kernel or likelihood, or options out of range.

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
        """As in ``Model``: no choices, but checks memory.

        Raises:
            ConfigError: sums of p x p do not fit into memory.
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
        """As ``initialise``; search and trial end early when time is up."""
        self._round, self._best = 0, None  # those of an earlier run
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
        elif self.noise_first and self.trial_evaluations and gain < MAX_TRIAL_GAIN:
            self._compare_starts(begin, x, y, generator, watch)
        if self.noise_first:
            self.note += set_scales(self.basis, self.likelihood, x, y - self.mean(x))

    def _compare_starts(
        self,
        begin: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
        watch: StartWatch,
    ) -> None:
        """Train the result of the search and its start briefly; keep the better."""

        def without_search() -> None:
            self.kernel.load_state_dict(begin)
            self.basis.raise_lengthscales(x)

        deadline = Deadline(watch)
        found = {name: value.clone() for name, value in self.kernel.state_dict().items()}
        without_search()
        if all(torch.equal(found[k], v) for k, v in self.kernel.state_dict().items()):
            return  # the search changed nothing
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
            self.note += f", {('kept', 'undone')[best]} after a trial that ended when time was up"
            return
        self.note += (
            f"; evidence/point of {len(rows)} rows after {evaluations} evaluations "
            f"{values[0]:+.4f} from there, {values[1]:+.4f} without the search, which is "
            f"{'undone' if best else 'kept'}"
        )

    rounds_argument = "reselect"

    @property
    def num_rounds(self) -> int:
        """As in ``Model``: one, and those of ``reselect``."""
        return 1 + self.reselect

    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """As in ``Model``: select the eigenfunctions again; see ``reselect``."""
        self._round += 1
        if self.reselect == 0 or self._round > self.num_rounds:
            return False
        if self._best is not None and not loss < self._best[0]:
            self.load_state_dict(self._best[1])
            self._round = self.num_rounds  # no further rounds
            self.note = "selecting eigenfunctions again did not raise the evidence and was undone"
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

    def keep_best(self, loss: float) -> None:
        """As in ``Model``."""
        if self._best is not None and not loss < self._best[0]:
            self.load_state_dict(self._best[1])

    def rounds_state(self) -> dict[str, Any]:
        """As in ``Model``: rounds done, and the best state with its loss."""
        best = {} if self._best is None else {"loss": self._best[0], "model": self._best[1]}
        return {"done": self._round, **best}

    def load_rounds_state(self, state: dict[str, Any]) -> None:
        """As in ``Model``."""
        self._round = state.get("done", 0)
        self._best = (state["loss"], state["model"]) if "loss" in state else None

    def facts(self) -> dict[str, bool | int | float | str]:
        """Facts for metrics.json: size of the grid and of the basis."""
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
        """As in ``Model``."""
        return GRIEFPosterior(self.basis, self.mean, self.correction)
