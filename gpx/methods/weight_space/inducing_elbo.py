"""Unbiased estimate of the evidence bound of ``QSGPInducing``, where S = Phi = K."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from gpx.bases.inducing_points import InducingPoints
from gpx.constants import LOG_TWO_PI
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian
from gpx.likelihoods.base import Likelihood
from gpx.linalg.cholesky import cholesky
from gpx.methods.base.objective import Batching, Evidence, Kind, Objective
from gpx.methods.base.step_count import StepCount
from gpx.methods.weight_space.block_sampling import multiplicity, sample_blocks
from gpx.methods.weight_space.tracked_product import product_correction
from gpx.tensor_checks import check_at_least, check_num_data


def inducing_bound(
    *,
    misfit: Tensor,
    prior: Tensor,
    log_scales: Tensor,
    noise: Tensor,
    num_data: int,
) -> Evidence:
    """The bound without 1/2 log|K|, from |y - K mu|^2, mu^T K mu and sum log c_rr; in nats.

    With c_rr at its optimum the covariance contributes n - 2 sum log c_rr, whose n cancels the -n
    of the constant. log|K| is independent of the variational parameters and left out, so that
    values are comparable at equal hyperparameters only.
    """
    fit = -0.5 * (misfit / noise + num_data * (LOG_TWO_PI + noise.log()))
    complexity = -0.5 * prior + log_scales
    parts = {"fit": fit, "complexity": complexity}
    return Evidence(fit + complexity, "estimate", parts)


@runtime_checkable
class InducingWeights(Protocol):
    """What the bound needs of a model: weights of one kernel function per training point.

    Attributes:
        basis: the kernel functions; S = Phi = K.
        weight_mean (n, 1): mu.
        noise_variance (): of the likelihood.
    """

    basis: InducingPoints
    kernel: Kernel
    likelihood: Gaussian
    weight_mean: nn.Parameter

    @property
    def noise_variance(self) -> Tensor:
        """See above."""

    def scales(self) -> Tensor:
        """c_r^2 (n,) at its optimum."""


class InducingELBO(StepCount, Objective[InducingWeights]):
    """Evidence bound of ``QSGPInducing`` from samples of rows and of two lists of functions.

    L_mu = (-2 y^T K mu + |K mu|^2) / noise + mu^T K mu is estimated from a mini-batch and two
    independent lists i, j; the covariance is at its optimum in closed form. log|K| is left out, as
    hyperparameters are fixed. Two control variates use the same support points U: K_U mu for the
    data-quadratic term, L^-1 K_U mu with L L^T = K_UU for the prior-quadratic one. Both projections
    are updated after each step at a cost independent of n.

    Args:
        num_data: n = m.
        functions: length of lists i and j (m tilde).
        support_rows: support points; 0 for no control variate.
        drift_interval: steps between exact recomputations of the projections; 0: never.

    Raises:
        ConfigError: lists or a support longer than n.

    Kind: value and gradient are unbiased for the bound without 1/2 log|K|.
    Cost per step: O((batch + functions + support) functions d) kernel entries.
    Source: QSGP paper theorem 1 (general form), control variates, inducing-point experiments.
    """

    gradient_of_inputs = False
    batching: ClassVar[Batching] = "minibatch"
    fixed_total: ClassVar[bool] = True
    kind: ClassVar[Kind] = "unbiased"
    models: ClassVar[tuple[type, ...]] = (InducingWeights,)
    made_for = "QSGPInducing"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)
    data_sized: ClassVar[tuple[str, ...]] = ("support", "projection", "factor", "prior_projection")
    support: Tensor
    projection: Tensor
    factor: Tensor
    prior_projection: Tensor

    def __init__(
        self,
        num_data: int,
        functions: int | None = None,
        support_rows: int | None = None,
        drift_interval: int = 5000,
    ) -> None:
        super().__init__()
        functions = min(3000, num_data) if functions is None else functions
        support_rows = min(200, num_data) if support_rows is None else support_rows
        if not 1 <= functions <= num_data:
            raise ConfigError(
                f"functions={functions} must be between 1 and the {num_data} basis "
                "functions, one per training point"
            )
        if not 0 <= support_rows <= num_data:
            raise ConfigError(
                f"support_rows={support_rows} must be between 0 and the {num_data} training points"
            )
        check_at_least(0, drift_interval=drift_interval)
        self.total = num_data
        self.functions = functions
        self.rows = support_rows
        self.drift_interval = drift_interval
        for name in self.data_sized:
            self.register_buffer(name, torch.zeros(0, 0))
        self._pending: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    @torch.no_grad()
    def prepare(
        self,
        model: InducingWeights,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Draw the support points and project the weights; O(support_rows n) once."""
        check_num_data(self.total, x)
        if self.rows == 0:
            return
        chosen = torch.randperm(x.shape[0], generator=generator, device=x.device)[: self.rows]
        self.support = x[chosen].clone()
        gram = model.kernel.evaluate(self.support).double()
        # jitter changes the correction and its expectation alike, so it adds no bias
        factor, _ = cholesky(gram, name=f"kernel matrix of {self.rows} support points")
        self.factor = factor.to(x.dtype)
        self._project(model)

    def _project(self, model: InducingWeights) -> None:
        self.projection = model.basis(self.support) @ model.weight_mean.detach()
        white = torch.linalg.solve_triangular(self.factor, self.projection, upper=False)
        self.prior_projection = white

    def draw(
        self, *, generator: torch.Generator | None, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Independent lists i, j (l,), stratified."""
        i, j = (
            sample_blocks(
                self.total, self.functions, "stratified", generator=generator, device=device
            )
            for _ in range(2)
        )
        return i, j

    def evidence(
        self,
        model: InducingWeights,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Unbiased estimate of the bound without 1/2 log|K|, in nats over all n points."""
        return self.estimate(model, x, y, *self.draw(generator=generator, device=x.device))

    def estimate(
        self, model: InducingWeights, x: Tensor, y: Tensor, i: Tensor, j: Tensor
    ) -> Evidence:
        """The estimate for a mini-batch x (b, d), y (b,) and lists i, j (l,) of functions.

        The lists must be independent of one another: with i = j it is biased.
        """
        basis, noise = model.basis, model.noise_variance.detach()
        ratio, per_row = self.total / i.shape[0], self.total / x.shape[0]
        pair = torch.cat((i, j))
        half = i.shape[0]
        weights = embedding(pair, model.weight_mean, sparse=True)
        right, left = weights[:half], weights[half:]
        with torch.no_grad():
            features = basis(x, pair)
            precision = basis.precision(j, i)
            phi_p = basis(self.support, pair) if self.rows else None
        f_right, f_left = features[:, :half] @ right[:, 0], features[:, half:] @ left[:, 0]
        linear = -2.0 * per_row * ratio * (y @ f_right)
        quadratic = per_row * ratio**2 * (f_left @ f_right)
        loss = (linear + quadratic) / noise + ratio**2 * (left * (precision @ right)).sum()
        if phi_p is not None:
            scale = self.total / (self.rows * noise)
            loss = loss + scale * product_correction(
                self.projection, phi_p[:, half:] @ left, phi_p[:, :half] @ right, ratio
            )
            white = torch.linalg.solve_triangular(self.factor, phi_p, upper=False)
            loss = loss + product_correction(
                self.prior_projection, white[:, half:] @ left, white[:, :half] @ right, ratio
            )
            if torch.is_grad_enabled():
                self._pending = pair, phi_p, white, weights.detach().clone()
        constant = per_row * y.square().sum() / noise + self.total * (LOG_TWO_PI + noise.log())
        log_scales = 0.5 * model.scales().log().sum().to(loss.dtype)
        value = -0.5 * (loss + constant) + log_scales
        parts = {"mean": -0.5 * (loss + constant), "log scales": log_scales}
        return Evidence(value, "unbiased", parts)

    @torch.no_grad()
    def after_step(self, model: InducingWeights) -> None:
        """Update both projections; recompute them exactly every ``drift_interval`` steps."""
        if self._pending is None:
            return
        pair, phi_p, white, old = self._pending
        self._pending = None
        once = 1.0 / multiplicity(pair).to(old.dtype)
        change = once[:, None] * (model.weight_mean[pair] - old)
        self.projection += phi_p @ change  # summed first, as in ``SelectedBlocks.carry``
        self.prior_projection += white @ change
        if self.count_step(self.drift_interval):
            self._project(model)

    @torch.no_grad()
    def full_evidence(
        self,
        model: InducingWeights,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Exact bound without 1/2 log|K|: one kernel product, n^2 / 2 entries."""
        fitted = (model.kernel(x) @ model.weight_mean)[:, 0].double()
        return inducing_bound(
            misfit=(y.double() - fitted).square().sum(),
            prior=model.weight_mean[:, 0].double() @ fitted,
            log_scales=0.5 * model.scales().log().sum(),
            noise=model.noise_variance.double(),
            num_data=x.shape[0],
        )
