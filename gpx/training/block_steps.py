"""Training by block solves: every step finds the optimum of one group of weights given the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian
from gpx.models.base import Model
from gpx.models.cell_ascent import (
    diagonal_terms,
    evidence_terms,
    group_mean,
    group_values,
    sampled_values,
    solve_group,
)
from gpx.models.weight_space import QSGP
from gpx.objectives.base import Evidence
from gpx.training.batches import Batches
from gpx.variational.weights_block_diagonal import BlockDiagonalWeights

NoiseUpdate = Literal["fixed", "evidence"]


class BlockSteps:
    """Block ascent on the evidence bound of a weight-space model with block-diagonal covariance.

    Every step solves one group of cells, in turn; a sweep visits all of them. With ``rows`` at
    null the solve sees all data: the bound is at its maximum over the group afterwards and never
    falls from one step to the next (the first ``stand_in_groups`` steps excepted), and its limit in
    the mean is the exact posterior mean. With ``rows`` the step is a stochastic natural gradient
    from a mini-batch: natural parameters move by ``step_size`` towards an unbiased estimate of
    their optimum. The other groups' part of the residual is carried along for all rows, exact at
    O(n b) a step. With ``columns`` it is estimated from that many weights (``sampled_values``), and
    a step costs the same for every n and m; but the error of the estimate is proportional to the
    weights, and once clearly more of them are filled than ``columns`` the steps diverge.

    Args:
        sweeps: passes over all groups; trainer.max_steps may end training earlier.
        stand_in_groups: first groups, solved with a prior that carries the whole variance while the
            others are still at zero: most of the posterior mean after a few steps. 0 for none.
        noise: ``fixed`` at its initial value, or ``evidence``: after each sweep at the maximum
            of the bound, (|y - Phi mu|^2 + tr(Phi Sigma Phi^T)) / n.
        rows: data rows per step; null for all.
        step_size: rho of the first stochastic visit of a group, then rho / visits^step_decay.
        step_decay: in [0, 1]; above 1/2 the steps converge (Robbins and Monro).
        columns: weights of other groups evaluated per stochastic step; null carries the fitted
            values of all rows instead.

    Raises:
        ConfigError: an option out of range; ``check`` says what does not fit the model.

    Cost per step: O(rows b^2 + b^3 + n b) time and O(b^2) memory for groups of b columns, and n
    numbers of fitted values; neither n b nor n with ``columns``.
    Source: coordinate ascent variational inference; Hoffman et al. 2013 for stochastic steps.
    """

    def __init__(
        self,
        sweeps: float = 1.0,
        stand_in_groups: int = 1,
        noise: NoiseUpdate = "fixed",
        rows: int | None = None,
        step_size: float = 1.0,
        step_decay: float = 0.5,
        columns: int | None = None,
    ) -> None:
        counts = [k for k in (rows, columns) if k is not None]
        if sweeps <= 0 or stand_in_groups < 0 or min(counts, default=1) < 1:
            raise ConfigError(
                f"optimizer: sweeps={sweeps} must be positive, stand_in_groups={stand_in_groups} "
                f"not negative, columns={columns} and rows={rows} at least 1 (or null)"
            )
        if not 0.0 < step_size <= 1.0 or not 0.0 <= step_decay <= 1.0:
            raise ConfigError(
                f"optimizer: step_size={step_size} must be in (0, 1] and "
                f"step_decay={step_decay} in [0, 1]"
            )
        if noise not in get_args(NoiseUpdate):
            raise ConfigError(
                f"optimizer.noise={noise}: expected one of {', '.join(get_args(NoiseUpdate))}"
            )
        if rows is not None and noise != "fixed":
            raise ConfigError(
                "optimizer.noise=evidence needs all rows (optimizer.rows=null): the residual of a "
                "mini-batch does not determine the noise variance"
            )
        self.sweeps = sweeps
        self.stand_in_groups = stand_in_groups
        self.noise: NoiseUpdate = noise
        self.rows = rows
        self.step_size = step_size
        self.step_decay = step_decay
        self.columns = columns
        self.fitted = torch.zeros(0, dtype=torch.float64)
        self.misfit = math.nan
        self.converged = False  # steps that solve to a tolerance end the run early
        self._batches: Batches | None = None

    def check(self, model: Model, num_data: int) -> None:
        """Raise ConfigError, in one sentence, when block steps do not fit ``model`` or the data."""
        if not isinstance(model, QSGP):
            raise ConfigError(
                "optimizer=qsgp_blocks solves for groups of weights and needs approx=qsgp, "
                f"got {type(model).__name__}; choose another optimizer="
            )
        if not isinstance(model.likelihood, Gaussian):
            found = type(model.likelihood).__name__.removeprefix("Parametrized")
            raise ConfigError(
                f"optimizer=qsgp_blocks needs likelihood=gaussian, got {found}: its block solves "
                "are closed forms of Gaussian noise; use optimizer=qsgp"
            )
        if not isinstance(model.family, BlockDiagonalWeights):
            raise ConfigError(
                "optimizer=qsgp_blocks needs approx.covariance=block_diagonal, got another "
                "family; for mean_field or chevron use optimizer=qsgp or optimizer=qsgp_paper"
            )
        if self.rows is not None and self.rows > num_data:
            raise ConfigError(
                f"optimizer.rows={self.rows} is above the {num_data} training rows; "
                "lower it, or rows=null for all"
            )
        cells = model.family.cells
        if self.stand_in_groups > cells.num_groups:
            raise ConfigError(
                f"optimizer.stand_in_groups={self.stand_in_groups} is above the "
                f"{cells.num_groups} groups of the family"
            )

    def bind(self, model: Model, x: Tensor, seed: int) -> None:
        """Attach to a model and all training inputs x (n, d); ``check`` has passed."""
        assert isinstance(model, QSGP)
        assert isinstance(model.family, BlockDiagonalWeights)
        self.model = model
        self.family = model.family
        self.basis = model.basis
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.log_precision = 0.0
        for blocks in torch.arange(self.basis.num_blocks, device=x.device).split(64):
            columns = self.basis.columns_of(blocks)
            self.log_precision += float(self.basis.precision_diagonal(columns).double().log().sum())
        if self.rows is not None:
            self._batches = Batches(x.shape[0], self.rows, seed, x.device)
        if self._carries and self.fitted.shape[0] != x.shape[0]:  # not restored from a checkpoint
            self.fitted = self._all_values(x)
        diagonal_terms(self.basis, self.family, model.noise_variance, x.shape[0])

    @property
    def _carries(self) -> bool:
        """Whether fitted values of all rows are kept."""
        return self.rows is None or self.columns is None

    def _all_values(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
        for group in range(self.family.cells.num_groups):
            weights = group_mean(self.family, group)
            if bool((weights != 0).any()):
                total += group_values(self.basis, self.family.cells, group, weights, x)
        return total

    def max_steps(self, limit: int) -> int:
        """Steps of the run: ``sweeps`` over all groups, at most ``limit``."""
        return min(limit, math.ceil(self.sweeps * self.family.cells.num_groups))

    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """Solve the group of ``step`` and return the evidence bound afterwards.

        Args:
            step: number of the step, from 0.
            x (n, d), y (n,): all training data.
            generator: draws the groups of stochastic residuals.

        The value is exact when all rows are used and an estimate from the rows otherwise.
        """
        if self._batches is not None:
            return self._stochastic_step(step, x, y, self._batches, generator)
        cells = self.family.cells
        group = step % cells.num_groups
        share = 1.0
        if step < self.stand_in_groups:
            share = self.stand_in_groups / cells.num_groups
        solve = solve_group(
            self.basis,
            self.family,
            group,
            x,
            y.double() - self.fitted,
            noise=self.model.noise_variance,
            num_data=x.shape[0],
            prior_scale=share,
        )
        self.fitted = self.fitted + group_values(self.basis, cells, group, solve.change, x)
        self.misfit = float((y.double() - self.fitted).square().sum())
        if self.noise == "evidence" and group == cells.num_groups - 1:
            trace = float(self.family.terms[:, 0].sum())
            value = (self.misfit + trace) / x.shape[0]
            self.model.likelihood.noise_variance = self.model.noise_variance.new_tensor(value)
            self.model.likelihood.requires_grad_(False)
        return self.evidence(x.shape[0])

    def _stochastic_step(
        self, step: int, x: Tensor, y: Tensor, batches: Batches, generator: torch.Generator
    ) -> Evidence:
        cells = self.family.cells
        group = step % cells.num_groups
        visits = step // cells.num_groups + 1
        chosen = batches.rows(step)
        rows, targets = x[chosen], y[chosen].double()
        if self.columns is None:
            fitted = self.fitted[chosen]
        else:
            visited = min(step, cells.num_groups)
            fitted = sampled_values(
                self.basis, self.family, group, visited, rows, self.columns, generator=generator
            )
        share = 1.0
        if step < self.stand_in_groups:
            share = self.stand_in_groups / cells.num_groups
        # a first visit starts from nothing: averaging with the mean-field start would only slow it
        rho = 1.0 if visits == 1 and self.step_size == 1.0 else self.step_size
        solve = solve_group(
            self.basis,
            self.family,
            group,
            rows,
            targets - fitted,
            noise=self.model.noise_variance,
            num_data=x.shape[0],
            step=rho / visits**self.step_decay,
            prior_scale=share,
        )
        if self.columns is None:
            everywhere = group_values(self.basis, cells, group, solve.change, x)
            self.fitted, change = self.fitted + everywhere, everywhere[chosen]
        else:
            change = group_values(self.basis, cells, group, solve.change, rows)
        misfit = (targets - fitted - change).square().mean() * x.shape[0]
        self.misfit = float(misfit)
        return self.evidence(x.shape[0])

    def evidence(self, num_data: int) -> Evidence:
        """The bound at the current q, from tracked terms; O(cells)."""
        noise = float(self.model.noise_variance.detach())
        parts = evidence_terms(self.family, self.misfit, noise, num_data, self.log_precision)
        tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in parts.items()}
        kind: Literal["lower_bound", "estimate"]
        kind = "lower_bound" if self.rows is None else "estimate"
        return Evidence(torch.stack(list(tensors.values())).sum(), kind, tensors)

    def release(self) -> None:
        """Make every parameter trainable again (after the last step)."""
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)

    def learning_rates(self, step: int) -> dict[str, float]:
        """None: there is no rate to watch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Fitted values (n,) of all rows and their misfit."""
        return {"fitted": self.fitted, "misfit": self.misfit}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.fitted, self.misfit = state["fitted"], state["misfit"]
