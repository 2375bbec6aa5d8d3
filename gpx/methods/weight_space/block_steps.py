"""Training by block solves: each step is exact for one group of weights given the others."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gpx.constraints import is_trained, set_above_floor
from gpx.errors import ConfigError, class_name
from gpx.likelihoods import Gaussian
from gpx.methods.base.objective import Evidence
from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cell_ascent import (
    TRACE,
    Averaging,
    diagonal_terms,
    natural_step,
    tracked_evidence,
)
from gpx.methods.weight_space.group_solves import WeightGroup, fitted_values
from gpx.methods.weight_space.qsgp import QSGP
from gpx.tensor_checks import check_at_least, check_one_of, check_positive

NoiseUpdate = Literal["auto", "fixed", "evidence"]

NOISE_UPDATE_FACTOR = 4.0
"""``noise="auto"`` raises the noise variance if its optimum is more than this factor above it."""

MIN_NOISE_RATIO = 1e-5
"""Smallest initial noise variance with ``noise="auto"``, relative to the prior variance of f; below
it, normal matrices of thousands of functions are numerically singular."""

logger = logging.getLogger(__name__)


class BlockSteps(OwnSteps[QSGP]):
    """Block ascent on the evidence bound of a weight-space model with block-diagonal covariance.

    Every step solves for one group of cells from all data, in turn; a sweep visits all groups. The
    step maximises the bound over the group, so that the bound never falls (except in the first
    ``stand_in_groups`` steps), and the mean converges to the exact posterior mean.
    ``StochasticBlockSteps`` uses mini-batches, at a cost independent of n.

    Args:
        sweeps: passes over all groups; ``max_steps`` of the trainer may end training earlier.
        stand_in_groups: number of first groups that are solved with the prior precision scaled
            down, as if they were the whole basis, which gives most of the posterior mean after a
            few steps; 0: none.
        noise: ``fixed``: stays at its initial value. ``evidence``: set after each sweep to the
            maximum of the bound, (|y - Phi mu|^2 + tr(Phi Sigma Phi^T)) / n. ``auto``: starts at
            no less than MIN_NOISE_RATIO times the prior variance, and is set to that maximum only
            if it is more than NOISE_UPDATE_FACTOR times larger. The maximum of the bound is above
            the noise that predicts best, because missing covariances between blocks count variance
            twice, hence the factor.

    Raises:
        ConfigError: an option out of range.

    Cost per step: O(n b^2 + b^3) time and O(b^2 + n) memory for groups of b columns, independent
    of m.
    Source: coordinate ascent variational inference.
    """

    unit = "block steps"
    purpose = "solves for groups of weights of QSGP models"
    model_type = QSGP
    likelihoods = (Gaussian,)

    def __init__(
        self,
        sweeps: float = 1.0,
        stand_in_groups: int = 1,
        noise: NoiseUpdate = "auto",
    ) -> None:
        check_positive(finite=True, sweeps=sweeps)
        check_at_least(0, stand_in_groups=stand_in_groups)
        check_one_of(get_args(NoiseUpdate), noise=noise)
        self.sweeps = sweeps
        self.stand_in_groups = stand_in_groups
        self.noise: NoiseUpdate = noise
        self.fitted = torch.zeros(0, dtype=torch.float64)
        self.misfit = math.nan

    def check_fit(self, model: QSGP, num_data: int) -> None:
        """As in ``OwnSteps``; needs Gaussian noise and a block-diagonal covariance."""
        if not isinstance(model.likelihood, self.likelihoods):
            found = class_name(model.likelihood)
            raise ConfigError(
                f"optimizer={type(self).__name__}() needs likelihood=Gaussian(), got {found}: its "
                "block solves are closed forms of Gaussian noise; use optimizer=FirstOrder()"
            )
        if not isinstance(model.family, BlockDiagonalWeights):
            raise ConfigError(
                f"optimizer={type(self).__name__}() needs covariance=block_diagonal, got another "
                "family; for mean_field or chevron use optimizer=FirstOrder()"
            )
        cells = model.family.cells
        if self.stand_in_groups > cells.num_groups:
            raise ConfigError(
                f"stand_in_groups={self.stand_in_groups} is above the "
                f"{cells.num_groups} groups of the family"
            )

    def bind(self, model: QSGP, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``."""
        restored, self.restored = self.restored, False
        self._attach(model)
        # cells that ``StochasticBlockSteps`` have not reached are part of the model from here on
        self.family.solved_only = False
        if self.noise == "auto":
            least = MIN_NOISE_RATIO * model.prior_variance()
            if float(self.model.noise_variance) < least:
                self._set_noise(least)
        self.log_precision = 0.0
        for blocks in torch.arange(self.basis.num_blocks, device=x.device).split(64):
            self.log_precision += float(self.basis.block_precision(blocks).double().log().sum())
        diagonal_terms(self.basis, self.family, self.model.noise_variance, x.shape[0])
        if not restored:
            groups = range(self.family.cells.num_groups)
            parts = ((self._weights(g, x), self._mean(g)) for g in groups)
            self.fitted, self.misfit = fitted_values(parts, x), math.nan

    def _attach(self, model: QSGP) -> None:
        """Keep references to the model's parts and turn its gradients off."""
        assert isinstance(model.family, BlockDiagonalWeights)
        self.model = model
        self.family = model.family
        self.basis = model.basis
        self._noise_trained = is_trained(model.likelihood, "noise_variance")
        self.freeze(model)

    def _weights(self, group: int, x: Tensor) -> WeightGroup:
        """The columns of ``group``."""
        return self.family.cells.weight_group(self.basis, group, x.device)

    def _mean(self, group: int) -> Tensor:
        """Weight means (b,) of ``group``."""
        return self.family.cells.read_group(self.family.mean.data, group)

    def max_steps(self, limit: int) -> int:
        """Steps of the run: ``sweeps`` over all groups, at most ``limit``."""
        return min(limit, math.ceil(self.sweeps * self.family.cells.num_groups))

    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Solve the group of ``step`` and return the evidence bound afterwards.

        Args:
            step: number of the step, from 0.
            x (n, d), y (n,): all training data.
            generator: unused; nothing is drawn.
        """
        groups = self.family.cells.num_groups
        group = step % groups
        share = self.stand_in_groups / groups if step < self.stand_in_groups else 1.0
        self._solve(group, share, x, y)
        if group == groups - 1 and self.noise != "fixed":
            optimum = (self.misfit + float(self.family.terms[:, TRACE].sum())) / x.shape[0]
            if self.noise == "evidence" or optimum > NOISE_UPDATE_FACTOR * float(
                self.model.noise_variance
            ):
                self._set_noise(optimum)
        return self.evidence(x.shape[0])

    def _solve(self, group: int, share: float, x: Tensor, y: Tensor) -> None:
        """Solve for one group, with the prior precision times ``share``."""
        weights = self._weights(group, x)
        change = natural_step(
            self.family,
            group,
            weights,
            x,
            y.double() - self.fitted,
            noise=self.model.noise_variance,
            num_data=x.shape[0],
            averaging=Averaging.exact(x.shape[0], share),
        )
        self.fitted = self.fitted + weights.values(change, x)
        self.misfit = float((y.double() - self.fitted).square().sum())

    def _set_noise(self, value: float) -> None:
        if not self._noise_trained:
            return
        old = float(self.model.noise_variance.detach())
        set_above_floor(self.model.likelihood, "noise_variance", value)
        logger.info("noise variance %.3g, was %.3g", float(self.model.noise_variance), old)

    def evidence(self, num_data: int) -> Evidence:
        """The bound at the current q from tracked terms; O(cells)."""
        noise = float(self.model.noise_variance.detach())
        return tracked_evidence(self.family, self.misfit, noise, num_data, self.log_precision)

    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """The bound after the last step, on all data x (n, d), y (n,)."""
        return self.evidence(x.shape[0])

    def state_dict(self) -> dict[str, Any]:
        """Fitted values (n,) of all rows and their misfit."""
        return {"fitted": self.fitted, "misfit": self.misfit}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.fitted, self.misfit = state["fitted"], state["misfit"]
        self.restored = True
