"""Unbiased estimate of the weight-space evidence bound at a cost free of n and m."""

from __future__ import annotations

import math
from typing import ClassVar, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.models.base import Model
from gpx.models.weight_space import QSGP
from gpx.objectives.base import Batching, Evidence, Kind, Objective
from gpx.objectives.block_sampling import Sampling, sample_blocks
from gpx.objectives.control_variate import Coefficient, ControlVariate, anchor_at, factor_rows

LOG_TWO_PI = math.log(2.0 * math.pi)


class QuadruplyStochasticELBO(Objective):
    """Evidence lower bound of QSGP, estimated from four samples.

    ELBO = -1/2 [L_mu + L_Sigma + L_const] (reweighted_and_qsgp 2.16). Sampled are the data rows
    (the mini-batch), two independent lists i and j of blocks of basis functions (the two factors
    of every data-quadratic term), and a list r of diagonal columns of C. Terms linear in one list
    average over i and j. Independence of i and j is what makes the product unbiased; value and
    gradient are unbiased for the exact ELBO and its gradient (tests enumerate all samples).

    Anchor: after exact block solves the weights mu0 of the A blocks they filled are taken out,
    mu = mu0 + delta. phi^T mu0 is evaluated exactly on the mini-batch (O(batch A W), free of n and
    m) and only delta is sampled, so that the noise of the estimate is multiplicative in delta and
    not in mu; without it the first stochastic steps destroy the warm start.

    Args:
        num_data: n, training points.
        columns: basis functions per list i and j (m tilde), rounded to whole blocks.
        diagonal_columns: diagonal columns of C per step, rounded to whole blocks.
        support_rows: rows of the control variate (n bar); 0 for none.
        coefficient: of the control variate, or ``auto``.
        sampling: ``stratified``, ``with_replacement`` or ``without_replacement``.
        drift_interval: steps between exact checks of the control variate, O(support_rows m) each.

    Kind: unbiased for the ELBO, which is at most the log marginal likelihood of the m-function
    model. Cost per step: O((batch + support) (columns + A W) (d + K)) time, the same without d as
    memory; independent of n and m.

    Source: reweighted_and_qsgp 2.16 to 2.25; QSGP paper theorems 1, 2, propositions 1 to 3.
    Deviations: anchor; symmetrised lists; stratified lists by default; all in docs above.
    """

    batching: ClassVar[Batching] = "minibatch"
    kind: ClassVar[Kind] = "unbiased"
    models: ClassVar[tuple[type[Model], ...]] = (QSGP,)
    anchor: Tensor

    def __init__(
        self,
        num_data: int,
        columns: int = 10_000,
        diagonal_columns: int = 1000,
        support_rows: int = 500,
        coefficient: Coefficient = 1.0,
        sampling: Sampling = "stratified",
        drift_interval: int = 5000,
    ) -> None:
        super().__init__()
        if num_data < 1 or columns < 1 or diagonal_columns < 1:
            raise ConfigError(
                f"num_data={num_data}, columns={columns} and diagonal_columns={diagonal_columns} "
                "must be at least 1"
            )
        if sampling not in get_args(Sampling):
            raise ConfigError(
                f"sampling={sampling}: expected one of {', '.join(get_args(Sampling))}"
            )
        self.total = num_data
        self.columns = columns
        self.diagonal_columns = diagonal_columns
        self.sampling: Sampling = sampling
        self.control = ControlVariate(support_rows, coefficient, drift_interval)
        self.register_buffer("anchor", torch.zeros(0, 0))

    def num_data(self, x: Tensor) -> int:
        """n, whatever the mini-batch holds."""
        return self.total

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):  # type: ignore[no-untyped-def]
        if prefix + "anchor" in state_dict:  # its size is that of the warm start
            self.anchor = torch.empty_like(state_dict[prefix + "anchor"])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @torch.no_grad()
    def prepare(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Take the warm start as anchor and start the control variate; O(support_rows m) once."""
        assert isinstance(model, QSGP)
        if x.shape[0] != self.total:
            raise ConfigError(
                f"objective.num_data={self.total} but there are {x.shape[0]} training rows"
            )
        model.num_data.fill_(float(self.total))
        self.anchor = model.family.mean[: model.anchor_blocks].detach().clone()
        self.control.start(model.basis, model.family, self.anchor, x, generator)

    def after_step(self, model: Model) -> None:
        """Carry the tracked projection over the step."""
        assert isinstance(model, QSGP)
        self.control.after_step(model.basis, model.family, self.anchor)

    def draw(
        self, model: QSGP, *, generator: torch.Generator | None, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Independent block lists i, j (L,) and r (L_r,)."""
        blocks, width = model.basis.num_blocks, model.basis.block_size
        sizes = (self.columns, self.columns, self.diagonal_columns)
        drawn = [
            sample_blocks(
                blocks,
                min(blocks, max(1, round(size / width))),
                self.sampling,
                generator=generator,
                device=device,
            )
            for size in sizes
        ]
        return drawn[0], drawn[1], drawn[2]

    def evidence(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Unbiased estimate of the ELBO in nats, summed over all n points."""
        assert isinstance(model, QSGP)
        return self.estimate(model, x, y, *self.draw(model, generator=generator, device=x.device))

    def estimate(
        self, model: QSGP, x: Tensor, y: Tensor, i: Tensor, j: Tensor, r: Tensor
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

        # one evaluation for all lists: generating frequencies has a fixed cost per call
        head = torch.arange(self.anchor.shape[0], device=x.device)
        features, features_r, features_head = basis.block_features(
            x, torch.cat((pair, r, head))
        ).split([k * basis.block_size for k in (2 * length, r.shape[0], head.shape[0])], dim=1)
        factors = factor_rows(family, pair, sparse=True)
        precision = basis.precision_diagonal(basis.columns_of(pair)).to(factors.dtype)
        prior = 0.5 * ratio * (precision[:, None] * factors.square()).sum()
        delta = factors
        residual = y
        if self.anchor.shape[0]:
            shift = anchor_at(self.anchor, pair).reshape(-1, 1)
            delta = torch.cat((factors[:, :1] - shift, factors[:, 1:]), dim=1)
            residual = y - features_head @ self.anchor.reshape(-1)
        half = delta.shape[0] // 2
        left, right = features[:, :half] @ delta[:half], features[:, half:] @ delta[half:]
        constant = per_row * residual.square().sum()
        linear = -per_row * ratio * (residual @ (left[:, 0] + right[:, 0]))
        quadratic = per_row * ratio**2 * (left * right).sum()
        if self.control.rows:
            quadratic = quadratic + self.control.correction(
                basis, family, pair, delta, quadratic, self.total
            )

        # diagonal columns of C
        active = family.is_diagonal_column(r)
        log_scale = model.log_scales(r, sparse=True)
        square = torch.where(active, (2.0 * log_scale).exp(), torch.zeros_like(log_scale))
        column = per_row * features_r.square().sum(0).view_as(square)
        precision_r = basis.precision_diagonal(basis.columns_of(r)).view_as(square)
        trace = ratio_r * (square * column).sum()
        prior = prior + ratio_r * (square * precision_r).sum()
        log_factor = ratio_r * torch.where(active, log_scale, 0.0).sum()
        log_factor = log_factor + family.log_dense_diagonal().sum()
        log_precision = 0.5 * ratio * precision.log().sum()

        fit = -0.5 * (constant + linear + quadratic) / noise
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
