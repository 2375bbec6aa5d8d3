"""The exact evidence bound of a weight-space model, streamed over rows and blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.errors import ConfigError
from gpx.likelihoods import Gaussian
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.control_variate import factor_rows
from gpx.methods.weight_space.elbo_terms import weights_kl
from gpx.methods.weight_space.model import WeightsOnBasis

ROW_CHUNK = 2048
BLOCK_BUDGET = 8192
"""Basis functions evaluated at a time."""


class WeightSpaceELBO(Objective[WeightsOnBasis]):
    """Exact ELBO of q(w) = N(mu, C C^T): the full-batch counterpart of QuadruplyStochasticELBO.

    ELBO = -1/2 [ |y - Phi mu|^2 / noise + sum((Phi C)^2) / noise + mu^T S mu + tr(S C C^T)
    - 2 sum log c_rr - log|S| - m + n log(2 pi noise) ], features in the dtype of x, sums over
    blocks and rows in float64.

    Of a block-diagonal covariance the blocks that were solved stand for the columns of C.

    Raises:
        ConfigError: a model of which StochasticBlockSteps have added a part only (``evidence``).

    Kind: lower bound on the log marginal likelihood of the m-function model, equal to it at the
    optimum of the full family.
    Cost: O(n m (d + K)) time, O(n m b) more for blocks of b columns. Memory: a chunk of features
    without gradients; O(n m) under autograd (meant for small m, or for diagnostics under
    ``torch.no_grad``).
    Source: Evans and Nair 2020 (QSGP), equation 2.
    """

    batching = "full"
    kind = "lower_bound"
    models = (WeightsOnBasis,)
    made_for = "QSGP"
    likelihoods = (Gaussian,)

    def prepare(
        self,
        model: WeightsOnBasis,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Set n in the model, for its closed-form scales."""
        model.num_data.fill_(float(x.shape[0]))

    def evidence(
        self,
        model: WeightsOnBasis,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Exact ELBO in nats; no randomness is used."""
        basis, family, noise = model.basis, model.family, model.noise_variance.double()
        if isinstance(family, BlockDiagonalWeights) and family.partly_solved:
            raise ConfigError(
                "the bound is of all weights, and the groups that StochasticBlockSteps have not "
                "visited are no part of the model yet: make more steps"
            )
        every = torch.arange(basis.num_blocks, device=x.device)
        factors, log_scale = factor_rows(family, every), model.log_scales(every)
        kl = weights_kl(basis, family, every, factors.double(), log_scale.double(), 1.0)
        square = torch.where(family.is_diagonal_column(every), (2.0 * log_scale).exp(), 0.0)
        square = square.to(x.dtype)  # prior precisions may be in float64
        at_once = max(1, BLOCK_BUDGET // basis.block_size)
        columns = at_once * basis.block_size
        lists = every.split(at_once), factors.split(columns), square.view(-1).split(columns)
        misfit = scatter = torch.zeros((), dtype=torch.float64, device=x.device)
        for rows, targets in zip(x.split(ROW_CHUNK), y.split(ROW_CHUNK), strict=True):
            projected = torch.zeros_like(misfit)
            for blocks, some, squares in zip(*lists, strict=True):
                features = basis.block_features(rows, blocks)
                projected = projected + (features @ some).double()
                scatter = scatter + (features.square().sum(0) @ squares).double()
            misfit = misfit + (targets.double() - projected[:, 0]).square().sum()
            scatter = scatter + projected[:, 1:].square().sum()
        for own, root in family.covariance_blocks(x.dtype):
            for rows in x.split(ROW_CHUNK):
                scatter = scatter + (basis(rows, own) @ root.mT).square().sum().double()
        fit = -0.5 * (misfit / noise + x.shape[0] * (LOG_TWO_PI + noise.log()))
        trace = -0.5 * scatter / noise
        parts = {"fit": fit, "trace": trace, "complexity": -kl}
        return Evidence(fit + trace - kl, "lower_bound", parts)
