"""Control variate of the data-quadratic terms, with a projection tracked over the steps."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpx.bases.base import Basis, SelectedBlocks
from gpx.bases.frozen import flat_parameters, frozen_basis
from gpx.data_sized import DataSized
from gpx.errors import ConfigError
from gpx.methods.base.step_count import StepCount
from gpx.methods.weight_space.block_sampling import multiplicity
from gpx.methods.weight_space.group_solves import ROW_CHUNK
from gpx.methods.weight_space.mean_field import MeanFieldWeights
from gpx.methods.weight_space.tracked_product import corrected_form, correction_direction
from gpx.sampling.batches import some_rows
from gpx.tensor_checks import check_at_least

Coefficient = float | Literal["auto"]
MAX_DRIFT = 1e-3
"""Relative drift of the tracked projection above which ConfigError is raised."""
MOMENT_DECAY = 0.99
"""Decay per step of the moments that estimate ``coefficient="auto"``."""


def factor_rows(family: MeanFieldWeights, blocks: Tensor, *, sparse: bool = False) -> Tensor:
    """Rows of [mu, dense columns of C] at ``blocks``: (L W, 1 + K)."""
    mean = family.mean_of(blocks, sparse=sparse).reshape(-1, 1)
    if family.num_dense == 0:
        return mean
    dense = family.dense_of(blocks, sparse=sparse).reshape(-1, family.num_dense)
    return torch.cat((mean, dense), dim=1)


class _Moving(NamedTuple):
    """Blocks of weights that the next optimiser step may change, and their values before it."""

    blocks: Tensor
    kept: list[tuple[SelectedBlocks, Tensor]]
    """Consecutive parts of ``blocks`` with their features at the support rows."""
    once: Tensor
    """One over the number of times that each row is listed, (|U|, 1)."""
    old: Tensor
    """Rows of [mu, dense columns of C] before the step, (|U|, 1 + K)."""


class ControlVariate(StepCount, DataSized):
    """Zero-mean correction of sum_v (Phi_j v_j)^T (Phi_i v_i), v = mu and dense columns of C.

    On ``rows`` fixed support rows p it subtracts the same doubly sampled product and adds its
    expectation (n / rows) |Phi_p v|^2. The projection a = Phi_p v is tracked: an optimiser step
    changes the sampled blocks U only, so a += Phi_p,U (v_new - v_old). Features inside the control
    variate stay at the hyperparameters of ``start``, so its mean stays zero when hyperparameters
    change, and only the correlation falls; ``start`` again to renew features and projection. No
    gradient of kernel hyperparameters passes through it.

    The dense gradient of the expectation is replaced by the sparse unbiased one of
    ``product_correction``.

    Args:
        rows: number of support rows; 0 switches the control variate off.
        coefficient: factor of the correction; ``auto`` for the variance-minimising one, estimated
            from previous steps (an exponential window), so that it stays unbiased.
        drift_interval: steps between exact recomputations of a, O(rows m) each; 0: never.

    State: rows (d + 1 + K) numbers. Source: Evans and Nair 2020 (QSGP), proposition 3 and
    appendix.
    """

    data_sized = ("support", "projection", "hyperparameters", "moments")
    derived = ("_frozen",)  # from the hyperparameters
    support: Tensor | None
    projection: Tensor | None
    hyperparameters: Tensor | None
    moments: Tensor | None

    def __init__(self, rows: int, coefficient: Coefficient, drift_interval: int) -> None:
        super().__init__()
        if coefficient != "auto" and not isinstance(coefficient, (int, float)):
            raise ConfigError(f"coefficient={coefficient}: expected a number or auto")
        check_at_least(0, support_rows=rows, drift_interval=drift_interval)
        self.rows = rows
        self.coefficient = coefficient
        self.drift_interval = drift_interval
        for name in self.data_sized:
            self.register_buffer(name, None)
        self._frozen: Basis | None = None
        self.pending: _Moving | None = None

    # -- state ------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(
        self,
        basis: Basis,
        family: MeanFieldWeights,
        anchor: Tensor,
        x: Tensor,
        generator: torch.Generator | None,
    ) -> None:
        """Draw the support rows, freeze the features and project the current weights.

        Args:
            basis, family: of the model.
            anchor (A, W): leading weights to subtract from mu (see QuadruplyStochasticELBO).
            x (n, d): training inputs.
            generator: on x's device.
        """
        if self.rows == 0:
            return
        self.support = x[some_rows(x, self.rows, generator)]
        self.hyperparameters = flat_parameters(basis.parameters())
        self.moments = torch.zeros(5, dtype=torch.float64, device=x.device)
        self._frozen = None
        self.projection = self.exact_projection(self.frozen_basis(basis), family, anchor)

    def frozen_basis(self, basis: Basis) -> Basis:
        """Copy of ``basis`` at the hyperparameters of ``start``."""
        if self._frozen is None:
            assert self.hyperparameters is not None
            self._frozen = frozen_basis(basis, self.hyperparameters)
        return self._frozen

    @torch.no_grad()
    def exact_projection(self, basis: Basis, family: MeanFieldWeights, anchor: Tensor) -> Tensor:
        """a = Phi_p [mu - anchor, dense C] from all m functions: (rows, 1 + K); O(rows m)."""
        assert self.support is not None
        total = self.support.new_zeros((self.support.shape[0], 1 + family.num_dense)).double()
        at_once = max(1, ROW_CHUNK * 4 // basis.block_size)
        for blocks in torch.arange(basis.num_blocks, device=total.device).split(at_once):
            rows = factor_rows(family, blocks)
            rows[:, 0] -= anchor_rows(anchor, blocks).reshape(-1)
            total += basis.block_features(self.support, blocks) @ rows
        return total.to(self.support.dtype)

    # -- one step ---------------------------------------------------------------------------------

    def correction(
        self,
        basis: Basis,
        family: MeanFieldWeights,
        pair: Tensor,
        factors: Tensor,
        target: Tensor | None,
        num_data: int,
        selected: SelectedBlocks | None = None,
    ) -> Tensor:
        """Zero-mean term to add to the data-quadratic term, times the noise variance; 0-d.

        Args:
            pair (2 L,): the two block lists, one after the other.
            factors (2 L W, 1 + K): rows of [mu - anchor, dense C] there, with gradient.
            target (): the data-quadratic term, n / batch (B / L)^2 times the sum of products on
                the mini-batch; needed for ``auto`` only.
            num_data: n.
            selected: ``basis.selected(pair, ...)``, if the caller has it already.
        """
        if self.projection is None or self.support is None or self.moments is None:
            raise ConfigError(
                "the control variate has no support rows yet: call objective.prepare(model, x, y) "
                "before the first step, or set support_rows=0"
            )
        if selected is None:
            selected = basis.selected(pair, self.support)
        length, frozen = pair.shape[0] // 2, self.frozen_basis(basis)
        at_left, at_right = selected.of(frozen).split((length, length))
        on_left, on_right = factors.chunk(2)
        kept: list[Tensor] = []
        right = at_right.products(self.support, on_right, kept)
        ratio = basis.num_blocks / length
        per_row = num_data / self.rows_used
        direction = correction_direction(self.projection, right, ratio)
        form, left = at_left.form(self.support, on_left, direction, kept)
        correction = per_row * corrected_form(form, self.projection, left, right, ratio)
        if self.coefficient == "auto":
            assert target is not None
            expected = per_row * self.projection.square().sum()
            factor = self._estimated(target.detach() - expected, -correction.detach())
            correction = factor * correction
        elif self.coefficient != 1.0:
            correction = float(self.coefficient) * correction
        if torch.is_grad_enabled():
            self._remember(frozen, family, pair, [(at_left, kept[1]), (at_right, kept[0])])
        return correction

    @property
    def rows_used(self) -> int:
        """Support rows drawn: ``rows``, at most n."""
        return 0 if self.support is None else self.support.shape[0]

    def _estimated(self, target: Tensor, sampled: Tensor) -> Tensor:
        """Coefficient for ``auto``, estimated from earlier steps so that this one stays unbiased.

        Cov(T - E, S) / E[S^2] for the control variate S (mean zero) and the target T minus the
        tracked expectation E, which removes most of the trend of a training run. Zero until two
        steps are known.
        """
        assert self.moments is not None
        weight, mean_t, mean_s, cross, square = self.moments.clone().unbind()
        covariance = cross * weight - mean_t * mean_s
        variance = square * weight
        usable = variance > 0
        best = torch.where(usable, covariance / torch.where(usable, variance, 1.0), 0.0)
        if torch.is_grad_enabled():
            t, s = target.double(), sampled.double()
            self.moments.mul_(MOMENT_DECAY).add_(
                torch.stack((torch.ones_like(t), t, s, t * s, s * s)), alpha=1 - MOMENT_DECAY
            )
        return best.clamp(0.0, 1.0).to(target.dtype)

    def _remember(
        self,
        frozen: Basis,
        family: MeanFieldWeights,
        pair: Tensor,
        kept: list[tuple[SelectedBlocks, Tensor]],
    ) -> None:
        """Store for ``after_step`` the blocks that may change, their features and old values."""
        with torch.no_grad():
            width = family.block_size
            head = torch.arange(math.ceil(family.num_dense / width), device=pair.device)
            if head.shape[0]:  # the diagonal of the dense columns changes at every step
                assert self.support is not None
                first = SelectedBlocks(frozen, head)
                kept.append((first, frozen.block_features(self.support, head)))
            moved = torch.cat((pair, head))
            once = 1.0 / multiplicity(moved).to(family.mean.dtype)
            old = factor_rows(family, moved)
            self.pending = _Moving(moved, kept, once.repeat_interleave(width)[:, None], old)

    @torch.no_grad()
    def after_step(self, basis: Basis, family: MeanFieldWeights, anchor: Tensor) -> None:
        """Update the projection after an optimiser step; every ``drift_interval`` steps check it.

        Raises:
            ConfigError: the projection drifted, because the optimiser moved other weights.
        """
        if self.rows == 0 or self.pending is None:
            return
        pending, self.pending = self.pending, None
        assert self.projection is not None
        change = pending.once * (factor_rows(family, pending.blocks) - pending.old)
        sizes = [part.blocks.shape[0] * family.block_size for part, _ in pending.kept]
        for (part, features), rows in zip(pending.kept, change.split(sizes), strict=True):
            part.carry(self.projection, features, rows)
        if self.count_step(self.drift_interval):
            self.check_drift(basis, family, anchor)

    @torch.no_grad()
    def check_drift(self, basis: Basis, family: MeanFieldWeights, anchor: Tensor) -> float:
        """Recompute the projection exactly; returns its relative drift.

        Raises:
            ConfigError: the drift exceeds MAX_DRIFT.
        """
        assert self.projection is not None
        exact = self.exact_projection(self.frozen_basis(basis), family, anchor)
        size = exact.norm().clamp_min(torch.finfo(exact.dtype).tiny)
        drift = float((self.projection - exact).norm() / size)
        if drift > MAX_DRIFT:
            raise ConfigError(
                f"the tracked projection of the control variate is off by {drift:.1e} relative: "
                "the optimiser moved weights that were not sampled (momentum, weight decay and "
                "Adam do); use adagrad or plain sgd for FirstOrder.groups.variational, "
                "or support_rows=0"
            )
        self.projection.copy_(exact)
        return drift


def anchor_rows(anchor: Tensor, blocks: Tensor) -> Tensor:
    """Rows of the anchor (A, W) at ``blocks``, zero beyond it: (L, W)."""
    if anchor.shape[0] == 0:
        return anchor.new_zeros(blocks.shape[0], anchor.shape[1])
    inside = blocks < anchor.shape[0]
    return anchor[torch.where(inside, blocks, 0)] * inside[:, None]


def subtract_from_first_column(block: Tensor, column: Tensor) -> Tensor:
    """``block`` (r, c) with ``column`` (r, 1) subtracted from its first column."""
    if block.shape[1] == 1:
        return block - column
    return torch.cat((block[:, :1] - column, block[:, 1:]), dim=1)
