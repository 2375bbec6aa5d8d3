"""Unbiased estimate of the weight-space evidence bound at a cost independent of n and m."""

from __future__ import annotations

from typing import ClassVar, get_args

import torch
from torch import Tensor

from gpx.bases.frozen import flat_parameters
from gpx.constants import LOG_TWO_PI
from gpx.constraints import cached_parameters
from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian
from gpx.likelihoods.base import Likelihood
from gpx.methods.base.batch import Batch
from gpx.methods.base.objective import Batching, Evidence, Kind, Objective
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.block_sampling import Sampling, sample_lists
from gpx.methods.weight_space.control_variate import (
    Coefficient,
    ControlVariate,
    anchor_rows,
    factor_rows,
    subtract_from_first_column,
)
from gpx.methods.weight_space.group_solves import ROW_CHUNK, WeightGroup, fitted_values
from gpx.methods.weight_space.model import WeightsOnBasis
from gpx.tensor_checks import check_at_least, check_num_data, check_one_of

DEFAULT_COLUMNS, DEFAULT_DIAGONAL_COLUMNS, DEFAULT_SUPPORT_ROWS = 10_000, 1000, 500
SNAPSHOT_BLOCKS = 8
"""Blocks whose features are computed at a time in the pass over all rows."""


class QuadruplyStochasticELBO(Objective[WeightsOnBasis]):
    """Evidence lower bound of QSGP, estimated from four samples.

    ELBO = -1/2 [L_mu + L_Sigma + L_const] (see ``elbo_terms``). Four samples are drawn: data rows
    (the mini-batch), two independent lists i and j of blocks of basis functions (for the two
    factors of every data-quadratic term), and a list r of diagonal columns of C. Terms linear in
    one list are averaged over i and j. As i and j are independent, value and gradient are unbiased
    for the exact ELBO and its gradient.

    Anchor: the weights mu0 of the A blocks that exact solves have set are treated separately,
    mu = mu0 + delta. phi^T mu0 is evaluated exactly on the mini-batch, O(batch A W), and only delta
    is sampled, so that the noise of the estimate is proportional to delta and not to mu. Without
    it, the first stochastic steps would destroy the warm start.

    Snapshot: with ``snapshot``, ``prepare`` also stores b = Phi^T (y - Phi mu0) and
    |y - Phi mu0|^2 of all rows, O(n m) once. The linear term is then b^T delta over the sampled
    lists and the constant is exact, so that all noise is proportional to delta, and a step
    evaluates no features of the anchor. The stored sums hold for one set of features only, so
    kernel hyperparameters must be frozen (the noise variance may change).

    Closed-form scales follow noise variance and outputscale exactly at every step. Their relative
    column squares also depend on the lengthscales. Once these have changed, every step moves the
    stored squares of its sampled columns towards those on its mini-batch by the factor ``refresh``,
    in O(diagonal_columns). As only earlier mini-batches are used, the estimate stays unbiased.

    Args:
        num_data: n, training points.
        columns: basis functions per list i and j (m tilde), rounded to whole blocks; None: 10,000,
            at most m.
        diagonal_columns: diagonal columns of C per step, likewise; None: 1,000, at most m.
        support_rows: rows of the control variate (n bar); 0: none; None: 500, at most n.
        coefficient: of the control variate, or ``auto``.
        sampling: ``stratified``, ``with_replacement`` or ``without_replacement``.
        drift_interval: steps between exact checks of the control variate, O(support_rows m) each.
        snapshot: whether linear and constant terms come from a pass over all rows at the start.
        refresh: factor in [0, 1] by which sampled column squares are updated per step, see above.

    Raises:
        ConfigError: an option out of range, support_rows above n (here); columns or
            diagonal_columns above m, a covariance with blocks that were solved (``check``).

    Kind: unbiased for the ELBO, which is at most the log marginal likelihood of the m-function
    model. Cost per step: O((batch + support) (columns + A W) (d + K)) time, memory the same without
    the factor d; independent of n and m.

    Source: Evans and Nair 2020 (QSGP), theorems 1, 2, propositions 1 to 3 and appendix.
    Deviations: anchor, snapshot, averaging over both lists, stratified lists by default.
    """

    batching: ClassVar[Batching] = "minibatch"
    fixed_total: ClassVar[bool] = True
    kind: ClassVar[Kind] = "unbiased"
    fixed_shapes = True
    models: ClassVar[tuple[type, ...]] = (WeightsOnBasis,)
    made_for = "QSGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)
    data_sized: ClassVar[tuple[str, ...]] = ("anchor", "moment", "misfit", "hyperparameters")
    anchor: Tensor
    moment: Tensor
    misfit: Tensor
    hyperparameters: Tensor

    def __init__(
        self,
        num_data: int,
        columns: int | None = None,
        diagonal_columns: int | None = None,
        support_rows: int | None = None,
        coefficient: Coefficient = 1.0,
        sampling: Sampling = "stratified",
        drift_interval: int = 5000,
        snapshot: bool = False,
        refresh: float = 0.1,
    ) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data, columns=columns, diagonal_columns=diagonal_columns)
        if support_rows is not None and support_rows > num_data:
            raise ConfigError(
                f"support_rows={support_rows} is above the {num_data} training rows that the "
                "control variate can choose from; lower it, or None for min(500, n)"
            )
        if not 0.0 <= refresh <= 1.0:
            raise ConfigError(f"refresh={refresh} must be between 0 and 1")
        self.total = num_data
        self.columns = columns
        self.diagonal_columns = diagonal_columns
        check_one_of(get_args(Sampling), sampling=sampling)
        self.sampling = sampling
        rows = min(DEFAULT_SUPPORT_ROWS, num_data) if support_rows is None else support_rows
        self.control = ControlVariate(rows, coefficient, drift_interval)
        self.snapshot = snapshot
        self.streams = not snapshot  # a snapshot needs sums over all rows
        self.refresh = refresh
        for name in self.data_sized:
            self.register_buffer(name, torch.zeros(0, 0))
        self._sampled_squares: tuple[Tensor, Tensor] | None = None

    def check(self, model: WeightsOnBasis) -> None:
        """As in ``Objective``; also that no list is longer than the basis, and no dense blocks."""
        super().check(model)
        family = model.family
        if isinstance(family, BlockDiagonalWeights) and (
            family.covariance.roots or family.solved_only
        ):
            raise ConfigError(
                "objective QuadruplyStochasticELBO samples single columns of the covariance, and "
                "BlockSteps have solved for dense blocks of this one; WeightSpaceELBO is its exact "
                "bound, and covariance=mean_field or chevron have no such blocks"
            )
        for name in ("columns", "diagonal_columns"):
            size, m = getattr(self, name), model.basis.num_basis
            if size is not None and size > m:
                raise ConfigError(
                    f"{name}={size} is above the {m} basis functions of the model; "
                    f"use at most as many, or None"
                )

    @torch.no_grad()
    def prepare(
        self,
        model: WeightsOnBasis,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Set the anchor (and snapshot) to the current weights and start the control variate.

        Cost: O(support_rows m), with ``snapshot`` O(n m). May be called again.
        """
        check_num_data(self.total, x)
        model.num_data.fill_(float(self.total))
        whole = model.basis.num_blocks if self.snapshot else model.anchor_blocks
        self.anchor = model.family.mean[:whole].detach().clone()
        moving = model.basis.feature_parameters()
        self.hyperparameters = flat_parameters(moving) if moving else y.new_zeros(0)
        if self.snapshot:
            self._take_snapshot(model, x, y)
        self.control.start(model.basis, model.family, self.anchor, x, generator)

    @torch.no_grad()
    def _take_snapshot(self, model: WeightsOnBasis, x: Tensor, y: Tensor) -> None:
        basis, dtype = model.basis, model.family.mean.dtype
        lists = torch.arange(basis.num_blocks, device=x.device).split(SNAPSHOT_BLOCKS)
        parts = (
            (WeightGroup.of_blocks(basis, some), self.anchor[some].reshape(-1)) for some in lists
        )
        residual = y.double() - fitted_values(parts, x)
        self.misfit = residual.square().sum().to(dtype)
        residual = residual.to(x.dtype)
        moment = torch.zeros_like(model.family.mean, dtype=torch.float64)
        for rows, targets in zip(x.split(ROW_CHUNK), residual.split(ROW_CHUNK), strict=True):
            for some in lists:
                product = basis.block_features(rows, some).T @ targets
                moment[some] += product.view(some.shape[0], -1)
        self.moment = moment.to(dtype)

    @torch.no_grad()
    def after_step(self, model: WeightsOnBasis) -> None:
        """Update the tracked projection, and column squares if the lengthscales have changed."""
        self.control.after_step(model.basis, model.family, self.anchor)
        moving = model.basis.feature_parameters()
        if self._sampled_squares is not None and moving and model.family.diagonal == "closed_form":
            r, squares = self._sampled_squares
            moved = (flat_parameters(moving) != self.hyperparameters).any()
            table = model.family.column_ratio
            # a block listed twice is written twice with the same value
            table[r] = table[r].lerp(squares.to(table.dtype), self.refresh * moved.to(table.dtype))
        self._sampled_squares = None

    def draw(
        self, model: WeightsOnBasis, *, generator: torch.Generator | None, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Independent block lists i, j (L,) and r (L_r,)."""
        columns = DEFAULT_COLUMNS if self.columns is None else self.columns
        diagonal = (
            DEFAULT_DIAGONAL_COLUMNS if self.diagonal_columns is None else self.diagonal_columns
        )
        sizes = columns, diagonal
        return sample_lists(model.basis, *sizes, self.sampling, generator=generator, device=device)

    def _check_snapshot(self, model: WeightsOnBasis) -> None:
        if self.moment.numel() == 0:
            raise ConfigError(
                "there is no snapshot yet: call objective.prepare(model, x, y) before the first "
                "step, or set snapshot=False"
            )
        if torch.is_grad_enabled() and any(
            p.requires_grad for p in model.basis.feature_parameters()
        ):
            raise ConfigError(
                "snapshot=True keeps sums over features, and learning kernel "
                "hyperparameters would move the features: freeze them "
                "(FirstOrder.groups.hyperparameters.freeze_steps at least max_steps=), "
                "or set snapshot=False"
            )

    def evidence(
        self,
        model: WeightsOnBasis,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Unbiased estimate of the ELBO in nats, summed over all n points."""
        drawn = self.step_draws(model, x, generator=generator)
        return self.evidence_given(model, Batch(x, y), drawn)

    def step_draws(
        self, model: WeightsOnBasis, x: Tensor, *, generator: torch.Generator | None
    ) -> tuple[Tensor, ...]:
        """The block lists of a step."""
        return self.draw(model, generator=generator, device=x.device)

    def evidence_given(
        self, model: WeightsOnBasis, batch: Batch, drawn: tuple[Tensor, ...]
    ) -> Evidence:
        """The estimate for given lists of blocks."""
        with cached_parameters(batch.y.device, model):
            return self.estimate(model, batch.x, batch.y, *drawn)

    @property
    def left(self) -> object:
        """Column squares of the step, and the weights that the control variate tracks."""
        return self._sampled_squares, self.control.pending

    @left.setter
    def left(self, value: object) -> None:
        assert isinstance(value, tuple)
        self._sampled_squares, self.control.pending = value

    def estimate(
        self, model: WeightsOnBasis, x: Tensor, y: Tensor, i: Tensor, j: Tensor, r: Tensor
    ) -> Evidence:
        """The estimate for given lists of blocks.

        Args:
            x (batch, d), y (batch,): mini-batch, each row drawn with equal probability.
            i, j (L,), r (L_r,): block lists; i and j must be independent of one another.
        """
        basis, family, noise = model.basis, model.family, model.noise_variance
        num_blocks, length = basis.num_blocks, i.shape[0]
        ratio, ratio_r = num_blocks / length, num_blocks / r.shape[0]
        per_row = self.total / x.shape[0]
        pair = torch.cat((i, j))

        if self.snapshot:
            self._check_snapshot(model)
        # select all lists at once: generating frequencies has a fixed cost per call
        head = torch.arange(0 if self.snapshot else self.anchor.shape[0], device=x.device)
        lists = torch.cat((pair, r, head))
        at_pair, at_r, at_head = basis.selected(lists, x).split(
            (2 * length, r.shape[0], head.shape[0])
        )
        at_i, at_j = at_pair.split((length, length))
        factors = factor_rows(family, pair, sparse=True)
        of_lists = basis.block_precision(lists[: 2 * length + r.shape[0]]).to(factors.dtype)
        precision, precision_r = of_lists.split((factors.shape[0], r.shape[0] * basis.block_size))
        prior = 0.5 * ratio * (precision[:, None] * factors.square()).sum()
        delta = factors
        residual = y
        if self.anchor.shape[0]:
            delta = subtract_from_first_column(
                factors, anchor_rows(self.anchor, pair).reshape(-1, 1)
            )
        delta_i, delta_j = delta.chunk(2)
        # list i is evaluated last: its product needs the values of list j
        right = at_j.products(x, delta_j)
        direction = per_row * ratio**2 * right
        if self.snapshot:
            constant = self.misfit
            linear = -ratio * (self.moment[pair].reshape(-1) @ delta[:, 0])
        else:
            if head.shape[0]:
                residual = y - at_head.products(x, self.anchor.reshape(-1, 1))[:, 0]
            constant = per_row * residual.square().sum()
            scaled = per_row * ratio * residual
            linear = -(scaled @ right[:, 0])
            direction = subtract_from_first_column(direction, scaled[:, None])
        # the quadratic term, and without a snapshot the linear term of list i
        products, left = at_i.form(x, delta_i, direction)
        if self.control.rows:
            auto = self.control.coefficient == "auto"
            quadratic = per_row * ratio**2 * (left * right.detach()).sum() if auto else None
            products = products + self.control.correction(
                basis, family, pair, delta, quadratic, self.total, at_pair
            )

        # diagonal columns of C
        log_scale = model.log_scales(r, sparse=True)
        square = (2.0 * log_scale).exp()
        log_dense: Tensor | float = 0.0
        if family.num_dense:
            active = family.is_diagonal_column(r)
            square = torch.where(active, square, 0.0)
            log_scale = torch.where(active, log_scale, 0.0)
            log_dense = family.log_dense_diagonal().sum()
        column = per_row * at_r.column_squares(x).view_as(square)
        if torch.is_grad_enabled():
            expected = self.total * basis.mean_column_square()
            self._sampled_squares = r, (column / expected).detach()
        trace = ratio_r * (square * column).sum()
        prior = prior + ratio_r * (square * precision_r.view_as(square)).sum()
        log_factor = ratio_r * log_scale.sum() + log_dense
        log_precision = 0.5 * ratio * precision.log().sum()

        fit = -0.5 * (constant + linear + products) / noise
        scatter = -0.5 * trace / noise
        normaliser = -0.5 * self.total * (LOG_TWO_PI + noise.log())
        kl = 0.5 * (prior - basis.num_basis - log_precision) - log_factor
        value = fit + scatter + normaliser - kl
        parts = {
            "fit": (fit + normaliser).detach(),
            "trace": scatter.detach(),
            "complexity": -kl.detach(),
        }
        return Evidence(value, "unbiased", parts)
